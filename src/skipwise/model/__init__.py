import logging

# transformers' Trainer and peft import bitsandbytes, which warns about kernels of 4-bit weights; ``lora`` shows warnings again.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

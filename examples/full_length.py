"""Train an extended checkpoint on windows of its full length, in transformers' Trainer: 20 steps of the embedded model.

On 8 GPUs each window is divided among them by context parallelism (FSDP2; attention "sdpa"). That was not run here:
torch has no context parallelism on a CPU.

    accelerate launch --num_processes 8 --mixed_precision bf16 --use_fsdp --fsdp_version 2 \
        --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_activation_checkpointing true \
        --fsdp_state_dict_type FULL_STATE_DICT --use_parallelism_config --parallelism_config_cp_size 8 full_length.py
"""

import inspect
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from skipwise import load_model, load_tokenizer

# Yours: AutoModelForCausalLM.from_pretrained("runs/mine/model"), and documents of its whole window.
model, tokenizer, window = load_model("nano", target_length="2k"), load_tokenizer("nano"), 2048
texts = [path.read_text("utf-8") for path in sorted(Path(inspect.__file__).parent.glob("*.py"))]
documents = [ids[:window] for ids in tokenizer(texts, verbose=False)["input_ids"] if len(ids) >= window]


def collate(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Stack windows; without a mask, for context parallelism takes none but a causal one."""
    ids = torch.tensor(rows)
    return {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.arange(window).repeat(len(ids), 1)}


settings = {"max_steps": 20, "per_device_train_batch_size": 1, "learning_rate": 1e-5}
arguments = TrainingArguments("runs/full-length", logging_steps=1, report_to=[], **settings)
trainer = Trainer(model, arguments, collate, documents, processing_class=tokenizer)
trainer.train()
trainer.save_model("runs/full-length/model")

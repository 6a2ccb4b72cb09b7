"""Train a model for a longer window in transformers' Trainer: 20 steps of the embedded model on Python's standard library."""

import inspect
from pathlib import Path

from datasets import Dataset
from transformers import Trainer, TrainingArguments

from skipwise import PoseCollator, load_model, load_tokenizer

model, tokenizer = load_model("nano", target_length="2k"), load_tokenizer("nano")
texts = [path.read_text("utf-8") for path in sorted(Path(inspect.__file__).parent.glob("*.py"))]
documents = [ids for ids in tokenizer(texts, verbose=False)["input_ids"] if len(ids) >= 256]
collator = PoseCollator(train_length=256, target_length="2k", bos_token_id=tokenizer.bos_token_id)
settings = {"max_steps": 20, "per_device_train_batch_size": 4, "learning_rate": 4e-4}
trainer = Trainer(
    model,
    TrainingArguments("runs/transformers", logging_steps=1, report_to=[], **settings),
    data_collator=collator,
    train_dataset=Dataset.from_dict({"input_ids": documents}),
    processing_class=tokenizer,
    callbacks=[collator],
)
trainer.train()
trainer.save_model("runs/transformers/model")

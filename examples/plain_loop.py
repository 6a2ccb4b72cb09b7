"""Train a model for a longer window in a loop of your own: 20 steps of the embedded model on Python's standard library."""

import inspect
from pathlib import Path

import torch

from skipwise import PoseCollator, RequirePositions, load_model, load_tokenizer

model, tokenizer = load_model("nano", target_length="2k").train(), load_tokenizer("nano")
texts = [path.read_text("utf-8") for path in sorted(Path(inspect.__file__).parent.glob("*.py"))]
documents = [{"input_ids": ids} for ids in tokenizer(texts, verbose=False)["input_ids"] if len(ids) >= 256]
collator = PoseCollator(train_length=256, target_length="2k", bos_token_id=tokenizer.bos_token_id)
collator.set_epoch(0)  # before each pass over the documents
RequirePositions("2k").watch(model)
loader = torch.utils.data.DataLoader(documents, batch_size=4, shuffle=True, collate_fn=collator)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0)
losses = []
for _, batch in zip(range(20), loader, strict=False):
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    print(f"step {len(losses)}: loss {losses[-1]:.3f}")
model.save_pretrained("runs/plain/model")
tokenizer.save_pretrained("runs/plain/model")

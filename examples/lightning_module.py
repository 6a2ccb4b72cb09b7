"""Train a model for a longer window in Lightning: 20 steps of the embedded model on Python's standard library."""

import inspect
from pathlib import Path

import lightning
import torch

from skipwise import PoseCollator, RequirePositions, load_model, load_tokenizer

tokenizer = load_tokenizer("nano")
texts = [path.read_text("utf-8") for path in sorted(Path(inspect.__file__).parent.glob("*.py"))]
documents = [{"input_ids": ids} for ids in tokenizer(texts, verbose=False)["input_ids"] if len(ids) >= 256]
collator = PoseCollator(train_length=256, target_length="2k", bos_token_id=tokenizer.bos_token_id)


class Extension(lightning.LightningModule):
    """PoSE in the three places where it meets Lightning: the model, the guard, the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = load_model("nano", target_length="2k").train()  # Lightning keeps the mode that a model has
        self.losses: list[float] = []

    def on_train_start(self) -> None:
        """Stop the run at its first step if the model does not get the positions."""
        RequirePositions("2k").watch(self.model)

    def on_train_epoch_start(self) -> None:
        """Draw new spans and positions."""
        collator.set_epoch(self.current_epoch)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch; all of it goes to the model, ``attention_mask`` too."""
        loss = self.model(**batch, use_cache=False).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the other examples."""
        return torch.optim.AdamW(self.parameters(), lr=4e-4, weight_decay=0)


extension = Extension()
loader = torch.utils.data.DataLoader(documents, batch_size=4, shuffle=True, collate_fn=collator)
settings = {"max_steps": 20, "gradient_clip_val": 1.0, "logger": False, "enable_checkpointing": False}
lightning.Trainer(accelerator="auto", devices=1, **settings).fit(extension, loader)
losses = extension.losses
extension.model.save_pretrained("runs/lightning/model")
tokenizer.save_pretrained("runs/lightning/model")

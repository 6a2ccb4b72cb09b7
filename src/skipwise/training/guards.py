"""Guards of a training step: stop before a non-finite update, and explain an out-of-memory error."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from skipwise.errors import NonFiniteLossError, TrainingError, out_of_memory
from skipwise.model import checkpointing
from skipwise.training.checkpoints import intact


class NonFiniteGuard(TrainerCallback):
    """Stops the run before an optimizer step that would write NaN or infinity into the weights.

    Losses and gradient norm stay on the device and are read once a step, so that gradient accumulation needs no extra
    synchronisation. Under fp16 an infinite gradient is normal: the loss scaler skips the step and lowers its scale. So
    with fp16 only the loss is checked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loss: torch.Tensor | None = None
        self._grad_norm: torch.Tensor | float = 0.0

    def see_loss(self, loss: torch.Tensor) -> None:
        """Add the detached loss of one micro-batch; the sum is non-finite if one of its terms is."""
        self._loss = loss.sum() if self._loss is None else self._loss + loss.sum()

    def see_grad_norm(self, norm: torch.Tensor | float) -> None:
        """Take the norm of the gradients that the next update applies."""
        self._grad_norm = norm

    def check(self, args: TrainingArguments, step: int) -> None:
        """Check the losses and the gradient norm since the last check."""
        loss, norm = self._loss, 0.0 if args.fp16 else self._grad_norm
        self._loss, self._grad_norm = None, 0.0
        assert loss is not None, "the guard got no loss since the last optimizer step"
        if math.isfinite(float(loss + norm)):
            return
        what = "the gradient norm" if math.isfinite(float(loss)) else "loss"
        other = "bf16" if args.fp16 else "float32" if args.bf16 else None
        way_out = f"try training.precision={other} or" if other else "try"
        raise NonFiniteLossError(
            f"step {step}: {what} is not finite; nothing of this step is saved; {way_out} "
            f"a lower training.learning_rate (now {args.learning_rate:g}) in a new run (another --out); {intact(self._folder)}"
        )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.check(args, state.global_step + 1)


@contextmanager
def memory_errors(trainer: Any) -> Iterator[None]:
    """Explain an out-of-memory error inside this context by the shape of the running Trainer's ``micro_batch``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        examples, tokens = trainer.micro_batch
        lighter = [] if hasattr(trainer.model, "peft_config") else ["--lora"]
        lighter += [] if getattr(trainer.model, "is_loaded_in_4bit", False) else ["lora.base=4bit"]
        lighter += ["shorter windows (train_length; of full-length training the target)"] if examples else []
        new_run = "in a new run (another --out)"
        ways = [f"{' or '.join(lighter)} {new_run}" if lighter else "a larger GPU"]
        if examples:
            divisor = max((n for n in range(1, examples) if examples % n == 0), default=0)
            ways = [f"training.per_device_train_batch_size={divisor} {new_run}"] if divisor else ways
            if not getattr(trainer.args, checkpointing.NAME):
                ways = ["--resume --set training.gradient_checkpointing=true", *(ways if divisor else [])]
        when = (
            f"with {examples} x {tokens:,} tokens in one forward pass" if examples else "before the first forward pass"
        )
        raise TrainingError(
            f"step {trainer.state.global_step + 1}: out of memory {when}; choose {', or '.join(ways)}; "
            f"{intact(Path(str(trainer.args.output_dir)))}"
        ) from error

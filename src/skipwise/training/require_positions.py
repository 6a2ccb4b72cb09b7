"""A guard for trainers that are not ours: the model must read positions that skip, across chunks that attend to each other.

A Trainer drops the columns that it does not know, and so do some collators. A model without ``position_ids`` counts 0, 1,
2, ...: the loss looks right, but no far distance is learned.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import TrainerCallback

from skipwise.data.examples import PoseDataset
from skipwise.errors import RecipeError
from skipwise.method.lengths import parse_length
from skipwise.model.attention import takes_packed
from skipwise.model.config import reach_of
from skipwise.model.lora import stock_model
from skipwise.model.precision import precision_of
from skipwise.model.probe import probe_connectivity

_EXAMPLES = 256  # of which one must skip; a share of examples may have no skip

_KEEP = "give data_collator=PoseCollator(...) or collate, and remove_unused_columns=False"


class RequirePositions(TrainerCallback):
    """Stop a run at its first step if the model does not get the positions of its examples.

    Example::

        trainer = Trainer(model, arguments, collate, data, callbacks=[RequirePositions("32k")])

    Before training ``probe_connectivity`` tests that chunks attend to each other. Then batches are checked until one has a
    skip. A ``PoseDataset`` gets the number of each epoch, for new examples. In a loop of your own call ``watch(model)``
    before the first step. ``PoseCollator`` is such a callback itself.

    Args:
        target_length: L_t in tokens, e.g. 32768 or "32k".

    Raises:
        RecipeError: (in the forward pass) a batch has no ``position_ids`` or no ``attention_mask``, its positions begin
            again inside an example, or 256 examples have no skip. (Before training) the model does not read the target.
        ModelError: (before training) the chunks do not attend to each other.
    """

    def __init__(self, target_length: int | str) -> None:
        self._target = parse_length(target_length)
        self._examples = 0
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
        """Watch the model of a Trainer, in the precision in which it trains."""
        data = getattr(given.get("train_dataloader"), "dataset", None)
        if isinstance(data, PoseDataset):
            _require_extended(stock_model(model).config.get_text_config(), data.rules.target_length)
        self.watch(model, precision=precision_of(args))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Give a ``PoseDataset`` its epoch; Accelerate does so only in one process, and not after a resume."""
        data = getattr(given.get("train_dataloader"), "dataset", None)
        if isinstance(data, PoseDataset):
            data.set_epoch(int(state.epoch or 0))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop watching."""
        self._release()

    def watch(self, model: Any, *, precision: str = "float32") -> None:
        """Probe ``model``, and check its inputs in training until a position skips.

        ``precision`` is bf16 or fp16 under autocast; float32 computes in the dtype of the weights.
        """
        self._release()
        stock = stock_model(model)
        _require_extended(stock.config.get_text_config(), self._target)
        probe_connectivity(stock, self._target, precision=precision)
        self._examples = 0
        # Older peft calls the outer model's forward without its hooks. The hook of sliding layers replaces the mask, so prepend.
        self._hook = stock.base_model.register_forward_pre_hook(self._check, prepend=True, with_kwargs=True)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _check(self, model: torch.nn.Module, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        if not model.training:
            return
        positions = given.get("position_ids")
        if positions is None:
            raise RecipeError(f"the model got no position_ids, so no position skips; {_KEEP}")
        steps, mask = positions.diff(dim=-1), given.get("attention_mask")
        within = torch.ones_like(steps, dtype=torch.bool)  # whether a step stays in one text
        if isinstance(mask, torch.Tensor) and mask.ndim == 4:
            if not takes_packed(model):
                attention = cast(Any, model.config)._attn_implementation
                raise RecipeError(
                    f"the batch has packed texts, which {attention} attention mixes; load the model with skipwise.load_model, or "
                    "give the data set texts of at least the train length"
                )
            within = mask[:, 0].diagonal(offset=-1, dim1=1, dim2=2)
        if ((steps <= 0) & within).any():
            raise RecipeError(
                f"position_ids begin again inside an example, which cuts attention; turn packing and padding_free off, and {_KEEP}"
            )
        if mask is None:
            raise RecipeError(f"the model got no attention_mask, so transformers cuts attention at each skip; {_KEEP}")
        _require_extended(model.config, int(positions.max()) + 1)
        self._examples += len(positions)
        if ((steps != 1) & within).any():
            self._release()
        elif self._examples >= _EXAMPLES:
            raise RecipeError(f"no position skips in {self._examples} examples; {_KEEP}")


def _require_extended(config: Any, target: int) -> None:
    """Require a model with a config that reads the target; other positions are not interpolated."""
    longest = reach_of(config)
    if longest is not None and longest < target:
        raise RecipeError(
            f"the model reads {longest:,} positions, and the examples reach {target:,}; extend it first, e.g. by "
            f"skipwise.load_model(name, target_length={target}, interpolation='yarn'), or lower the target"
        )

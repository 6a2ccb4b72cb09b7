"""PoseCollator and RequirePositions: examples for any Trainer or DataLoader, and a guard that they reach the model.

A Trainer drops the columns that it does not know, and so do some collators. A model without ``position_ids`` counts 0, 1,
2, ...: the loss looks right, but no far distance is learned.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import TrainerCallback

from skipwise.data.examples import ExampleRules, PoseDataset, draw_aims, shared_epoch
from skipwise.data.text import IGNORED, token_ids
from skipwise.errors import DataError, RecipeError, at_least
from skipwise.method.lengths import parse_length
from skipwise.method.rng import Rng
from skipwise.model.attention import mask_by_position, takes_packed
from skipwise.model.config import reach_of
from skipwise.model.extension import require_float32_frequencies
from skipwise.model.forward import precision_of, stock_model
from skipwise.model.probe import probe_connectivity
from skipwise.recipes.schema import Positions

_EXAMPLES = 256  # of which one must skip; a share of examples may have no skip
_KEEP = "give data_collator=PoseCollator(...) or collate, and remove_unused_columns=False"
_UNKNOWN = -1  # the epoch before ``set_epoch``

Item = Mapping[str, Any]


class RequirePositions(TrainerCallback):
    """Stop a run at its first step if the model does not get the positions of its examples.

    Example::

        trainer = Trainer(model, arguments, collate, data, callbacks=[RequirePositions("32k")])

    ``target_length`` is L_t in tokens, e.g. 32768 or "32k". Before training ``probe_connectivity`` tests that chunks attend to
    each other. Then batches are checked until one has a skip. A ``PoseDataset`` gets the number of each epoch, for new
    examples. In your own loop call ``watch(model)`` before the first step. ``PoseCollator`` is such a callback itself.

    Raises:
        RecipeError: the model does not read the target; a batch has no ``position_ids`` or no ``attention_mask``, its
            positions begin again inside an example, or 256 examples have no skip.
        ModelError: a cast rounded the rotary frequencies, or the chunks do not attend to each other.
    """

    def __init__(self, target_length: int | str) -> None:
        self._target = parse_length(target_length)
        self._examples = 0
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
        """Watch the model of a Trainer, in its precision."""
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
        require_float32_frequencies(stock)
        mask_by_position(stock)  # for a model that load_model did not load
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


class PoseCollator(RequirePositions):
    """Turn tokenised documents into PoSE examples: the ``data_collator`` of a Trainer, and one of its callbacks.

    Example::

        collator = PoseCollator(train_length="4k", target_length="32k")
        model = load_model(name, plan_extension(load_config(name), target_length="32k", interpolation="yarn"))
        trainer = Trainer(model, arguments, train_dataset=tokenised, data_collator=collator, callbacks=[collator])
        trainer.train()

    An item is a mapping with ``input_ids``, at least ``train_length`` token ids without padding, and perhaps ``labels``, with
    -100 for labels that are not trained. Other fields are dropped. The batch holds int64 tensors [items, tokens]:
    ``input_ids``, ``position_ids``, ``labels``, ``attention_mask`` (all ones). Chunks of a long item are drawn as in
    ``PoseDataset``: around a trained label, if some labels are -100.

    The draw of an item is a pure function of (seed, epoch, hash of its ``input_ids``). The order of the items, the batch,
    the worker, the rank and a resume change nothing. Items with equal tokens get equal positions within an epoch.

    The epoch is set by ``callbacks=[collator]`` under a Trainer, and by ``set_epoch`` before each pass over the data in
    other loops. Without it the first batch is an error. As a callback the collator is a ``RequirePositions`` too. With an
    iterable data set a resume after the first pass is not exact, because a Trainer does not restore the pass. A Trainer
    uses this collator for evaluation too, where positions then change with the epoch.

    Args:
        train_length: L_c in tokens, as 2048 or "2k"; ``target_length``: L_t.
        positions: the scheme and its options; default: PoSE with two chunks.
        train_chunk_starts: train the first label of a chunk too (``ExampleRules``).
        bos_token_id: an example of an item that begins with this token begins with it too. Give the tokenizer's: models that
            learned with a BOS, as Gemma, lose half a nat without it.
    """

    def __init__(
        self,
        train_length: int | str,
        target_length: int | str,
        *,
        positions: Positions | None = None,
        seed: int = 0,
        train_chunk_starts: bool = False,
        bos_token_id: int | None = None,
    ) -> None:
        super().__init__(target_length)
        at_least("seed", seed, 0)
        lengths = parse_length(train_length), parse_length(target_length)
        self.rules = ExampleRules(*lengths, positions or Positions(), train_chunk_starts)
        self.seed, self.bos_token_id = seed, bos_token_id
        self._epoch = shared_epoch(_UNKNOWN)

    def set_epoch(self, epoch: int) -> None:
        """Change to the positions of an epoch; workers that are running see it too."""
        self._epoch.fill_(epoch)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start with the Trainer's epoch, and watch the model's inputs."""
        self.set_epoch(int(state.epoch or 0))
        rules = self.rules.positions
        one_chunk = rules.scheme == "pose" and (rules.chunks == 1 or rules.no_skip_share == 1)
        if rules.scheme not in ("full_length", "no_skip") and not one_chunk:
            super().on_train_begin(args, state, control, model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.set_epoch(int(self._epoch) + 1)

    def __call__(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        """Return the batch of ``items``; a DataError refuses an item that is too short or padded."""
        if int(self._epoch) == _UNKNOWN:
            raise RecipeError(
                "PoseCollator does not know the epoch, which decides the positions; give it to the Trainer as "
                "callbacks=[collator] too, or call collator.set_epoch(epoch) before each pass over the data"
            )
        rows = [_tokens_and_labels(item) for item in items]
        hashes = [hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=8).digest() for tokens, _ in rows]
        ids = np.array([int.from_bytes(digest, "little") for digest in hashes], dtype=np.uint64)
        rng = Rng.of(self.seed, int(self._epoch), ids)
        aims = draw_aims(rng, [labels != IGNORED for _, labels in rows])
        plans = self.rules.plan(rng, np.array([len(tokens) for tokens, _ in rows]), aims)
        places = plans.content_indices()
        begun = [tokens[0] == self.bos_token_id for tokens, _ in rows]
        places[:, 0] = np.where(begun, 0, places[:, 0])
        tokens, labels = (
            np.stack([row[column][place] for row, place in zip(rows, places, strict=True)]) for column in (0, 1)
        )
        columns = {
            "input_ids": tokens,
            "position_ids": plans.position_ids(),
            "labels": self.rules.trained(places, labels),
            "attention_mask": np.ones_like(tokens),
        }
        return {name: torch.from_numpy(column) for name, column in columns.items()}


def _tokens_and_labels(item: Item) -> tuple[np.ndarray, np.ndarray]:
    """Return an item's token ids and labels, both int64 [tokens]."""
    if "input_ids" not in item:
        raise DataError(f"an item has no input_ids, but {', '.join(item) or 'no field'}; tokenise the text first")
    tokens = token_ids(item["input_ids"], "input_ids of an item")
    labels = tokens if item.get("labels") is None else token_ids(item["labels"], "labels of an item")
    if len(labels) != len(tokens):
        raise DataError(f"an item has {len(tokens):,} input_ids and {len(labels):,} labels; give one for each token")
    if padding := int(np.sum(np.asarray(item.get("attention_mask")) == 0)):  # 0 without a mask
        raise DataError(f"an item has {padding:,} tokens of padding, which would be trained; tokenise without padding")
    return tokens, labels

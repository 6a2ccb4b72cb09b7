"""Tokens that a user has already -> training examples, inside any Trainer or DataLoader."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from skipwise.data.examples import shared_epoch
from skipwise.data.text import IGNORED, token_ids
from skipwise.data.windows import ExampleRules, draw_aims
from skipwise.errors import DataError, RecipeError, at_least
from skipwise.method.lengths import parse_length
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions
from skipwise.training.require_positions import RequirePositions

_UNKNOWN = -1  # the epoch, before anyone has set it

Item = Mapping[str, Any]


class PoseCollator(RequirePositions):
    """Turn tokenised documents into PoSE examples: the ``data_collator`` of a Trainer, and one of its callbacks.

    Example::

        collator = PoseCollator(train_length="4k", target_length="32k")
        model = load_model(name, plan_extension(load_config(name), target_length="32k", interpolation="yarn"))
        trainer = Trainer(model, arguments, train_dataset=tokenised, data_collator=collator, callbacks=[collator])
        trainer.train()

    An item is a mapping with ``input_ids``, a list, array or tensor of at least ``train_length`` token ids without
    padding, and perhaps ``labels`` of the same length, with -100 for labels that are not trained. Of a long
    item chunks are drawn as in ``PoseDataset``: around a label that is trained, if some are not. An item with labels of -100 alone trains nothing. The
    batch holds int64 tensors [items, tokens]: ``input_ids``, ``position_ids``, ``labels``, ``attention_mask`` (all ones). Other
    fields are dropped.

    What is drawn for an item is a pure function of (seed, epoch, a hash of its ``input_ids``). So the order of the
    items, the batch, the worker, the rank and a resume change nothing, and nothing has to be saved. Two items with the
    same tokens get the same positions within an epoch.

    A collator cannot see the epoch. Under a Trainer, ``callbacks=[collator]`` sets it; in other loops call ``set_epoch``
    before each pass over the data, as for ``torch.utils.data.DistributedSampler``. Without it the first batch is an
    error, so that positions never repeat unnoticed. As a callback it also stops a run if batches reach the model without
    these positions (``RequirePositions``). With an iterable data set each pass is an epoch, and a resume after
    the first pass is not exact, because a Trainer does not restore the pass. A Trainer uses this collator for evaluation
    too, where positions then change with the epoch.

    Args:
        train_length: L_c in tokens, as 2048 or "2k".
        target_length: L_t in tokens.
        positions: the scheme and its options; default: PoSE with two chunks.
        seed: of all examples.
        train_chunk_starts: train the first label of a chunk too (``ExampleRules``).

    Raises:
        SkipwiseError: no plan fits the lengths, or the options leave nothing to train.
    """

    def __init__(
        self,
        train_length: int | str,
        target_length: int | str,
        *,
        positions: Positions | None = None,
        seed: int = 0,
        train_chunk_starts: bool = False,
    ) -> None:
        super().__init__(target_length)
        at_least("seed", seed, 0)
        lengths = parse_length(train_length), parse_length(target_length)
        self.rules = ExampleRules(*lengths, positions or Positions(), train_chunk_starts)
        self.seed = seed
        self._epoch = shared_epoch(_UNKNOWN)

    def set_epoch(self, epoch: int) -> None:
        """Change to the positions of an epoch; workers that are running see it too."""
        self._epoch.fill_(epoch)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start with the epoch in which the Trainer starts or resumes, and watch what reaches the model."""
        self.set_epoch(int(state.epoch or 0))
        rules = self.rules.positions
        whole = rules.scheme == "pose" and (rules.chunks == 1 or rules.no_skip_share == 1)  # others take no such option
        if rules.scheme not in ("full_length", "no_skip") and not whole:
            super().on_train_begin(args, state, control, model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.set_epoch(int(self._epoch) + 1)

    def __call__(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        """Return the batch of ``items``.

        Raises:
            RecipeError: the epoch is not set.
            DataError: an item has no ``input_ids``, is too short or padded, or its ``labels`` do not fit.
        """
        if int(self._epoch) == _UNKNOWN:
            raise RecipeError(
                "PoseCollator does not know the epoch, which decides the positions; give it to the Trainer as "
                "callbacks=[collator] too, or call collator.set_epoch(epoch) before each pass over the data"
            )
        if not items:
            raise DataError("PoseCollator got a batch of no items; give it at least one")
        rows = [_tokens_and_labels(item) for item in items]
        hashes = [hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=8).digest() for tokens, _ in rows]
        ids = np.array([int.from_bytes(digest, "little") for digest in hashes], dtype=np.uint64)
        rng = Rng.of(self.seed, int(self._epoch), ids)
        aims = draw_aims(rng, [labels != IGNORED for _, labels in rows])
        plans = self.rules.plan(rng, np.array([len(tokens) for tokens, _ in rows]), aims)
        places = plans.content_indices()
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
        raise DataError(f"an item has the fields {', '.join(item) or 'none'}, not input_ids; tokenise the text first")
    tokens = token_ids(item["input_ids"], "input_ids of an item")
    labels = tokens if item.get("labels") is None else token_ids(item["labels"], "labels of an item")
    if len(labels) != len(tokens):
        raise DataError(
            f"an item has {len(tokens):,} input_ids and {len(labels):,} labels; give one label for each token"
        )
    padding = int(np.sum(np.asarray(item.get("attention_mask")) == 0))  # 0 without a mask
    if padding:
        raise DataError(
            f"an item of {len(tokens):,} tokens has {padding:,} of padding (attention_mask 0), which would be trained as "
            "text; tokenise without padding"
        )
    return tokens, labels

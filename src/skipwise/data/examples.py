"""Token store + plan -> training examples, for any Trainer or plain loop.

An example is a pure function of (seed, epoch, index): nothing is sampled before training and nothing cached,
so positions are new in every epoch and the same on every worker, rank and machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from skipwise.data.passkey import training_passkey
from skipwise.data.tokenising import build_token_store
from skipwise.data.tokens import TokenStore, keep_long, split_by_name
from skipwise.errors import DataError
from skipwise.keys import Keys
from skipwise.lengths import parse_length
from skipwise.positions import SCHEMES, Plans
from skipwise.recipe import Positions

IGNORED = -100  # the label that transformers and torch leave out of the loss

# Draw numbers of what is chosen before the plan; far above those that a plan uses.
_DOCUMENT, _ORIGIN, _PASSKEY = 2**40, 2**40 + 1, 2**40 + 2

Example = dict[str, np.ndarray]


class PoseDataset(torch.utils.data.Dataset[Example]):
    """Examples of ``train_length`` tokens whose positions reach up to ``target_length``.

    A document is drawn with a chance in proportion to its tokens, then a span of it as long as the target
    (or the whole document, where it is shorter), then the plan, whose content offsets v_i count inside the
    span: a long document is a source of many spans.

    Each item holds int64 arrays [tokens]: ``input_ids``, ``position_ids``, ``labels``, ``attention_mask``.
    The mask is all ones and must reach the model: without it, and without a cache, transformers takes a jump
    of the positions for the border of a packed document and cuts attention there.

    Args:
        store: the tokens.
        documents: indices into the store of the documents to draw from, each of at least ``train_length``.
        train_length: L_c in tokens.
        target_length: L_t in tokens.
        tokenizer: builds passkey prompts; needed where ``passkey`` is above 0.
        positions: the scheme and its options; PoSE with two chunks by default.
        examples: the length of the data set; default: the documents' tokens over ``train_length``.
        seed: of the whole sequence of examples.
        train_jumps: keep the label of a token whose text does not follow on the token before it.
        min_context: leave out the label of a token before which fewer tokens of its own text stand.
        passkey: the share of examples that end in a passkey prompt no longer than ``train_length``.

    Raises:
        DataError: no documents, or one shorter than an example.
    """

    def __init__(
        self,
        store: TokenStore,
        documents: np.ndarray,
        *,
        train_length: int,
        target_length: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        positions: Positions | None = None,
        examples: int | None = None,
        seed: int = 0,
        train_jumps: bool = False,
        min_context: int = 0,
        passkey: float = 0.0,
    ) -> None:
        if len(documents) == 0:
            raise DataError("no document is left to train on; give more text, or lower data.min_tokens")
        self.store, self.documents, self.tokenizer = store, np.asarray(documents), tokenizer
        self.train_length, self.target_length = train_length, target_length
        self.positions = positions or Positions()
        self.seed, self.train_jumps, self.passkey = seed, train_jumps, passkey
        self.min_context = min_context
        self._lengths = store.lengths[self.documents]
        self._ends = np.cumsum(self._lengths)
        self._examples = int(self._ends[-1]) // train_length if examples is None else examples
        # Shared memory, so that workers which outlive an epoch see the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        # What no plan can meet is said here, by the shortest document, and not in a worker.
        shortest = np.minimum(self._lengths.min(keepdims=True), target_length)
        self._plan(Keys.of(seed, 0, 0), shortest)
        _check_options(train_length, self.positions.chunks, passkey, tokenizer, min_context)

    @classmethod
    def from_source(
        cls,
        source: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_length: int | str,
        target_length: int | str,
        held_out: float = 0.0,
        tokenising: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "PoseDataset":
        """Tokenise ``source`` (cached) and keep what is long enough, less the share held out by name.

        ``tokenising`` are options of ``skipwise.data.tokenising.build_token_store``, as ``{"text_field": "body"}``, the
        others those of the class.
        """
        tokens = parse_length(train_length)
        store = build_token_store(str(source), tokenizer, **(tokenising or {}))
        train, _ = split_by_name(store, held_out)
        kept = np.intersect1d(train, keep_long(store, tokens))
        return cls(
            store,
            kept,
            train_length=tokens,
            target_length=parse_length(target_length),
            tokenizer=tokenizer,
            **options,
        )

    def __len__(self) -> int:
        return self._examples

    def set_epoch(self, epoch: int) -> None:
        """Move on to other documents, spans and positions; Trainer and Accelerate call this by themselves."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Build the examples ``indices`` in one vectorised batch; the loader of torch calls this."""
        outside = [i for i in indices if not 0 <= i < len(self)]
        if outside:
            raise IndexError(f"example {outside[0]} is not in 0..{len(self) - 1}")
        spans, origins, keys = self._spans(np.asarray(indices))
        plans = self._plan(keys, spans)
        rows = origins[:, None] + plans.content_indices()
        input_ids = self.store.tokens[rows].astype(np.int64)
        labels = np.where(self._left_out(rows), IGNORED, input_ids)
        for row in np.flatnonzero(keys.uniform(_PASSKEY) < self.passkey):
            self._write_passkey(int(indices[int(row)]), origins[row], input_ids[row], labels[row])
        return [
            {"input_ids": i, "position_ids": p, "labels": y, "attention_mask": np.ones_like(i)}
            for i, p, y in zip(input_ids, plans.position_ids(), labels, strict=True)
        ]

    def plans(self, indices: np.ndarray) -> Plans:
        """The position plans of the examples ``indices`` [examples], without their text."""
        spans, _, keys = self._spans(indices)
        return self._plan(keys, spans)

    def _spans(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Keys]:
        """The span of each example: its tokens, and where it begins in the store, both int64 [examples]."""
        keys = Keys.of(self.seed, int(self._epoch), indices)
        place = keys.integers(_DOCUMENT, 0, int(self._ends[-1]) - 1)
        chosen = np.searchsorted(self._ends, place, side="right")
        spans = np.minimum(self._lengths[chosen], self.target_length)
        origins = keys.integers(_ORIGIN, 0, self._lengths[chosen] - spans)
        return spans, self.store.offsets[self.documents[chosen]] + origins, keys

    def _plan(self, keys: Keys, spans: np.ndarray) -> Plans:
        rule = self.positions
        return SCHEMES[rule.scheme](
            keys,
            self.train_length,
            self.target_length,
            spans,
            chunks=rule.chunks,
            lengths=rule.lengths,
            skips=rule.skips,
            content=rule.content,
        )

    def _left_out(self, rows: np.ndarray) -> np.ndarray:
        """Which labels are not trained, bool [examples, tokens]; ``rows`` are the tokens' places in the store."""
        begins = np.ones(rows.shape, dtype=bool)
        begins[:, 1:] = np.diff(rows, axis=1) != 1
        place = np.arange(rows.shape[1])
        context = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        left_out = context < self.min_context
        if not self.train_jumps:
            left_out[:, 1:] |= begins[:, 1:]
        return left_out

    def _write_passkey(self, index: int, origin: int, input_ids: np.ndarray, labels: np.ndarray) -> None:
        """Put contiguous text and then a passkey prompt with its answer into one example, in place."""
        assert self.tokenizer is not None
        rng = np.random.default_rng([self.seed, int(self._epoch), index])
        prompt = training_passkey(self.tokenizer, len(input_ids), rng)
        text = len(input_ids) - len(prompt)
        input_ids[:text] = self.store.tokens[origin : origin + text]
        input_ids[text:] = prompt
        labels[:] = input_ids
        labels[: min(text, self.min_context)] = IGNORED
        if not self.train_jumps:
            labels[text] = IGNORED


def _check_options(
    train_length: int,
    chunks: int,
    passkey: float,
    tokenizer: PreTrainedTokenizerBase | None,
    min_context: int,
) -> None:
    if train_length < 4 * chunks:
        raise DataError(
            f"train length {train_length:,} is too short for {chunks} chunks: at least {4 * chunks:,} tokens, "
            "so that there is something to predict inside a chunk"
        )
    if min_context * chunks >= train_length:  # the longest chunk has at least train_length / chunks tokens
        raise DataError(
            f"min_context {min_context:,} may leave no label of {train_length:,} tokens in {chunks} chunks; it must be "
            f"below {train_length / chunks:g}"
        )
    if not 0 <= passkey <= 1:
        raise DataError(f"passkey = {passkey:g} must lie in 0..1, a share of the examples")
    if passkey and tokenizer is None:
        raise DataError(f"passkey = {passkey:g} needs the tokenizer that the prompts are written with")
    if passkey and tokenizer is not None:
        training_passkey(tokenizer, train_length, np.random.default_rng(0))


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Stack examples of one length into a batch of int64 tensors [examples, tokens]."""
    return {key: torch.from_numpy(np.stack([example[key] for example in examples])) for key in examples[0]}

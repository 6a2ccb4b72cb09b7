"""LongPPL: perplexity of the key tokens alone, those that a model predicts well with far text and badly without.

Fang et al., "What is Wrong with Perplexity for Long-context Language Modeling?", ICLR 2025, equations 4 to 7. With the loss of
token i after all of the text before it, L_i, and after a short context alone, S_i, both in nats by one model, the evaluator:

    key tokens:  S_i - L_i > gain  and  L_i < most            (gain = 2 and most = 2, as published)
    LongPPL = exp(mean over the key tokens of a model's loss after all of the text)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skipwise.results.records import ReadingRecord
from skipwise.results.statistics import Interval, mean_interval
from skipwise.results.token_losses import TokenLosses

GAIN = 2.0  # nats, published as alpha
MOST = 2.0  # nats, published as -beta

Read = Callable[[ReadingRecord], TokenLosses | None]


@dataclass(frozen=True)
class KeyTokens:
    """The key tokens of one document, among its targets."""

    tokens: np.ndarray  # int32 [targets], all of them
    key: np.ndarray  # bool [targets]
    candidates: int  # targets with more text before them in the long window than in the short one


@dataclass(frozen=True)
class LongPerplexity:
    """LongPPL of one model, with its 95% interval over documents, and the perplexity of all candidates."""

    key: Interval
    every: Interval


def is_key(short: np.ndarray, full: np.ndarray, gain: float = GAIN, most: float = MOST) -> np.ndarray:
    """Which tokens are key, bool [tokens], by their losses in nats after a short context and after all of the text."""
    return (short - full > gain) & (full < most)


def key_tokens(
    short: Sequence[ReadingRecord], full: Sequence[ReadingRecord], read: Read, gain: float = GAIN, most: float = MOST
) -> dict[str, KeyTokens]:
    """Choose the key tokens of each document by one model's readings in short windows and in long ones.

    What the first short window scores has the same text before it in both. A document of which ``read`` does not know both
    losses is left out.
    """
    before = {reading.document: reading for reading in short}
    chosen = {}
    for reading in full:
        other = before.get(reading.document)
        near, far = read(other) if other else None, read(reading)
        if other is None or near is None or far is None or not np.array_equal(near.tokens, far.tokens):
            continue
        key = is_key(near.nll, far.nll, gain, most)
        key[: other.window - 1] = False
        chosen[reading.document] = KeyTokens(far.tokens, key, len(key[other.window - 1 :]))
    return chosen


def long_perplexity(
    readings: Sequence[ReadingRecord], key: Mapping[str, KeyTokens], read: Read
) -> LongPerplexity | None:
    """LongPPL of a model at ``key`` tokens; None where there are none, or it read other tokens in one of their documents."""
    parts = []
    readings = [reading for reading in readings if reading.document in key]
    for reading in readings:
        losses, chosen = read(reading), key[reading.document]
        if losses is None or not np.array_equal(losses.tokens, chosen.tokens):
            return None
        nll = losses.nll.astype(np.float64)
        candidates = nll[len(nll) - chosen.candidates :]
        parts.append((nll[chosen.key].sum(), chosen.key.sum(), candidates.sum(), len(candidates)))
    if not sum(keys for _, keys, _, _ in parts):
        return None
    documents = [reading.document for reading in readings]
    totals, keys, all_totals, candidates_of = zip(*parts, strict=True)
    return LongPerplexity(
        mean_interval(totals, keys, documents).exp(), mean_interval(all_totals, candidates_of, documents).exp()
    )

"""Conversations shorter than a window -> one window of several: none attends to another, and positions skip between turns alone.

A window begins with one conversation and goes on with others, each drawn with a chance in proportion to its tokens; the last one is cut
off. Positions begin at 0 in each, and skip where the assistant has ended a turn, as PoSE's chunks do:

    u_1 ~ U{0..L_t - n}, u_i ~ U{u_i-1..L_t - n}, for n tokens of a conversation (Zhu et al., "PoSE", section 3.2)
"""

from dataclasses import dataclass

import numpy as np
import torch

from skipwise.data.store import TokenStore
from skipwise.recipes.schema import Positions


@dataclass(frozen=True)
class Packed:
    """One window; all arrays are int64 [tokens]."""

    rows: np.ndarray  # places in the store's tokens
    positions: np.ndarray
    places: np.ndarray  # in the own conversation
    texts: np.ndarray  # the number of the conversation in the window, from 1


def pack(
    store: TokenStore,
    documents: np.ndarray,
    first: int,
    train_length: int,
    target_length: int,
    rules: Positions,
    rng: np.random.Generator,
) -> Packed:
    """Fill a window with the conversation ``first`` and others of ``documents``, both indices into the store."""
    ends = np.cumsum(store.lengths[documents])
    parts: list[tuple[int, int, np.ndarray]] = []
    chosen, left = first, train_length
    while left:
        tokens = min(int(store.lengths[chosen]), left)
        begin = int(store.offsets[chosen])
        parts.append((begin, tokens, _positions(_turns(store, chosen, tokens), tokens, target_length, rules, rng)))
        left -= tokens
        chosen = int(documents[np.searchsorted(ends, rng.integers(ends[-1]), side="right")])
    return Packed(
        rows=np.concatenate([np.arange(begin, begin + tokens) for begin, tokens, _ in parts]),
        positions=np.concatenate([positions for _, _, positions in parts]),
        places=np.concatenate([np.arange(tokens) for _, tokens, _ in parts]),
        texts=np.repeat(np.arange(1, len(parts) + 1), [tokens for _, tokens, _ in parts]),
    )


def can_skip(store: TokenStore, documents: np.ndarray) -> np.ndarray:
    """Return which conversations have a place where positions may skip, bool [documents]: not those of one question and answer."""
    return np.array([len(_turns(store, index, int(store.lengths[index]))) > 0 for index in documents], dtype=bool)


def _turns(store: TokenStore, document: int, tokens: int) -> np.ndarray:
    """Where in the first tokens of a conversation the assistant has ended a turn and another one follows: int64 [turns]."""
    begin, end = store.offsets[document], store.offsets[document + 1]
    low, high = np.searchsorted(store.context[:, 0], [begin + 1, begin + tokens])
    spans = store.context[low:high]
    return spans[spans[:, 1] < end, 0] - begin  # the last turn has none after it


def _positions(
    turns: np.ndarray, tokens: int, target_length: int, rules: Positions, rng: np.random.Generator
) -> np.ndarray:
    """Return the positions of one conversation's tokens, int64 [tokens]; they skip where the assistant ended a turn.

    Of the rules ``scheme``, ``chunks`` and ``contiguous`` apply: no skips under another scheme than ``pose``, and at
    most ``chunks`` - 1 of them. ``lengths``, ``skips`` and ``content`` are passed over in silence: chunks end at turns,
    skips are drawn by the formula above, and the tokens are those of the conversation in order.
    """
    positions = np.arange(tokens)
    if rules.scheme != "pose" or not len(turns) or rng.random() < rules.no_skip_share:
        return positions
    skips = min(rules.chunks - 1, len(turns))
    low = 0
    for turn in np.sort(rng.choice(turns, skips, replace=False)):
        skip = int(rng.integers(low, target_length - tokens + 1))
        positions[turn:] += skip - low
        low = skip
    return positions


def apart(texts: torch.Tensor) -> torch.Tensor:
    """Return the mask of causal attention inside each text of a window, bool [examples, 1, tokens, tokens].

    ``texts`` int64 [examples, tokens] are the numbers of the texts. Stock models take such a mask.
    """
    same = texts[:, None, :, None] == texts[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=texts.device).tril()

"""Cut windows from documents: the plan of chunks, the loss tokens, and how short conversations share a window.

Where only some tokens are trained, nearly all windows of a long document would hold none. So a trained token is drawn first,
each with the same chance, and the chunks are moved until one holds it: the last one that can train a token.

A conversation shorter than a window is packed: others follow it, each drawn with a chance in proportion to its tokens, and
the last one is cut off. None attends to another. Positions begin at 0 in each, and skip where the assistant has ended a turn,
as PoSE's chunks do:

    u_1 ~ U{0..L_t - n}, u_i ~ U{u_i-1..L_t - n}, for n tokens of a conversation (Zhu et al., "PoSE", section 3.2)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skipwise.data.store import TokenStore
from skipwise.data.text import IGNORED
from skipwise.method.positions import SCHEMES, Plans
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions

NOWHERE = -1  # the aim of an example that may begin anywhere
_TOKEN, _BEFORE = 2**40 + 8, 2**40 + 9  # draw numbers, besides those of skipwise.data.examples


@dataclass(frozen=True)
class ExampleRules:
    """Rules of examples: the plan of chunks, and the loss tokens.

    The first label of a chunk is predicted from a token that does not precede it in the document; ``train_chunk_starts``
    trains it.
    """

    train_length: int
    target_length: int
    positions: Positions
    train_chunk_starts: bool = False

    def __post_init__(self) -> None:
        self.plan(Rng.of(0, 0, 0), np.array([self.target_length]))  # refuses rules that do not fit the lengths

    def plan(self, rng: Rng, lengths: np.ndarray, aims: np.ndarray | None = None) -> Plans:
        """Draw the plan of each example, from documents of ``lengths`` tokens, int64 [examples].

        ``aims`` int64 [examples] are places that the examples of long documents must hold (``aim``).
        """
        scheme = SCHEMES[self.positions.scheme]
        plans = scheme(rng, self.train_length, self.target_length, lengths, self.positions.rules)
        return plans if aims is None else aim(rng, plans, aims, lengths)

    def trained(self, places: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return ``labels`` [examples, tokens] with ``IGNORED`` where they are not trained.

        ``places`` int64 [examples, tokens] are the tokens' places in their documents.
        """
        if self.train_chunk_starts:
            return labels.copy()
        jumps = np.zeros(places.shape, dtype=bool)
        jumps[:, 1:] = np.diff(places, axis=1) != 1
        return np.where(jumps, IGNORED, labels)


# --- windows around trained tokens ---


class Answers:
    """Where the trained tokens of a store are, if its documents also have tokens that are not trained."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        begins = np.sort(np.concatenate([store.offsets[:-1], store.context[:, 1]]))
        ends = np.sort(np.concatenate([store.context[:, 0], store.offsets[1:]]))
        first = np.searchsorted(store.context[:, 0], store.offsets)  # of the spans of context of each document
        self._spans = np.diff(first)
        # A document has one run of trained tokens more than it has spans of context; a run may be empty.
        runs = first + np.arange(len(first))
        earliest = np.repeat(store.offsets[:-1] + 1, np.diff(runs))  # nothing predicts a first token
        self._begins = np.minimum(np.maximum(begins, earliest), ends)
        self._trained = np.concatenate([[0], np.cumsum(ends - self._begins)])  # tokens before each run, and all
        self._before = self._trained[runs]  # and before each document

    @property
    def counts(self) -> np.ndarray:
        """How many tokens of each document are trained: int64 [documents]."""
        return np.diff(self._before)

    def draw(self, rng: Rng, documents: np.ndarray) -> np.ndarray:
        """Draw a trained token of each document: its place there, or ``NOWHERE`` if all tokens are trained; int64 [examples]."""
        drawn = rng.integers(_TOKEN, self._before[documents], self._before[documents + 1] - 1)
        run = np.searchsorted(self._trained, drawn, side="right") - 1
        place = self._begins[run] + drawn - self._trained[run]
        return np.where(self._spans[documents] > 0, place - self.store.offsets[documents], NOWHERE)


def draw_aims(rng: Rng, trained: Sequence[np.ndarray]) -> np.ndarray:
    """Draw a trained token of each document, its place, or ``NOWHERE`` if all or none are trained; int64 [examples].

    ``trained`` are bool [tokens] of each document. Its first token is not drawn.
    """
    places = [1 + np.flatnonzero(flags[1:]) for flags in trained]
    drawn = rng.integers(_TOKEN, 0, np.array([max(len(tokens) - 1, 0) for tokens in places]))
    return np.array(
        [
            tokens[number] if 0 < len(tokens) < len(flags) - 1 else NOWHERE
            for tokens, number, flags in zip(places, drawn, trained, strict=True)
        ]
    )


def aim(rng: Rng, plans: Plans, aims: np.ndarray, lengths: np.ndarray) -> Plans:
    """Move the text of each example so that it holds the token at its aim, after another token of its chunk.

    The chunk is the last of more than one token. All chunks move as far, but not beyond the document's ends. Positions
    and contiguous text stay so.

    Args:
        rng: one generator per example.
        plans: the plans.
        aims: places in the documents, at least 1, or ``NOWHERE``, int64 [examples].
        lengths: the documents' lengths in tokens, int64 [examples].
    """
    chunks, tokens = plans.lengths.shape[1], plans.lengths.sum(axis=1)
    example = np.arange(len(aims))
    whole = (plans.offsets == plans.offsets[:, :1]).all(axis=1)
    chosen = chunks - 1 - np.argmax((plans.lengths > 1)[:, ::-1], axis=1)
    starts = np.cumsum(plans.lengths, axis=1) - plans.lengths
    start = np.where(whole, 0, starts[example, chosen])
    size = np.where(whole, tokens, plans.lengths[example, chosen])
    before = rng.integers(_BEFORE, np.minimum(1, size - 1), size - 1)
    shift = aims - before - start - plans.offsets[example, chosen]
    moved = np.clip(plans.offsets + shift[:, None], 0, (lengths - tokens)[:, None])
    return Plans(plans.lengths, plans.skips, np.where((aims != NOWHERE)[:, None], moved, plans.offsets))


# --- several conversations in a window ---


@dataclass(frozen=True)
class Packed:
    """A window of conversations; all arrays are int64 [tokens]."""

    rows: np.ndarray  # places in the store's tokens
    positions: np.ndarray
    places: np.ndarray  # in the own conversation
    texts: np.ndarray  # the number of the conversation in the window, from 1


def pack(store: TokenStore, documents: np.ndarray, first: int, rules: ExampleRules, rng: np.random.Generator) -> Packed:
    """Fill a window with the conversation ``first`` and others of ``documents``, both indices into the store."""
    ends = np.cumsum(store.lengths[documents])
    parts: list[tuple[int, int, np.ndarray]] = []
    chosen, left = first, rules.train_length
    while left:
        tokens = min(int(store.lengths[chosen]), left)
        positions = _positions(_turns(store, chosen, tokens), tokens, rules.target_length, rules.positions, rng)
        parts.append((int(store.offsets[chosen]), tokens, positions))
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

    Of the rules ``scheme``, ``chunks`` and ``no_skip_share`` apply: no skips under another scheme than ``pose``, and at
    most ``chunks`` - 1 of them. ``lengths``, ``skips`` and ``content`` do not: chunks end at turns, skips are drawn by the
    module's formula, and the tokens are those of the conversation in order.
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

"""Token store + plan -> training examples, for any Trainer or training loop.

An example is a pure function of (seed, epoch, index). Nothing is sampled before training and nothing is cached, so
positions are new in every epoch, and the same on every worker, rank and machine.

Where only some tokens are trained, nearly all windows of a long document would hold none. So a trained token is drawn first,
each with the same chance, and the chunks are moved until one holds it: the last one that can train a token.

A conversation shorter than a window is packed: others follow it, each drawn with a chance in proportion to its tokens, and
the last one is cut off. None attends to another. Positions begin at 0 in each, and skip where the assistant has ended a turn,
as PoSE's chunks do:

    u_1 ~ U{0..L_t - n}, u_i ~ U{u_i-1..L_t - n}, for n tokens of a conversation (Zhu et al., "PoSE", section 3.2)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import default_collate
from transformers import PreTrainedTokenizerBase

from skipwise.data.store import TokenStore, build_token_store, split_documents
from skipwise.data.text import IGNORED
from skipwise.errors import DataError, counted
from skipwise.method.lengths import parse_length
from skipwise.method.positions import SCHEMES, Plans
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Data, Positions

NOWHERE = -1  # the aim of an example that may begin anywhere
_DOCUMENT, _TOKEN, _BEFORE = 2**40, 2**40 + 8, 2**40 + 9  # draw numbers, far above those of a plan
Example = dict[str, np.ndarray]


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


class PoseDataset(torch.utils.data.Dataset[Example]):
    """Examples of ``train_length`` tokens with positions up to ``target_length``.

    An example draws a document with a chance in proportion to its tokens, then the plan. Its first token is the BOS, if the
    document begins with one: models that learned with it, as Gemma, lose half a nat without it.

    Each item holds int64 arrays [tokens]: ``input_ids``, ``position_ids``, ``labels``, ``attention_mask``. The mask is
    all ones and must reach the model: without a mask and a cache, transformers takes a jump of the positions for the
    start of a new packed document and cuts attention there.

    In an example of several packed conversations the mask has the number of each token's conversation; ``collate`` makes a
    mask from it that keeps them apart.

    Example::

        model = load_model(name, plan_extension(load_config(name), target_length="32k", interpolation="yarn"))
        data = PoseDataset.from_source("corpus/", load_tokenizer(name), train_length="4k", target_length="32k")
        Trainer(model, TrainingArguments("out"), train_dataset=data, data_collator=collate).train()

    Args:
        documents: indices into ``store``; of at least ``train_length`` tokens, unless they are conversations.
        train_length: L_c in tokens, as 2048 or "2k".
        target_length: L_t in tokens.
        positions: the scheme and its options; default: PoSE with two chunks.
        data: what is trained of the text (``assistant_only_loss``, ``train_chunk_starts``); default: all. Documents without
            a loss token are left out. Its other settings are for ``from_source``.
        examples: the length of the data set; default: the documents' tokens / ``train_length``.

    Raises:
        DataError: there are no documents, or one is shorter than an example, or the options leave nothing to train.
        RecipeError: a length breaks its rule.
    """

    def __init__(
        self,
        store: TokenStore,
        documents: np.ndarray,
        *,
        train_length: int | str,
        target_length: int | str,
        positions: Positions | None = None,
        data: Data | None = None,
        examples: int | None = None,
        seed: int = 0,
    ) -> None:
        data = data or Data()
        lengths = parse_length(train_length), parse_length(target_length)
        self.rules = ExampleRules(*lengths, positions or Positions(), data.train_chunk_starts)
        self.store, self.documents, self.seed = store, np.asarray(documents, dtype=np.int64), seed
        self._without_context = data.assistant_only_loss or store.labelled
        self._answers = Answers(store) if self._without_context and len(store.context) else None
        if self._answers:
            self.documents = self.documents[self._answers.counts[self.documents] > 0]
        if not len(self.documents):
            raise DataError(
                f"none of {counted(len(documents), 'document')} has a loss token after its first; give more text, longer answers, "
                "or labels that are not all -100"
            )
        self._lengths = store.lengths[self.documents]
        self._bos = store.tokens[store.offsets[self.documents]] == (-1 if store.bos is None else store.bos)
        self._ends = np.cumsum(self._lengths)
        self._examples = int(self._ends[-1]) // lengths[0] if examples is None else examples
        if not self._examples:
            raise DataError(
                f"{int(self._ends[-1]):,} tokens of text are fewer than one example of {lengths[0]:,}; give more text, or set "
                "examples"
            )
        self._epoch = shared_epoch()
        self._short = (self._lengths < lengths[0]) & store.holds_conversations
        if self._short.any() and (scheme := self.rules.positions.scheme) not in ("pose", "no_skip"):
            raise DataError(
                f"{counted(int(self._short.sum()), 'document')} of fewer than {lengths[0]:,} tokens can be packed under pose and "
                f"no_skip, not under {scheme}; set data.min_tokens={lengths[0]} to leave them out"
            )
        # A document that is too short for a plan is reported here, not in a worker.
        shortest = self._lengths[~self._short].min(initial=lengths[1], keepdims=True)
        self.rules.plan(Rng.of(seed, 0, 0), shortest)
        if data.assistant_only_loss and not len(store.context):
            raise DataError(
                "assistant_only_loss trains the assistant's turns, and this text has no conversation; leave it "
                "out, or give records with messages"
            )

    @classmethod
    def from_source(
        cls,
        source: str | Path | Data,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_length: int | str,
        target_length: int | str,
        positions: Positions | None = None,
        examples: int | None = None,
        seed: int = 0,
    ) -> "PoseDataset":
        """Tokenise a source (cached), and draw from its documents that are not held out.

        A document has at least as many tokens as a window, ``train_length`` (the target under the scheme ``full_length``), or
        ``min_tokens``, if that is more. Conversations may be shorter. Of a file, folder, data set or ``stdlib`` a tenth of the
        documents is held out by name; a ``Data`` has its own share. The other arguments are those of the class.

        Raises:
            DataError: the text cannot be read, or no document of it is left to train on; and what the class raises.
        """
        data, whole = Data.of(source), (positions or Positions()).scheme == "full_length"
        store = build_token_store(data, tokenizer)
        window = parse_length(target_length if whole else train_length)
        return cls(
            store,
            split_documents(store, data, window, whole=whole).train,
            train_length=train_length,
            target_length=target_length,
            positions=positions,
            data=data,
            examples=examples,
            seed=seed,
        )

    def __len__(self) -> int:
        return self._examples

    def set_epoch(self, epoch: int) -> None:
        """Change to the documents and positions of an epoch, before each pass; in a Trainer ``RequirePositions`` does."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Build the examples ``indices`` in one vectorised batch; torch's DataLoader calls this."""
        if outside := [i for i in indices if not 0 <= i < len(self)]:
            raise IndexError(f"example {outside[0]} is not in 0..{len(self) - 1}")
        chosen, plans = self._drawn(np.asarray(indices))
        positions = plans.position_ids()
        first = self.store.offsets[self.documents[chosen]]
        rows = first[:, None] + plans.content_indices()
        rows[:, 0] = np.where(self._bos[chosen], first, rows[:, 0])
        places, texts = np.tile(np.arange(rows.shape[1]), (len(rows), 1)), np.ones_like(rows)
        for row in np.flatnonzero(self._short[chosen]).tolist():
            # One more word of the seed, so that packing does not repeat another draw.
            rng = np.random.default_rng([self.seed, int(self._epoch), int(indices[row]), 1])
            short = self.documents[self._short]
            rows[row], positions[row], places[row], texts[row] = pack(
                self.store, short, int(self.documents[chosen[row]]), self.rules, rng
            )
        input_ids = self.store.tokens[rows].astype(np.int64)
        labels = self.rules.trained(rows, input_ids)
        labels[(texts > 1) & (places < 1)] = IGNORED  # nothing in a text predicts its first token
        if self._without_context:
            labels[self.store.is_context(rows)] = IGNORED
        columns = {"input_ids": input_ids, "position_ids": positions, "labels": labels, "attention_mask": texts}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(rows))]

    @property
    def trained_tokens(self) -> int | None:
        """How many tokens of the documents are trained; None: all."""
        return int(self._answers.counts[self.documents].sum()) if self._answers else None

    def plans(self, indices: np.ndarray) -> Plans:
        """Return the position plans of the examples ``indices`` [examples]; packed windows have other positions."""
        return self._drawn(indices)[1]

    def _drawn(self, indices: np.ndarray) -> tuple[np.ndarray, Plans]:
        """Draw which of ``documents`` examples are from, int64 [examples], and their plans.

        The plan of a packed example is that of a document of ``train_length``, and is not used.
        """
        rng = Rng.of(self.seed, int(self._epoch), indices)
        place = rng.integers(_DOCUMENT, 0, int(self._ends[-1]) - 1)
        chosen = np.searchsorted(self._ends, place, side="right")
        documents = self.documents[chosen]
        lengths = np.where(self._short[chosen], self.rules.train_length, self._lengths[chosen])
        aims = np.where(self._short[chosen], NOWHERE, self._answers.draw(rng, documents)) if self._answers else None
        return chosen, self.rules.plan(rng, lengths, aims)


def shared_epoch(epoch: int = 0) -> torch.Tensor:
    """Return an epoch number in shared memory, so that DataLoader workers that outlive an epoch see the next one."""
    return torch.tensor(epoch, dtype=torch.int64).share_memory_()


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Stack examples of one length into a batch of int64 tensors [examples, tokens].

    If an example holds several texts, ``attention_mask`` is causal inside each text: bool [examples, 1, tokens, tokens], which
    stock models take.
    """
    batch: dict[str, torch.Tensor] = default_collate(list(examples))
    if "attention_mask" in batch and ((texts := batch["attention_mask"]) > 1).any():
        batch["attention_mask"] = (texts[:, None, :, None] == texts[:, None, None, :]).tril()
    return batch


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

    ``aims`` int64 [examples] are places in the documents, at least 1, or ``NOWHERE``; ``lengths`` are the documents'. The
    chunk is the last of more than one token. All chunks move as far, but not beyond the document's ends. Positions and
    contiguous text stay so.
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


def pack(
    store: TokenStore, documents: np.ndarray, first: int, rules: ExampleRules, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fill a window with the conversation ``first`` and others of ``documents``, both indices into the store.

    Return, each int64 [tokens]: places in the store's tokens, positions, places in the conversation, and the number of the
    conversation in the window, from 1.
    """
    ends = np.cumsum(store.lengths[documents])
    parts: list[tuple[int, int, np.ndarray]] = []
    chosen, left = first, rules.train_length
    while left:
        tokens = min(int(store.lengths[chosen]), left)
        positions = _positions(_turns(store, chosen, tokens), tokens, rules.target_length, rules.positions, rng)
        parts.append((int(store.offsets[chosen]), tokens, positions))
        left -= tokens
        chosen = int(documents[np.searchsorted(ends, rng.integers(ends[-1]), side="right")])
    return (
        np.concatenate([np.arange(begin, begin + tokens) for begin, tokens, _ in parts]),
        np.concatenate([positions for _, _, positions in parts]),
        np.concatenate([np.arange(tokens) for _, tokens, _ in parts]),
        np.repeat(np.arange(1, len(parts) + 1), [tokens for _, tokens, _ in parts]),
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

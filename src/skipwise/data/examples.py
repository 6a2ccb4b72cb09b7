"""Token store + plan -> training examples, for any Trainer or training loop.

An example is a pure function of (seed, epoch, index). Nothing is sampled before training and nothing is cached, so
positions are new in every epoch, and the same on every worker, rank and machine.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from skipwise.data.answer_windows import NOWHERE, Answers
from skipwise.data.cutting import ExampleRules
from skipwise.data.packing import Packed, pack
from skipwise.data.passkey import training_passkey
from skipwise.data.spans import IGNORED
from skipwise.data.store import TokenStore, split_documents
from skipwise.data.tokenising import build_token_store
from skipwise.data.training_prompts import require_room, training_prompt
from skipwise.data.window import Example, Window, one_text
from skipwise.errors import DataError, at_least, counted
from skipwise.method.lengths import parse_length
from skipwise.method.positions import Plans, end_anchored_skips
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Data, Positions, Teacher, require_shares

# Draw numbers; far above those of a plan.
_DOCUMENT, _BEGIN, _PROMPT = 2**40, 2**40 + 1, 2**40 + 2
_PASSKEY, _RETRIEVAL, _OF_THE_BASE = range(3)  # kinds of examples; all others are text
_PACKED = 1  # one more word of the seed, so that what is drawn for packing is not what is drawn for prompts
# Tokens of a text that is joined to another one; behind them the model mostly reads it as if it stood alone.
_SETTLED = 64


class PoseDataset(torch.utils.data.Dataset[Example]):
    """Examples of ``train_length`` tokens whose positions reach up to ``target_length``.

    An example draws a document with a chance in proportion to its tokens, then the plan.

    Each item holds int64 arrays [tokens]: ``input_ids``, ``position_ids``, ``labels``, ``attention_mask``. The mask is
    all ones and must reach the model: without a mask and a cache, transformers takes a jump of the positions for the
    start of a new packed document and cuts attention there.

    Conversations shorter than ``train_length`` are packed (``data.packing``): in an example of several the mask has the number of
    each token's conversation, of which ``collate`` makes a mask that keeps them apart.

    Example::

        model = load_model(name, plan_extension(load_config(name), target_length="32k", interpolation="yarn"))
        data = PoseDataset.from_source("corpus/", load_tokenizer(name), train_length="4k", target_length="32k")
        Trainer(model, TrainingArguments("out"), train_dataset=data, data_collator=collate).train()

    Only the trainer of ``skipwise extend`` applies ``teacher`` and the weights of answers in ``data``; in a Trainer of yours
    leave them out. The share of retrieval prompts goes from ``retrieval`` to ``retrieval_end`` by an example's index, so a Trainer
    that shuffles sees both from the beginning.

    Args:
        store: the tokens.
        documents: indices into the store of the documents to draw from; of at least ``train_length`` tokens, unless they are
            conversations.
        train_length: L_c in tokens, as 2048 or "2k".
        target_length: L_t in tokens.
        tokenizer: writes passkey and retrieval prompts; required if either share is above 0.
        positions: the scheme and its options; default: PoSE with two chunks.
        data: what is trained of the text, and what shares of the examples are prompts: ``passkey``, no longer than
            ``train_length``, and ``retrieval`` (``training_prompts``), whose positions under ``pose`` skip once, anywhere from the
            first fact to the questions. Where answers of these count another number than 1, examples also have
            ``label_weights``, float32 [tokens]. Under ``assistant_only``, and of tokenised data whose labels leave text out,
            prompts train only their answers, every example holds something that is trained (``answer_windows``), and documents
            that have nothing are left out. What says which documents there are (``source``, ``held_out``, ``min_tokens``, ...)
            is for ``from_source``. Default: all text, no prompts.
        teacher: what a teacher's term counts (``skipwise.recipes.schema.Teacher``). Its ``weight`` counts up to the first skip,
            where teacher and student have read the same at the same positions; 0 behind it, and where a prompt follows. With
            one, examples also have ``teacher_weights``, float32 [tokens], and ``teacher_positions``, int64 [tokens], at which
            it reads: a text begins at each 0.
        written: texts to train on without skips, int64 [texts, tokens], as ``skipwise.model.teacher.Teacher.write``
            returns them. The share ``teacher.written`` of the examples is made of them, joined at random to ``train_length``;
            the term counts ``teacher.written_weight`` there, on each text to its end.
        examples: the length of the data set; default: the documents' tokens / ``train_length``.
        seed: of the whole sequence of examples.

    Raises:
        DataError: there are no documents, or one is shorter than an example, or the options leave nothing to train.
        RecipeError: a length or the seed breaks its rule, the shares exceed all of the examples, or ``positions`` has a margin.
    """

    def __init__(
        self,
        store: TokenStore,
        documents: np.ndarray,
        *,
        train_length: int | str,
        target_length: int | str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        positions: Positions | None = None,
        data: Data | None = None,
        teacher: Teacher | None = None,
        written: np.ndarray | None = None,
        examples: int | None = None,
        seed: int = 0,
    ) -> None:
        at_least("seed", seed, 0)
        if examples is not None:
            at_least("examples", examples, 1)
        data = data or Data()
        require_shares(data, teacher)
        if len(documents) == 0:
            raise DataError("no document is left to train on; give more text, or lower data.min_tokens")
        lengths = parse_length(train_length), parse_length(target_length)
        self.rules = ExampleRules(*lengths, positions or Positions(), data.train_jumps, data.min_context)
        self.store, self.documents, self.tokenizer, self.seed = store, np.asarray(documents), tokenizer, seed
        self.data, self.teacher = data, teacher
        self.written = None if written is None else np.asarray(written)
        self._without_context = data.assistant_only or (store.labelled and len(store.context) > 0)
        self._answers = Answers(store, self.rules.context) if self._without_context and len(store.context) else None
        if self._answers:
            self.documents = self.documents[self._answers.counts[self.documents] > 0]
        if not len(self.documents):
            raise DataError(
                f"in none of {counted(len(documents), 'document')} can a token be trained: it needs {counted(self.rules.context, 'token')} of its "
                "document before it; give longer answers, labels that are not all -100, or a smaller data.min_context"
            )
        self._lengths = store.lengths[self.documents]
        self._ends = np.cumsum(self._lengths)
        self._examples = int(self._ends[-1]) // lengths[0] if examples is None else examples
        if not self._examples:
            raise DataError(
                f"{int(self._ends[-1]):,} tokens of text are fewer than one example of {lengths[0]:,}; give more text, or say how "
                "many examples to draw (examples)"
            )
        self._epoch = shared_epoch()
        self._short = (
            self._lengths < lengths[0] if store.holds_conversations else np.zeros(len(self.documents), dtype=bool)
        )
        _check_packing(self.rules, self._short)
        # A document that is too short for a plan is reported here, not in a worker.
        shortest = self._lengths[~self._short].min(initial=lengths[1], keepdims=True)
        plans = self.rules.plan(Rng.of(seed, 0, 0), shortest)
        if data.assistant_only and not len(store.context):
            raise DataError(
                "assistant_only trains what the assistant of a conversation says, and this text has no conversation; leave it "
                "out, or give records with messages"
            )
        _check_prompts(data, tokenizer, lengths[0])
        if teacher and teacher.written:
            _check_written(self.written, teacher.written, plans.position_ids().shape[1])

    @classmethod
    def from_source(
        cls,
        source: str | Path | Data,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_length: int | str,
        target_length: int | str,
        positions: Positions | None = None,
        teacher: Teacher | None = None,
        written: np.ndarray | None = None,
        examples: int | None = None,
        seed: int = 0,
    ) -> "PoseDataset":
        """Tokenise a source (cached), and draw from its documents that are not held out.

        A document has at least as many tokens as a window, ``train_length`` (the target under the scheme ``full``), or
        ``min_tokens``, if that is more. Conversations may be shorter.

        Args:
            source: a file, a folder, a data set or ``stdlib``, of which a tenth of the documents is held out by name; or a
                ``Data``, all of whose settings apply.
            tokenizer: the model's; the other arguments are those of the class.

        Raises:
            DataError: the text cannot be read, or no document of it is left to train on; and what the class raises.
        """
        data, whole = Data.of(source), (positions or Positions()).scheme == "full"
        store = build_token_store(data, tokenizer)
        window = parse_length(target_length if whole else train_length)
        return cls(
            store,
            split_documents(store, data, window, whole=whole).train,
            train_length=train_length,
            target_length=target_length,
            tokenizer=tokenizer,
            positions=positions,
            data=data,
            teacher=teacher,
            written=written,
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
        chosen, plans, rng = self._drawn(np.asarray(indices))
        begins = self.store.offsets[self.documents[chosen]]
        windows, positions = self._of_text(indices, chosen, plans, begins), plans.position_ids()
        room = self._lengths[chosen] - positions.shape[1]  # below 0 where conversations are packed
        begins = begins + rng.integers(_BEGIN, 0, np.maximum(room, 0))
        replaced = {_PASSKEY: self._of_passkey, _RETRIEVAL: self._of_retrieval, _OF_THE_BASE: self._of_the_base}
        for row, kind in enumerate(self._kinds(np.asarray(indices), rng).tolist()):
            if kind in replaced:
                text = self._text(windows[row], int(begins[row]))
                windows[row] = replaced[kind](int(indices[row]), text, positions[row])
        weighted = self.data.weighs_answers
        return [window.example(weighted=weighted, taught=self.teacher is not None) for window in windows]

    def _kinds(self, indices: np.ndarray, rng: Rng) -> np.ndarray:
        """Return what each example is, int64 [examples]: one of the kinds, or the next number for text."""
        begin, end = self.data.retrieval, self.data.last_retrieval
        prompts = begin + (end - begin) * indices / len(self)
        written = 0.0 if self.teacher is None or self.written is None else self.teacher.written
        # In the order of the kinds.
        shares = np.stack([np.full(len(indices), self.data.passkey), prompts, np.full(len(indices), written)])
        return (np.cumsum(shares, axis=0) <= rng.uniform(_PROMPT)).sum(0)

    def plans(self, indices: np.ndarray) -> Plans:
        """Return the position plans of those of the examples ``indices`` [examples] that are text, without the text.

        Packed windows, prompts and text of the base have other positions.
        """
        return self._drawn(indices)[1]

    def _drawn(self, indices: np.ndarray) -> tuple[np.ndarray, Plans, Rng]:
        """Draw which of ``documents`` examples are from, int64 [examples], and their plans.

        The plan of a packed example is that of a document of ``train_length``; only a prompt in its place uses it.
        """
        rng = Rng.of(self.seed, int(self._epoch), indices)
        place = rng.integers(_DOCUMENT, 0, int(self._ends[-1]) - 1)
        chosen = np.searchsorted(self._ends, place, side="right")
        documents = self.documents[chosen]
        lengths = np.where(self._short[chosen], self.rules.train_length, self._lengths[chosen])
        aims = np.where(self._short[chosen], NOWHERE, self._answers.draw(rng, documents)) if self._answers else None
        return chosen, self.rules.plan(rng, lengths, aims), rng

    def _of_text(self, indices: Sequence[int], chosen: np.ndarray, plans: Plans, begins: np.ndarray) -> list[Window]:
        """Return the windows of text by their plans, and packed ones where the drawn document is too short for a plan."""
        rows, positions = begins[:, None] + plans.content_indices(), plans.position_ids()
        places, texts = np.tile(np.arange(rows.shape[1]), (len(rows), 1)), np.ones_like(rows)
        for row in np.flatnonzero(self._short[chosen]):
            packed = self._pack(int(indices[int(row)]), int(chosen[row]))
            rows[row], positions[row] = packed.rows, packed.positions
            places[row], texts[row] = packed.places, packed.texts
        input_ids = self.store.tokens[rows].astype(np.int64)
        labels = self.rules.trained(rows, input_ids)
        labels[(texts > 1) & (places < self.rules.context)] = IGNORED  # the first of a text follows from nothing
        if self._without_context:
            labels[self.store.is_context(rows)] = IGNORED
        taught = positions == places
        taught[:, :-1] &= texts[:, 1:] == texts[:, :-1]  # behind a text follows another one
        columns = zip(input_ids, positions, labels, places, texts, self._weight * taught, strict=True)
        return [Window(*column) for column in columns]

    def _pack(self, index: int, chosen: int) -> Packed:
        """Return the packed example ``index``, which begins with a short document."""
        rules, short = self.rules, self.documents[self._short]
        rng = np.random.default_rng([self.seed, int(self._epoch), index, _PACKED])
        first = int(self.documents[chosen])
        return pack(self.store, short, first, rules.train_length, rules.target_length, rules.positions, rng)

    def _of_passkey(self, index: int, text: np.ndarray, positions: np.ndarray) -> Window:
        """Return the beginning of ``text`` and then a passkey prompt with its answer, at ``positions``."""
        assert self.tokenizer is not None
        prompt = training_passkey(self.tokenizer, len(text), self._rng(index))
        text = text[: len(text) - len(prompt)]
        ids = np.concatenate([text, prompt])
        labels = ids.copy()
        labels[: len(text) if self._without_context else min(len(text), self.rules.min_context)] = IGNORED
        if not self.rules.train_jumps:
            labels[len(text)] = IGNORED
        text_follows = np.arange(1, len(ids) + 1) < len(text)
        return one_text(ids, positions, labels, self._taught(positions, text_follows))

    def _of_retrieval(self, index: int, text: np.ndarray, positions: np.ndarray) -> Window:
        """Return ``text`` with facts in it and questions behind it.

        Under ``pose`` the positions skip once, anywhere from the first fact to the questions, by one of
        ``end_anchored_skips``, so that distances beyond L_c are about as likely; under other schemes they are ``positions``.
        """
        assert self.tokenizer is not None
        rng = self._rng(index)
        prompt = training_prompt(self.tokenizer, text, rng)
        labels = np.where(prompt.trained, prompt.ids, IGNORED)
        labels[: prompt.asked if self._without_context else min(prompt.told, self.rules.min_context)] = IGNORED
        if self.rules.positions.scheme == "pose":
            at = int(rng.integers(prompt.told, prompt.asked + 1))
            positions = np.arange(len(labels))
            positions[at:] += rng.choice(end_anchored_skips(len(labels), self.rules.target_length))
        label_weights = np.ones(len(labels), dtype=np.float32)
        label_weights[prompt.asked :] = self.data.answer_weight
        label_weights[prompt.first_digits] = self.data.of_first_digit
        taught = self._taught(positions, prompt.text_follows)
        return one_text(prompt.ids, positions, labels, taught, label_weights=label_weights)

    def _of_the_base(self, index: int, text: np.ndarray, positions: np.ndarray) -> Window:
        """Return texts of ``written`` that are joined, as many tokens as ``text`` has; no position skips, and the teacher
        reads each text alone.

        A window holds each text once: the model would copy a second one, and the teacher, which reads each text alone, would train
        against that.
        Where a text begins behind another one the model reads both. There it differs from the teacher for another reason than
        what it forgot, so the first tokens, a quarter of the text at the most, are not taught.
        """
        assert self.teacher is not None
        assert self.written is not None
        (pieces, tokens), length = self.written.shape, len(text)
        chosen = self._rng(index).choice(pieces, -(-length // tokens), replace=False)
        ids = self.written[chosen].ravel()[:length].astype(np.int64)
        places = np.arange(length) % tokens
        labels = ids.copy()
        labels[places < max(self.rules.min_context, not self.rules.train_jumps)] = IGNORED
        settled = (places >= min(_SETTLED, tokens // 4)) | (np.arange(length) < tokens)
        taught = self.teacher.of_written * (settled & (places < tokens - 1))
        return one_text(ids, np.arange(length), labels, taught, places=places)

    def _text(self, window: Window, begin: int) -> np.ndarray:
        """Return the text of a prompt, int64 [tokens]: the document's from ``begin`` on, or the conversations that are packed.

        What stands behind a short conversation in the store may be held out.
        """
        if window.texts[-1] > 1:
            return window.input_ids
        return self.store.tokens[begin : begin + len(window.input_ids)].astype(np.int64)

    def _taught(self, positions: np.ndarray, text_follows: np.ndarray) -> np.ndarray:
        """Return the teacher's weights where it has read the same at the same positions, and text follows."""
        return self._weight * (text_follows & (positions == np.arange(len(positions))))

    @property
    def _weight(self) -> float:
        return self.teacher.weight if self.teacher else 0.0

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(self._epoch), index])


def _check_written(written: np.ndarray | None, share: float, window: int) -> None:
    """Refuse what are not texts, and too few to fill a window of so many tokens, each once."""
    if written is None or written.ndim != 2:
        raise DataError(
            f"teacher.written = {share:g} needs texts; give written, an array [texts, tokens], or set it to 0"
        )
    texts, tokens = written.shape
    if texts * tokens < window:
        raise DataError(
            f"written holds {counted(texts, 'text')} of {tokens:,} tokens, and a window of {window:,} needs "
            f"{-(-window // max(tokens, 1))} of them, each once; write more, or set teacher.written to 0"
        )


def _check_packing(rules: ExampleRules, short: np.ndarray) -> None:
    """Refuse to pack under a scheme that has no chunks of text."""
    if short.any() and (scheme := rules.positions.scheme) not in ("pose", "short"):
        raise DataError(
            f"{counted(int(short.sum()), 'document')} of fewer than {rules.train_length:,} tokens can be packed under pose and "
            f"short, not under {scheme}; set data.min_tokens={rules.train_length} to leave them out"
        )


def _check_prompts(data: Data, tokenizer: PreTrainedTokenizerBase | None, train_length: int) -> None:
    """Refuse prompts without a tokenizer, and a train length that no prompt fits."""
    if tokenizer is None:
        for name, share in data.prompts.items():
            raise DataError(f"{name} = {share:g} needs a tokenizer to write the prompts; give the model's own")
        return
    if data.passkey:
        training_passkey(tokenizer, train_length, np.random.default_rng(0))
    if data.most_retrieval:
        require_room(tokenizer, train_length)


def shared_epoch(epoch: int = 0) -> torch.Tensor:
    """Return an epoch number in shared memory, so that DataLoader workers that outlive an epoch see the next one."""
    return torch.tensor(epoch, dtype=torch.int64).share_memory_()

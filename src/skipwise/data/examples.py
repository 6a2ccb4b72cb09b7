"""Token store + plan -> training examples, for any Trainer or training loop.

An example is a pure function of (seed, epoch, index). Nothing is sampled before training and nothing is cached, so
positions are new in every epoch, and the same on every worker, rank and machine.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import default_collate
from transformers import PreTrainedTokenizerBase

from skipwise.data.store import TokenStore, split_documents
from skipwise.data.text import IGNORED
from skipwise.data.tokenising import build_token_store
from skipwise.data.windows import NOWHERE, Answers, ExampleRules, apart, pack
from skipwise.errors import DataError, counted
from skipwise.method.lengths import parse_length
from skipwise.method.positions import Plans
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Data, Positions

_DOCUMENT = 2**40  # a draw number, far above those of a plan
Example = dict[str, np.ndarray]


class PoseDataset(torch.utils.data.Dataset[Example]):
    """Examples of ``train_length`` tokens with positions up to ``target_length``.

    An example draws a document with a chance in proportion to its tokens, then the plan.

    Each item holds int64 arrays [tokens]: ``input_ids``, ``position_ids``, ``labels``, ``attention_mask``. The mask is
    all ones and must reach the model: without a mask and a cache, transformers takes a jump of the positions for the
    start of a new packed document and cuts attention there.

    Conversations shorter than ``train_length`` are packed (``data.windows``): in an example of several the mask has the number of
    each token's conversation, of which ``collate`` makes a mask that keeps them apart.

    Example::

        model = load_model(name, plan_extension(load_config(name), target_length="32k", interpolation="yarn"))
        data = PoseDataset.from_source("corpus/", load_tokenizer(name), train_length="4k", target_length="32k")
        Trainer(model, TrainingArguments("out"), train_dataset=data, data_collator=collate).train()

    Args:
        store: the tokens.
        documents: indices into the store of the documents to draw from; of at least ``train_length`` tokens, unless they are
            conversations.
        train_length: L_c in tokens, as 2048 or "2k".
        target_length: L_t in tokens.
        positions: the scheme and its options; default: PoSE with two chunks.
        data: what is trained of the text (``assistant_only_loss``, ``train_chunk_starts``). Where some tokens are not trained
            (user turns, labels of -100), every example holds a loss token (``data.windows``), and documents without one
            are left out. Settings that choose the documents (``source``,
            ``held_out``, ``min_tokens``, ...) are for ``from_source``. Default: all text.
        examples: the length of the data set; default: the documents' tokens / ``train_length``.
        seed: of the whole sequence of examples.

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
        self._without_context = data.assistant_only_loss or (store.labelled and len(store.context) > 0)
        self._answers = Answers(store) if self._without_context and len(store.context) else None
        if self._answers:
            self.documents = self.documents[self._answers.counts[self.documents] > 0]
        if not len(self.documents):
            raise DataError(
                f"none of {counted(len(documents), 'document')} has a loss token after its first; give more text, longer answers, "
                "or labels that are not all -100"
            )
        self._lengths = store.lengths[self.documents]
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
        ``min_tokens``, if that is more. Conversations may be shorter.

        Args:
            source: a file, a folder, a data set or ``stdlib``, of which a tenth of the documents is held out by name; or a
                ``Data`` with all of its settings.
            tokenizer: the model's; the other arguments are those of the class.

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
        rows = self.store.offsets[self.documents[chosen]][:, None] + plans.content_indices()
        places, texts = np.tile(np.arange(rows.shape[1]), (len(rows), 1)), np.ones_like(rows)
        for row in np.flatnonzero(self._short[chosen]).tolist():
            # One more word of the seed, so that packing does not repeat another draw.
            rng = np.random.default_rng([self.seed, int(self._epoch), int(indices[row]), 1])
            short = self.documents[self._short]
            packed = pack(self.store, short, int(self.documents[chosen[row]]), self.rules, rng)
            rows[row], positions[row] = packed.rows, packed.positions
            places[row], texts[row] = packed.places, packed.texts
        input_ids = self.store.tokens[rows].astype(np.int64)
        labels = self.rules.trained(rows, input_ids)
        labels[(texts > 1) & (places < 1)] = IGNORED  # nothing in a text predicts its first token
        if self._without_context:
            labels[self.store.is_context(rows)] = IGNORED
        columns = {"input_ids": input_ids, "position_ids": positions, "labels": labels, "attention_mask": texts}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(rows))]

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

    If an example holds several texts, ``attention_mask`` is that of ``windows.apart``, bool [examples, 1, tokens, tokens].
    """
    batch: dict[str, torch.Tensor] = default_collate(list(examples))
    if "attention_mask" in batch and (batch["attention_mask"] > 1).any():
        batch["attention_mask"] = apart(batch["attention_mask"])
    return batch

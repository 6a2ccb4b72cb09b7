"""Retrieval: does a model find what is hidden in a prompt, wherever it stands?

Prompts are answered one at a time by greedy decoding with a key-value cache. They are sorted by their token ids, so
that neighbours share the longest beginning, and what a prompt shares with the one before it is not read again. For
passkeys at depths spread over the prompt that saves the filler before each key in the second half.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.passkey import Prompt, answer_ids
from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import RecipeError, one_of
from skipwise.evaluation.perplexity import inference, require_vocabulary
from skipwise.method.lengths import parse_length
from skipwise.model.cache_argument import CACHE

# Tokens read at a time after cached ones. They need a mask over all tokens before them, and kernels that take a mask
# also compute what it hides: in one piece that would be twice the work. For the same reason a prompt that shares less
# than half of its tokens with the one before is read from its beginning, where no mask is needed.
_AT_ONCE = 1024


@dataclass(frozen=True)
class Question:
    """A prompt, and what is known of its answer."""

    ids: list[int]  # of the prompt
    draft: list[int]  # the right answer, as the model would begin it
    most: int  # tokens that the model may write
    score: Callable[[str], float]  # of what it wrote, from 0 to 1
    settled: bool = False  # whether no more text can lower the score, so that a full one ends the answer


@dataclass(frozen=True)
class Answer:
    """What a model wrote after one prompt."""

    number: int  # of the prompt
    text: str  # without surrounding space
    score: float
    seconds: float

    @property
    def hit(self) -> bool:
        """Whether it is all that was asked for."""
        return self.score == 1


def retrieval_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int | str,
    task: str = "passkey",
    trials: int = 50,
    seed: int = 0,
    precision: str = "float32",
) -> float:
    """Return the share of ``trials`` prompts of ``length`` tokens that are answered rightly.

    Prompts are those of ``draw_prompt`` at random depths, as in the paper. A length beyond the model's own is allowed.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's own.
        length: tokens of prompt and answer together, as 2048 or ``"2k"``.
        task: a name of ``skipwise.data.retrieval_prompts.TASKS``: passkey, keys or lines.
        trials: number of prompts.
        seed: of the prompts.
        precision: of the forward passes: bf16, fp16 or float32.

    Raises:
        RecipeError: ``trials`` is below 1, or the task is unknown.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not suit.
    """
    if trials < 1:
        raise RecipeError(f"trials {trials} must be at least 1; the paper asks 50")
    tokens = parse_length(length)
    prompts = [draw_prompt(task, tokenizer, tokens, seed, trial, "random") for trial in range(trials)]
    return sum(answer.hit for answer in retrieve(model, tokenizer, prompts, precision=precision)) / trials


def draw_prompt(
    task: str, tokenizer: PreTrainedTokenizerBase, length: int, seed: int, trial: int, depths: str
) -> Prompt:
    """Draw prompt number ``trial`` of a task from ``np.random.default_rng([seed, length, trial])``.

    It is the same whatever the model and the number of trials. With ``depths="random"`` the place of the number is
    uniform; with ``"spread"`` it lies in tenth ``tenth_of(trial)``, so that every ten trials cover the prompt evenly.
    """
    rng = np.random.default_rng([seed, length, trial])
    depth = (tenth_of(trial) + rng.random()) / 10 if depths == "spread" else None
    return TASKS[one_of("task", task, TASKS)].prompt(tokenizer, length, rng, depth)


def tenth_of(trial: int) -> int:
    """Return the tenth of the prompt for trial 0, 1, 2, ...: 0, 3, 6, 9, 2, 5, 8, 1, 4, 7, and again."""
    return 3 * trial % 10


def retrieve(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], *, precision: str = "float32"
) -> Iterator[Answer]:
    """Answer each prompt by the number that it hides, as ``answers`` does."""
    yield from answers(model, tokenizer, [_asking(prompt, tokenizer) for prompt in prompts], precision=precision)


def _asking(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Question:
    """Ask for the number alone: one token more than it has shows whether it ends there."""
    expected = answer_ids(tokenizer, prompt.answer)
    return Question(prompt.ids, expected, len(expected) + 1, lambda text: float(is_hit(text, prompt.answer)))


def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    *,
    precision: str = "float32",
) -> Iterator[Answer]:
    """Answer each question greedily, in the order of their token ids.

    Nothing is shared between prompts if a layer keeps only the last tokens (sliding attention), because its cache
    cannot go back, or if frequencies may switch with the length (longrope).
    """
    require_vocabulary(model, [question.ids for question in questions])
    cached = _CachedModel(model)
    for number in sorted(range(len(questions)), key=lambda i: questions[i].ids):
        began, question = time.perf_counter(), questions[number]

        def said(ids: list[int]) -> str:
            return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()

        def enough(ids: list[int], question: Question = question) -> bool:
            return question.settled and question.score(said(ids)) == 1

        with inference(model, precision):
            ids = cached.decode(question.ids, question.draft, question.most, tokenizer.eos_token_id, enough)
        text = said(ids)
        yield Answer(number, text, question.score(text), time.perf_counter() - began)


def is_hit(continuation: str, answer: str) -> bool:
    """Whether ``continuation`` starts with ``answer``, and the number ends there."""
    said = continuation.strip()
    return said.startswith(answer) and not said[len(answer) :][:1].isdigit()


class _CachedModel:
    """A model with the token ids that it has read last, and their keys and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._ids: list[int] = []
        rope = getattr(model.config, "rope_parameters", None) or {}
        self._switches = rope.get("rope_type") == "longrope"  # other frequencies for short texts than for long ones
        self._cache = DynamicCache(config=model.config)

    def decode(
        self,
        prompt: list[int],
        draft: list[int],
        most: int,
        end: int | None,
        enough: Callable[[list[int]], bool] = lambda written: False,
    ) -> list[int]:
        """Decode greedily after ``prompt``: ``most`` ids, or up to ``end``, or until they are ``enough``.

        The draft is read together with the prompt, as in speculative decoding (Leviathan et al., 2023). As far as it is
        what the model would have written, that one pass gives it all; only from there on is one id decoded at a time.
        """
        common = self._common(prompt)
        self._go_back(common if 2 * common >= len(prompt) else 0)
        likeliest = self._read((prompt + draft)[len(self._ids) :], len(draft) + 1)
        agreed = next((i for i, id in enumerate(draft) if likeliest[i] != id), len(draft))
        written = likeliest[: agreed + 1]
        while end not in written and len(written) < most and not enough(written):
            self._go_back(len(prompt) + len(written) - 1)
            written += self._read((prompt + written)[len(self._ids) :], 1)
        return written[: written.index(end)] if end in written else written[:most]

    def _common(self, prompt: list[int]) -> int:
        """How many ids from its beginning on need not be read again; at least one is read."""
        for i, (known, new) in enumerate(zip(self._ids, prompt[:-1], strict=False)):
            if known != new:
                return i
        return min(len(self._ids), len(prompt) - 1)

    def _go_back(self, tokens: int) -> None:
        """Forget all but the first ``tokens``; all, where the cache cannot go back."""
        if tokens == len(self._ids):
            return
        if any(self._cache.is_sliding) or self._switches:
            tokens = 0
        if not tokens:
            self._cache = DynamicCache(config=self._model.config)
        elif tokens < len(self._ids):
            self._cache.crop(tokens - len(self._ids))
        del self._ids[tokens:]

    def _read(self, ids: list[int], wanted: int) -> list[int]:
        """Read on; after each of the last ``wanted`` ids the likeliest to follow."""
        likeliest: list[int] = []
        while ids:
            behind = len(self._ids)
            # What is read from the beginning needs no mask.
            size = _AT_ONCE if behind else len(ids)
            some, ids = ids[:size], ids[size:]
            self._ids += some
            row = torch.tensor([some], device=self._model.device)
            logits = self._model(
                input_ids=row,
                attention_mask=torch.ones(1, len(self._ids), dtype=torch.long, device=row.device),
                position_ids=torch.arange(behind, len(self._ids), device=row.device)[None],
                use_cache=True,
                logits_to_keep=min(wanted, len(some)),
                **{CACHE: self._cache},
            ).logits
            likeliest += logits[0].argmax(-1).tolist()
        return likeliest[-wanted:]

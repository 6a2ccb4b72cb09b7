"""Retrieval: does a model find what is hidden in a prompt, wherever it stands?

Prompts are read one at a time by greedy decoding with a key-value cache. They are sorted by their token ids, so that
neighbours share the longest beginning, and what a prompt shares with the one before it is not read again. For passkeys at
depths spread over the prompt that saves the filler before each key in the second half. Long answers are written together.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.prompts import Prompt, answer_ids
from skipwise.data.retrieval_prompts import TASKS
from skipwise.data.spans import agreeing
from skipwise.errors import at_least, one_of
from skipwise.evaluation.decoding import Begun, Reader, go_on_together
from skipwise.evaluation.perplexity import inference, require_vocabulary
from skipwise.method.lengths import parse_length
from skipwise.model.cost import machine_memory
from skipwise.model.precision import choose_precision

_SHARE = 16  # of the memory, which may be held for answers that are written together
_UNKNOWN_MEMORY = 2**34  # bytes, where the machine does not say
_FEW = 16  # tokens; shorter answers are not worth the copies
_COPIES = 5  # of keys and values: those kept, and perhaps in float32 those padded and those of the half that goes on


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
        precision: of the forward passes: auto, bf16, fp16 (on a GPU) or float32.

    Raises:
        RecipeError: ``trials`` is no whole number from 1 up or ``seed`` none from 0 up, or the task or precision is unknown.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not suit.
        EvaluationError: a logit is not a number.
    """
    at_least("trials", trials, 1)
    at_least("seed", seed, 0)
    chosen, tokens = choose_precision(precision, model.device), parse_length(length)
    prompts = [draw_prompt(task, tokenizer, tokens, seed, trial, "random") for trial in range(trials)]
    return sum(answer.hit for answer in retrieve(model, tokenizer, prompts, precision=chosen)) / trials


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
    yield from answers(model, tokenizer, [question_of(prompt, tokenizer) for prompt in prompts], precision=precision)


def question_of(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Question:
    """Ask for the number that a prompt hides: one token more than it has shows whether it ends there."""
    expected = answer_ids(tokenizer, prompt.answer)
    return Question(prompt.ids, expected, len(expected) + 1, lambda text: float(is_hit(text, prompt.answer)))


def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    *,
    precision: str = "float32",
) -> Iterator[Answer]:
    """Answer each question greedily. Prompts are read in the order of their token ids.

    Answers of which the draft is not all are then written together, as many as their keys and values fit a 16th of the
    memory.

    Raises:
        DataError: a token is not in the model's vocabulary.
        EvaluationError: a logit is not a number.
    """
    require_vocabulary(model, [question.ids for question in questions])
    reader, waiting = Reader(model), _Waiting((machine_memory(model.device) or _UNKNOWN_MEMORY) // _SHARE)
    for number in sorted(range(len(questions)), key=lambda i: questions[i].ids):
        began, question = time.perf_counter(), questions[number]
        finished = partial(_finished, question, tokenizer)
        with inference(model, precision):
            written = reader.begin(question.ids, question.draft)
            later = question.most > _FEW and reader.goes_back and not finished(written) and waiting.takes(reader.bytes)
            if later:
                waiting.add(number, reader.keep(question.ids, written, question.most, finished), began)
            else:
                written = reader.go_on(question.ids, written, finished)
        if not later:
            yield _answer(number, question, written, tokenizer, time.perf_counter() - began)
        elif waiting.full:
            yield from waiting.written(model, tokenizer, questions, precision)
    yield from waiting.written(model, tokenizer, questions, precision)


class _Waiting:
    """Begun answers that wait for others, to be written together."""

    def __init__(self, most: int) -> None:
        self._most = most  # bytes
        self._begun: dict[int, Begun] = {}
        self._seconds = 0.0

    def add(self, number: int, begun: Begun, began: float) -> None:
        """Wait with answer ``number``, whose prompt has been read since ``began``."""
        self._begun[number] = begun
        self._seconds += time.perf_counter() - began

    def takes(self, size: int) -> bool:
        """Whether two answers of so many bytes could be written together: one alone is written in the reader's own cache."""
        return _COPIES * 2 * size <= self._most

    @property
    def full(self) -> bool:
        """Whether no other that is as long as the longest would fit: padded, all are that long."""
        return _COPIES * (len(self._begun) + 1) * max(one.bytes for one in self._begun.values()) > self._most

    def written(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question], precision: str
    ) -> Iterator[Answer]:
        """Write all, and wait for none."""
        if not self._begun:
            return
        began = time.perf_counter()
        with inference(model, precision):
            written = go_on_together(model, list(self._begun.values()))
        seconds = (self._seconds + time.perf_counter() - began) / len(self._begun)
        numbers, self._begun, self._seconds = list(self._begun), {}, 0.0
        for number, ids in zip(numbers, written, strict=True):
            yield _answer(number, questions[number], ids, tokenizer, seconds)


def _finished(question: Question, tokenizer: PreTrainedTokenizerBase, written: list[int]) -> bool:
    """Whether an answer ends: by its end token, by its length, or because no more text could change its score."""
    if tokenizer.eos_token_id in written or len(written) >= question.most:
        return True
    return question.settled and question.score(_said(written, tokenizer)) == 1


def _answer(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    end = tokenizer.eos_token_id
    text = _said(written[: written.index(end)] if end in written else written[: question.most], tokenizer)
    return Answer(number, text, question.score(text), seconds)


def as_far_as_needed(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    """The answer of which ``written`` was written to its end elsewhere: as much of it as ``answers`` would have written.

    That is what agrees with the draft and one id more, and then all up to where it is finished.
    """
    end = 1 + agreeing(question.draft, written)
    while end < len(written) and not _finished(question, tokenizer, written[:end]):
        end += 1
    return _answer(number, question, written[:end], tokenizer, seconds)


def _said(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()


def is_hit(continuation: str, answer: str) -> bool:
    """Whether ``continuation`` starts with ``answer``, and the number ends there."""
    said = continuation.strip()
    return said.startswith(answer) and not said[len(answer) :][:1].isdigit()

"""Retrieval: does a model find a number that a prompt hides, or RULER's answers?

Prompts are read one at a time by greedy decoding with a KV cache, in the order of their token ids: neighbours share the longest
prefix, which is read once. Long answers are decoded in batches.

Retrieval tasks (``skipwise.data.retrieval_prompts``) have one answer, which must be complete. RULER's tasks
(``skipwise.data.ruler``) may have several answers, anywhere in the continuation.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.prompts import Prompt, answer_ids
from skipwise.data.retrieval_prompts import TASKS
from skipwise.data.ruler import RulerData, ruler_prompt, ruler_task
from skipwise.data.spans import agreeing
from skipwise.errors import at_least, one_of
from skipwise.evaluation.decoding import Begun, Reader, go_on_together
from skipwise.evaluation.perplexity import inference, require_vocabulary
from skipwise.method.lengths import parse_length
from skipwise.model.cost import machine_memory
from skipwise.model.precision import choose_precision
from skipwise.results.records import RulerRecord, TrialRecord

_SHARE = 16  # of the memory, at most, for answers that are decoded in a batch
_UNKNOWN_MEMORY = 2**34  # bytes
_FEW = 16  # tokens; shorter answers are not worth the copies
_COPIES = 5  # of keys and values: those kept, and perhaps in float32 those padded and those of the half that goes on


@dataclass(frozen=True)
class Question:
    """A prompt with its scoring rule."""

    ids: list[int]  # of the prompt
    draft: list[int]  # the right answer, as the model would begin it
    most: int  # tokens of the answer, at most
    score: Callable[[str], float]  # of the answer, from 0 to 1
    settled: bool = False  # whether a full score ends the answer: more text cannot lower it


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt."""

    number: int  # of the prompt
    text: str  # stripped
    score: float
    seconds: float

    @property
    def hit(self) -> bool:
        """Whether the score is full."""
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
    """Return the share of ``trials`` prompts of ``length`` tokens that are answered correctly.

    Prompts are those of ``draw_prompt`` at random depths, as in the paper. ``length`` may exceed the model's own.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's own.
        length: tokens of prompt and answer, e.g. 2048 or ``"2k"``.
        task: a name in ``skipwise.data.retrieval_prompts.TASKS``: passkey, keys or lines.
        trials: number of prompts.
        seed: of the prompts.
        precision: of the forward passes: auto, bf16, fp16 (on a GPU) or float32.

    Raises:
        RecipeError: ``trials``, ``seed``, task or precision breaks its rule.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not fit.
        EvaluationError: a logit is NaN.
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

    The prompt depends on no model and no number of trials. With ``depths="random"`` the depth of the number is uniform; with
    ``"spread"`` it is in tenth ``tenth_of(trial)``, so that every ten trials cover the prompt evenly.
    """
    rng = np.random.default_rng([seed, length, trial])
    depth = (tenth_of(trial) + rng.random()) / 10 if depths == "spread" else None
    return TASKS[one_of("task", task, TASKS)].prompt(tokenizer, length, rng, depth)


def tenth_of(trial: int) -> int:
    """Return the tenth of the prompt for trial 0, 1, 2, ...: 0, 3, 6, 9, 2, 5, 8, 1, 4, 7, and again."""
    return 3 * trial % 10


def question_of(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Question:
    """Ask for the number in a prompt; one more token shows whether the number ends there."""
    expected = answer_ids(tokenizer, prompt.answer)
    return Question(prompt.ids, expected, len(expected) + 1, lambda text: float(is_hit(text, prompt.answer)))


def ask_number(tokenizer: PreTrainedTokenizerBase, request: TrialRecord) -> tuple[Question, dict[str, Any]]:
    """Return the question of a request, and the result fields that describe its prompt."""
    prompt = draw_prompt(request.task, tokenizer, request.length, request.seed, request.trial, request.depths)
    return question_of(prompt, tokenizer), {"depth": prompt.depth, "prompt_tokens": len(prompt.ids)}


def ask_ruler(
    tokenizer: PreTrainedTokenizerBase, data: RulerData, request: RulerRecord
) -> tuple[Question, dict[str, Any]]:
    """Return the question of a request of RULER, scored by RULER's rule, and the fields that describe its prompt."""
    task, _ = ruler_task(request.task)
    prompt = ruler_prompt(tokenizer, request.task, request.length, request.seed, request.trial, data)

    def score(text: str) -> float:
        found = [answer.lower() in text.lower() for answer in prompt.answers]
        return sum(found) / len(found) if task.scored == "all" else float(any(found))

    draft = answer_ids(tokenizer, prompt.answers[0])[: task.answer_tokens - 1]
    question = Question(prompt.ids, draft, task.answer_tokens, score, settled=True)
    return question, {"depth": prompt.depth, "prompt_tokens": len(prompt.ids)}


def retrieve(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], *, precision: str = "float32"
) -> Iterator[Answer]:
    """Answer each prompt with the number that it hides."""
    yield from answers(model, tokenizer, [question_of(prompt, tokenizer) for prompt in prompts], precision=precision)


def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    *,
    precision: str = "float32",
) -> Iterator[Answer]:
    """Answer each question greedily, in the order of the prompts' token ids.

    Long answers that differ from their draft are decoded in batches of as many as fit a 16th of the memory.

    Raises:
        DataError: a token is not in the model's vocabulary.
        EvaluationError: a logit is NaN.
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
    """Begun answers that wait to be decoded in a batch."""

    def __init__(self, most: int) -> None:
        self._most = most  # bytes
        self._begun: dict[int, Begun] = {}
        self._seconds = 0.0

    def add(self, number: int, begun: Begun, began: float) -> None:
        """Add answer ``number``; its prompt was read since ``began``."""
        self._begun[number] = begun
        self._seconds += time.perf_counter() - began

    def takes(self, size: int) -> bool:
        """Return whether two answers of ``size`` bytes fit; a single one is decoded in the reader's cache."""
        return _COPIES * 2 * size <= self._most

    @property
    def full(self) -> bool:
        """Whether one more answer, padded to the longest, would not fit."""
        return _COPIES * (len(self._begun) + 1) * max(begun.bytes for begun in self._begun.values()) > self._most

    def written(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question], precision: str
    ) -> Iterator[Answer]:
        """Decode all waiting answers."""
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
    """Return whether an answer ends: by EOS, by its length, or by a full score."""
    if tokenizer.eos_token_id in written or len(written) >= question.most:
        return True
    return question.settled and question.score(_text(written, tokenizer)) == 1


def _answer(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    end = tokenizer.eos_token_id
    text = _text(written[: written.index(end)] if end in written else written[: question.most], tokenizer)
    return Answer(number, text, question.score(text), seconds)


def as_far_as_needed(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    """Return the answer that ``answers`` would give, from the complete ids that a server wrote.

    ``answers`` stops where the draft ends or differs, and then at the first id that finishes the answer.
    """
    end = 1 + agreeing(question.draft, written)
    while end < len(written) and not _finished(question, tokenizer, written[:end]):
        end += 1
    return _answer(number, question, written[:end], tokenizer, seconds)


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()


def is_hit(continuation: str, answer: str) -> bool:
    """Return whether ``continuation`` starts with ``answer``, and the number ends there."""
    text = continuation.strip()
    return text.startswith(answer) and not text[len(answer) :][:1].isdigit()

"""A task and a length -> requests for its prompts, and the question that each request stands for.

Retrieval tasks (``skipwise.data.retrieval_prompts``) have one answer, which must be written whole. RULER's tasks
(``skipwise.data.ruler``) are named ``ruler:vt``; they may have several answers, which must stand somewhere in what the
model writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from skipwise.data.prompts import answer_ids
from skipwise.data.ruler import RulerData, ruler_prompt, ruler_task
from skipwise.errors import TooShortError
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.retrieval import Question, draw_prompt, question_of
from skipwise.evaluation.specification import RULER, Specification, is_ruler
from skipwise.results.files import short_digest
from skipwise.results.records import RulerRecord, TrialRecord

_LONG_ENOUGH = 2**14  # tokens; every task has a prompt that is as short
Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class AskedPrompt:
    """A question, and what its record says of the prompt."""

    question: Question
    told: dict[str, Any]


def first_request(
    specification: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    length: int,
    data: RulerData | None,
) -> tuple[TrialRecord | RulerRecord, Callable[..., AskedPrompt]]:
    """Return the request for the first prompt of a task, and the function that asks one; ``data`` is of RULER.

    Raises:
        TooShortError: the task has no prompt of so few tokens.
    """
    how = specification
    request: TrialRecord | RulerRecord
    if not is_ruler(task):
        _require_room(
            lambda tokens, trial: draw_prompt(task, tokenizer, tokens, how.seed, trial, how.depths), length, how.trials
        )
        request = TrialRecord(model.label, task, length, how.seed, 0, how.depths, how.prompt_precision, model.digest)
        return request, partial(_ask_number, tokenizer)
    assert data is not None
    name = task.removeprefix(RULER)
    prompt = _require_room(
        lambda tokens, trial: ruler_prompt(tokenizer, name, length=tokens, trial=trial, seed=how.seed, data=data),
        length,
        how.trials,
        alike=not name.startswith("qa_"),  # the documents of a question may be much longer than another's
    )
    digest = short_digest(f"{model.digest} {data.fingerprint}".encode())
    request = RulerRecord(model.label, name, length, how.seed, 0, prompt.real_data, how.prompt_precision, digest)
    return request, partial(_ask_ruler, tokenizer, data)


def _require_room(drawn: Callable[[int, int], Drawn], length: int, trials: int, *, alike: bool = True) -> Drawn:
    """Return the first prompt, and require every trial to have one of so few tokens, because training may come before.

    ``drawn`` makes the prompt of a length and a trial. If trials are ``alike``, one that has an eighth of the length to spare
    speaks for all: others have other words, which may need some tokens more.

    Raises:
        TooShortError: a trial has none.
    """
    tokens = min(length, _LONG_ENOUGH)
    first = drawn(tokens, 0)
    try:
        if tokens < _LONG_ENOUGH:
            drawn(tokens * 7 // 8, 0)
    except TooShortError:
        alike = False
    for trial in range(1, 1 if alike else trials):
        drawn(tokens, trial)
    return first


def _ask_number(tokenizer: PreTrainedTokenizerBase, request: TrialRecord) -> AskedPrompt:
    prompt = draw_prompt(request.task, tokenizer, request.length, request.seed, request.trial, request.depths)
    return AskedPrompt(question_of(prompt, tokenizer), {"depth": prompt.depth, "prompt_tokens": len(prompt.ids)})


def _ask_ruler(tokenizer: PreTrainedTokenizerBase, data: RulerData, request: RulerRecord) -> AskedPrompt:
    """Ask for a continuation of RULER's length, and score it by RULER's rule.

    More text can only hold more of the answers, so a model that has written all of them is not asked for more.
    """
    task, _ = ruler_task(request.task)
    prompt = ruler_prompt(tokenizer, request.task, request.length, request.seed, request.trial, data)

    def score(text: str) -> float:
        found = [answer.lower() in text.lower() for answer in prompt.answers]
        return sum(found) / len(found) if task.scored == "all" else float(any(found))

    draft = answer_ids(tokenizer, prompt.answers[0])[: task.answer_tokens - 1]
    question = Question(prompt.ids, draft, task.answer_tokens, score, settled=True)
    return AskedPrompt(question, {"depth": prompt.depth, "prompt_tokens": len(prompt.ids)})

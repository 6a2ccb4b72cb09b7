"""RULER's thirteen tasks, made here: offline, seeded, at any length, measured by the model's own tokenizer.

The benchmark is Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", 2024
(github.com/NVIDIA/RULER, Apache-2.0), word for word. For the same seed and the same number of units of filler a prompt has
the same text as that of lm-evaluation-harness (``tests/parity/test_ruler.py``). Differences, each on purpose:

- A prompt is as long as it can be: one unit more would not fit together with ``answer_tokens``. The harness goes in
  steps of up to 500 units, and its ``fwe`` leaves no room for the answer.
- ``cwe`` has RULER's example in front, which the harness draws and does not send. It is shuffled as RULER does it.
- Essays are cut into sentences by a written rule (``sources.sentences``), not by NLTK's Punkt, which has to be
  downloaded. It decides only where a needle may be; the essays' words are the same.
- Each prompt has its example in ``vt``. The harness draws one for all prompts, and renames its variables.
- Where a prompt of ``vt`` or ``cwe`` does not fit, it gets smaller by a written rule, in ``tasks``.
- Where essays or documents are too few for the length, they are repeated. ``cwe`` repeats its words more often.
- A QA question with documents that do not fit gives way to the one 500 places later. RULER asks the first 500.

Needles keep their numbers at every length. A length that is too short for what was drawn is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from zlib import crc32

from skipwise.data.prompts import longest_prompt
from skipwise.data.ruler import tasks
from skipwise.data.ruler.sources import RulerData as RulerData, read_ruler_data as read_ruler_data
from skipwise.data.ruler.tasks import Form, Haystack, Kind, Kinds, PromptRequest
from skipwise.errors import RecipeError, TooShortError, one_of
from skipwise.method.rng import Rng


@dataclass(frozen=True)
class RulerTask:
    """One of RULER's tasks: how its answers are scored, how its prompts are made."""

    answer_tokens: int  # RULER's tokens_to_generate, the most that are written
    scored: Literal["all", "any"]  # the share of the answers found, in any case; or 1 if one of them is found
    forms: Callable[..., list[Form]]  # (request, **settings) -> ways to make the prompt; the first that fits is taken
    settings: Mapping[str, int] = field(default_factory=dict)  # what a name such as vt:hops=2 may change, and defaults
    file: str | None = None  # of the questions


@dataclass(frozen=True)
class RulerPrompt:
    """A prompt of one of RULER's tasks, with its answers."""

    ids: list[int]  # token ids of the prompt; its text ends with the beginning of the answer
    answers: tuple[str, ...]
    depth: float | None  # share of the haystack before the needle asked for, in [0, 1]; None if it has not one place
    real_data: bool  # False if another text replaced RULER's essays: such a result is "RULER-style", not "RULER"


def _needles(haystack: Haystack, key: Kind, value: Kind, **counts: int) -> RulerTask:
    settings = {"keys": 1, "values": 1, "queries": 1} | counts
    return RulerTask(128, "all", partial(tasks.needle_forms, Kinds(haystack, key, value)), settings)


def _questions(file: str) -> RulerTask:
    return RulerTask(32, "any", partial(tasks.question_forms, file), file=file)


TASKS: dict[str, RulerTask] = {
    "niah_single_1": _needles("repeat", "words", "numbers"),  # one number in repeated sentences
    "niah_single_2": _needles("essay", "words", "numbers"),  # one number in essays
    "niah_single_3": _needles("essay", "words", "uuids"),  # one UUID in essays
    "niah_multikey_1": _needles("essay", "words", "numbers", keys=4),  # one key of four in essays
    "niah_multikey_2": _needles("needle", "words", "numbers"),  # one number among numbers
    "niah_multikey_3": _needles("needle", "uuids", "uuids"),  # one UUID among UUIDs
    "niah_multivalue": _needles("essay", "words", "numbers", values=4),  # four values of one key
    "niah_multiquery": _needles("essay", "words", "numbers", queries=4),  # four keys asked for
    "vt": RulerTask(30, "all", tasks.chain_forms, {"hops": 4, "chains": 1}),  # variables that have a value
    "cwe": RulerTask(120, "all", tasks.common_forms),  # the ten most common words
    "fwe": RulerTask(50, "all", tasks.frequent_forms),  # the three most frequent words
    "qa_squad": _questions("squad.json"),  # questions on one document
    "qa_hotpot": _questions("hotpotqa.json"),  # questions on two documents
}


def ruler_task(name: str) -> tuple[RulerTask, dict[str, int]]:
    """Return the task of a name, and the settings that the name changes: ``vt:hops=2,chains=3``."""
    base, _, changes = name.partition(":")
    task = TASKS[one_of("RULER's task", base, TASKS)]
    settings = {}
    for change in filter(None, changes.split(",")):
        key, _, value = (part.strip() for part in change.partition("="))
        one_of(f"setting of {base}", key, task.settings)
        if not (value.isascii() and value.isdigit() and int(value)):
            raise RecipeError(f"{name!r}: {key} must be a whole number from 1 up; write for example {base}:{key}=2")
        settings[key] = int(value)
    return task, settings


def canonical(name: str) -> str:
    """Return the one name of a task: without settings that have their defaults, the others in the task's order."""
    task, settings = ruler_task(name)
    changed = [f"{key}={settings[key]}" for key, usual in task.settings.items() if settings.get(key, usual) != usual]
    return ":".join([name.partition(":")[0], *([",".join(changed)] if changed else [])])


def ruler_prompt(tokenizer: Any, task: str, length: int, seed: int, trial: int, data: RulerData) -> RulerPrompt:
    """Draw the longest prompt of a task that fits ``length`` tokens together with the task's ``answer_tokens``.

    It is equal on every machine with the same tokenizer and data. The QA tasks take the question with the trial's number. A
    ``TooShortError`` has the least length in ``shortest``.
    """
    ruler, settings = ruler_task(task)
    # 32 bits decide everything random in a prompt: draw number CRC-32(task) of (seed, length, trial).
    bits = int(Rng.of(seed, length, trial).bits(crc32(task.partition(":")[0].encode()))[0]) >> 32
    request = PromptRequest(tokenizer, length, bits, trial, data)
    room: dict[str, Any] = {"reserved": ruler.answer_tokens, "what": f"a prompt of {task}"}
    refused: list[TooShortError] = []
    for form in ruler.forms(request, **{**ruler.settings, **settings}):
        try:
            units, ids = longest_prompt(tokenizer, length, form.text, form.units, each=form.tokens, **room)
            drawn = form.draw(units)
            return RulerPrompt(ids, drawn.answers, drawn.depth, form.real_data)
        except TooShortError as error:
            refused.append(error)
    raise min(refused, key=lambda error: error.shortest)

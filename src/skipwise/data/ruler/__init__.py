"""RULER's thirteen tasks, made here: offline, seeded, at any length, measured by the model's own tokenizer.

The benchmark is Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", 2024
(github.com/NVIDIA/RULER, Apache-2.0). The prompts' wordings and the defaults are the benchmark's, word for word. For
the same seed and the same number of units of filler a prompt has the same text as that of lm-evaluation-harness
(``tests/parity/test_ruler.py``). These things differ from the harness, each on purpose:

- A prompt is as long as it can be: one unit more would not fit together with ``answer_tokens``. The harness goes in
  steps of up to 500 units, and its ``fwe`` leaves no room for the answer.
- ``cwe`` has RULER's example in front, which the harness draws and does not send. It is shuffled as RULER does it.
- Essays are cut into sentences by a written rule (``sources.sentences``), not by NLTK's Punkt, which has to be
  downloaded. It decides only where a needle may stand; the essays' words are the same.
- Each prompt has an example of its own in ``vt``. The harness draws one for all prompts, and renames its variables.
- Where a prompt of ``vt`` or ``cwe`` does not fit, it gets smaller by a written rule, in ``chains`` and ``counting``.
- Where essays or documents are too few for the length, they are repeated. ``cwe`` repeats its words more often.
- A QA question whose documents do not fit gives way to the one 500 places later. RULER asks the first 500.

Needles keep their numbers at every length. A length that is too short for what was drawn is refused, and the message
names the shortest: another trial's words may need a few tokens more or less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from skipwise.data.prompts import Room, longest_prompt
from skipwise.data.ruler import chains, counting, needles, questions
from skipwise.data.ruler.prompts import Form, PromptRequest
from skipwise.data.ruler.sources import RulerData as RulerData
from skipwise.data.ruler.sources import read_ruler_data as read_ruler_data
from skipwise.errors import RecipeError, TooShortError, one_of
from skipwise.method.rng import Rng

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class RulerTask:
    """One of RULER's tasks: how its answers are scored, how its prompts are made."""

    answer_tokens: int  # the model may write so many; RULER's tokens_to_generate
    scored: Literal["all", "any"]  # the share of the answers found, in any case; or 1 if one of them is found
    forms: Callable[..., list[Form]]  # (request, **settings) -> ways to make the prompt; the first that fits is taken
    settings: Mapping[str, int] = field(default_factory=dict)  # what a name such as vt:hops=2 may change, and defaults


@dataclass(frozen=True)
class RulerPrompt:
    """A prompt of one of RULER's tasks, with its answers."""

    ids: list[int]  # token ids of the prompt; its text ends with the beginning of the answer
    answers: tuple[str, ...]
    depth: float | None  # share of the haystack before the needle asked for, in [0, 1]; None if it has not one place
    real_data: bool  # False if a text stood in for RULER's essays: such a result is "RULER-style", not "RULER"


def _needles(haystack: needles.Haystack, key: needles.Kind, value: needles.Kind, **counts: int) -> RulerTask:
    settings = {"keys": 1, "values": 1, "queries": 1} | counts
    return RulerTask(128, "all", partial(needles.forms, needles.Kinds(haystack, key, value)), settings)


TASKS: dict[str, RulerTask] = {
    "niah_single_1": _needles("repeat", "words", "numbers"),  # one number in repeated sentences
    "niah_single_2": _needles("essay", "words", "numbers"),  # one number in essays
    "niah_single_3": _needles("essay", "words", "uuids"),  # one UUID in essays
    "niah_multikey_1": _needles("essay", "words", "numbers", keys=4),  # one key of four in essays
    "niah_multikey_2": _needles("needle", "words", "numbers"),  # one number among numbers
    "niah_multikey_3": _needles("needle", "uuids", "uuids"),  # one UUID among UUIDs
    "niah_multivalue": _needles("essay", "words", "numbers", values=4),  # four values of one key
    "niah_multiquery": _needles("essay", "words", "numbers", queries=4),  # four keys asked for
    "vt": RulerTask(30, "all", chains.forms, {"hops": 4, "chains": 1}),  # variables that have a value
    "cwe": RulerTask(120, "all", counting.common_forms),  # the ten most common words
    "fwe": RulerTask(50, "all", counting.frequent_forms),  # the three most frequent words
    "qa_squad": RulerTask(32, "any", partial(questions.forms, "squad")),  # questions on one document
    "qa_hotpot": RulerTask(32, "any", partial(questions.forms, "hotpotqa")),  # questions on two documents
}


def possible_tasks(data: RulerData) -> list[str]:
    """Return the names of the tasks that ``data`` has the texts for: those with questions need their files."""
    needed = {"qa_squad": "squad", "qa_hotpot": "hotpotqa"}
    return [name for name in TASKS if needed.get(name) in (None, *data.question_files)]


def ruler_task(name: str) -> tuple[RulerTask, dict[str, int]]:
    """Return the task of a name, and the settings that the name changes: ``vt:hops=2,chains=3``.

    The needle tasks have ``keys``, ``values`` and ``queries``; ``vt`` has ``hops`` and ``chains``.

    Raises:
        RecipeError: the task or a setting is unknown, or a setting is not a whole number from 1 up.
    """
    base, _, changes = name.partition(":")
    task = TASKS[one_of("RULER's task", base, TASKS)]
    if changes and not task.settings:
        raise RecipeError(f"{name!r} gives a setting, but {base} has none; write {base} alone")
    settings = {}
    for change in filter(None, changes.split(",")):
        key, _, value = (part.strip() for part in change.partition("="))
        one_of(f"setting of {base}", key, task.settings)
        if not (value.isascii() and value.isdigit() and int(value)):
            raise RecipeError(f"{name!r}: {key} must be a whole number from 1 up; write for example {base}:{key}=2")
        settings[key] = int(value)
    return task, settings


def canonical(name: str) -> str:
    """Return the one name of a task: without settings that have their defaults, the others in the task's order.

    Raises:
        RecipeError: as ``ruler_task`` does.
    """
    task, settings = ruler_task(name)
    changed = [f"{key}={settings[key]}" for key, usual in task.settings.items() if settings.get(key, usual) != usual]
    return ":".join([name.partition(":")[0], *([",".join(changed)] if changed else [])])


def ruler_prompt(
    tokenizer: "PreTrainedTokenizerBase", task: str, length: int, seed: int, trial: int, data: RulerData
) -> RulerPrompt:
    """Draw the longest prompt of a task that fits ``length`` tokens together with the task's ``answer_tokens``.

    It is a function of the seed, the task, the length and the trial, and equal on every machine that has the same
    tokenizer and data. The tokenizer adds its usual special tokens, but no EOS at the end.

    Args:
        task: a key of ``TASKS``, perhaps with settings, as ``ruler_task`` reads them.
        length: tokens of the prompt and its answer.
        trial: number of the prompt, from 0 up; the QA tasks take the question with this number.
        data: the texts of RULER, or what stands in for them.

    Raises:
        RecipeError: the task or its setting is unknown, or the package with RULER's words is missing.
        DataError: the file with the questions is missing or damaged.
        TooShortError: no prompt fits; the message says the shortest length.
    """
    forms, room = _forms(tokenizer, task, length, seed, trial, data)
    refused = []
    for form in forms:
        try:
            units, ids = longest_prompt(room, partial(_drawn, form), form.units, each=form.tokens)
        except TooShortError as error:
            refused.append(error)
        else:
            drawn = form.draw(units)
            return RulerPrompt(ids, drawn.answers, drawn.depth, form.real_data)
    raise min(refused, key=lambda error: error.shortest)


def _drawn(form: Form, units: int) -> tuple[str, str]:
    """What ``longest_prompt`` asks for; the room keeps what the answer takes."""
    return form.draw(units).text, ""


def repeats(tokenizer: "PreTrainedTokenizerBase", task: str, length: int, data: RulerData) -> bool:
    """Whether prompts of ``length`` tokens are longer than the essays, or than all documents, and so repeat them."""
    forms, room = _forms(tokenizer, task, length, 0, 0, data)
    whole = forms[0].whole
    if whole is None or whole >= length:  # a word has a token at the least
        return False
    _, tokens = room.measured(*_drawn(forms[0], whole + 1))
    return tokens <= length


def _forms(
    tokenizer: "PreTrainedTokenizerBase", task: str, length: int, seed: int, trial: int, data: RulerData
) -> tuple[list[Form], Room]:
    found, settings = ruler_task(task)
    base = task.partition(":")[0]
    request = PromptRequest(tokenizer, length, _prompt_seed(seed, base, length, trial), trial, data)
    room = Room(tokenizer, length, found.answer_tokens, f"a prompt of {task}")
    return found.forms(request, **{**found.settings, **settings}), room


def _prompt_seed(seed: int, task: str, length: int, trial: int) -> int:
    """Return 32 bits that decide everything random in a prompt: draw number CRC-32(task) of (seed, length, trial)."""
    return int(Rng.of(seed, length, trial).bits(crc32(task.encode()))[0]) >> 32

"""What is measured of every model: texts, windows, prompts, precision. Each command hands one to the runner."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from skipwise.data import ruler
from skipwise.data.retrieval_prompts import TASKS
from skipwise.data.text import other_source
from skipwise.errors import RecipeError, at_least, counted, one_of
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.texts import EvaluationText
from skipwise.evaluation.windows import sliding_windows
from skipwise.recipes.schema import Data, Recipe
from skipwise.results.effective_length import FOUND
from skipwise.results.scores import THRESHOLD
from skipwise.results.statistics import (
    POWER,
    fewest_prompts,
    least_hits,
    prompts_for_difference,
    prompts_to_show,
    smallest_difference,
    wilson_interval,
)

RULER = "ruler:"  # stands before the name of one of RULER's tasks
_LONGEST_PROMPT = 2**24  # tokens; a prompt is held in memory and tokenised whole


@dataclass(frozen=True)
class Specification:
    """What is measured; lengths are in tokens.

    Attributes:
        texts: to read.
        windows: of sliding perplexity, rising.
        original: the original length, from which the default stride follows.
        target: the target length, from which it follows too.
        stride: of the windows; None: half the original length, or a 16th of the target if that is more, and at
            most half a window.
        documents: read of each text at the most, the longest first; 0: none is read.
        tokens_per_document: read of each document; None: as ``windows_per_document`` says.
        windows_per_document: times the longest window that is read of each document; None: all of it.
        segment_lengths: of segments that are read in one pass, for loss by position.
        segments: of each length, at the most.
        tasks: of retrieval, and of RULER, as ``ruler:vt``.
        prompt_lengths: of their prompts.
        trials: prompts for each task and length.
        seed: of the prompts.
        depths: how the place of the hidden number is drawn: ``random`` as in the paper, or ``spread`` over tenths.
        ruler_data: folder with RULER's essays and questions; None: a text stands in for the essays.
        precision: bf16, fp16 or float32.
        key_gain: of LongPPL, the least gain in nats that far text gives a key token; None: as published.
        key_loss: of LongPPL, the greatest loss in nats of a key token; None: as published.
        server: the engine of the server that answers the prompts, as ``vllm 0.32.0``; None: they are answered here.

    Raises:
        RecipeError: a number breaks its rule, a task is unknown, or a window cannot take the stride.
    """

    texts: tuple[Data, ...] = ()
    windows: tuple[int, ...] = ()
    original: int = 1
    target: int = 1
    stride: int | None = None
    documents: int = 8
    tokens_per_document: int | None = None
    windows_per_document: int | None = None
    segment_lengths: tuple[int, ...] = ()
    segments: int = 32
    tasks: tuple[str, ...] = ()
    prompt_lengths: tuple[int, ...] = ()
    trials: int = 0
    seed: int = 0
    depths: Literal["random", "spread"] = "spread"
    ruler_data: Path | None = None
    precision: str = "float32"
    key_gain: float | None = None
    key_loss: float | None = None
    server: str | None = None

    def __post_init__(self) -> None:
        for name, nats in (("key_gain", self.key_gain), ("key_loss", self.key_loss)):
            if nats is not None and not 0 < nats < math.inf:
                raise RecipeError(f"{name} {nats:g} must be a number of nats above 0; published is 2")
        for name, value, least in (
            ("documents", self.documents, 0),
            ("trials", self.trials, 1 if self.tasks else 0),
            ("seed", self.seed, 0),
        ):
            at_least(name, value, least)
        if (longest := max(self.prompt_lengths, default=0)) > _LONGEST_PROMPT:
            raise RecipeError(f"prompt length {longest:,} must be at most {_LONGEST_PROMPT:,} tokens; lower it")
        for task in self.tasks:
            if is_ruler(task):
                ruler.ruler_task(task.removeprefix(RULER))
            else:
                one_of("task", task, [*TASKS, RULER.removesuffix(":"), *ruler.TASKS])
        for window in self.windows:
            sliding_windows(window, window, self.stride_of(window))

    def stride_of(self, window: int) -> int:
        """By how many tokens windows advance: ``stride``, or a default of at most half the window.

        The default also serves a window that is narrower than ``stride`` and not among ``windows``, as that of a
        control.
        """
        if self.stride and (self.stride <= window or window in self.windows):
            return self.stride
        return min(max(self.original // 2, self.target // 16), window // 2)

    def tokens_read(self, longest: int) -> int | None:
        """How many tokens of a document are read at the most, where ``longest`` is the largest window; None: all."""
        if self.tokens_per_document is None and self.windows_per_document is not None:
            return self.windows_per_document * longest
        return self.tokens_per_document

    @property
    def prompt_precision(self) -> str:
        """The precision in which prompts are answered, in words where a server chose it: it does not tell."""
        return self.precision if self.server is None else f"chosen by {self.server}"

    def warnings(self, models: Sequence[EvaluatedModel], texts: Sequence[EvaluationText] = ()) -> Iterator[str]:
        """Say what these settings cannot show of some models that read ``texts``, of which the first decides how far they read."""
        if "passkey" in self.tasks and wilson_interval(self.trials, self.trials)[0] < FOUND:
            yield (
                f"{counted(self.trials, 'trial')} cannot show that {FOUND:.0%} of the passkeys are found, even if all "
                f"are: no effective length can be reported. Ask for {fewest_prompts(FOUND)} at least"
            )
        if "passkey" in self.tasks and texts and len(texts[0].documents) == 1:
            yield (
                "one document gives no interval of the loss: no effective length can be reported. Read two at least that have "
                f"{texts[0].windows[-1]:,} tokens"
            )
        for model in models:
            yield from self.beyond(model)

    def beyond(self, model: EvaluatedModel) -> Iterator[str]:
        """Say so where a length is beyond what a model was made for; of a control that is no surprise."""
        lengths = *self.windows, *self.prompt_lengths, *self.segment_lengths
        if not model.control and max(lengths, default=0) > model.target:
            yield f"{model.label} was made for {model.target:,} tokens and is expected to fail beyond"

    def claims(self) -> Iterator[str]:
        """Say which differences and which shares the prompts of each length can show, and how many prompts that takes."""
        own = [task for task in self.tasks if not is_ruler(task)]
        asked = self.trials * (len(self.tasks) - len(own))
        visible = [_difference(self.trials, "a task")] if own else []
        visible += [_difference(asked, "RULER's average")] if asked else []
        if visible:
            yield (
                f"Two models on the same prompts of one length: {'; '.join(visible)} (95% interval, power {POWER:.0%}, worst case: "
                f"independent answers near 50%). 5 points take {prompts_for_difference(0.05):,} prompts."
            )
        above = [f"{FOUND:.0%} of the passkeys: {_above(FOUND, self.trials, 0.97)}"] if "passkey" in self.tasks else []
        above += [f"RULER's limit of {THRESHOLD:.1%}: {_above(THRESHOLD, asked, 0.9)}"] if asked else []
        if above:
            yield f"To show that a model reaches a limit, its 95% interval must lie above it. {'. '.join(above)}."

    def as_dict(self) -> dict[str, Any]:
        """The fields for ``run.json``."""
        texts = [{"source": text.source, **text.reading} for text in self.texts]
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        told = {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()} | {"texts": texts}
        return told | {"ruler_data": None if self.ruler_data is None else str(self.ruler_data)}


def _difference(prompts: int, of: str) -> str:
    """Which difference between two models so many prompts can show."""
    return f"{counted(prompts, 'prompt')} can show {100 * smallest_difference(prompts):.0f} points in {of}"


def _above(needed: float, prompts: int, likely: float) -> str:
    """How many prompts show that a share is above ``needed``; ``likely`` is the true share of a model that is above it."""
    hits = least_hits(needed, prompts)
    now = (
        f"of {prompts:,} prompts {hits:,} must be right"
        if hits is not None
        else f"{counted(prompts, 'prompt')} cannot show it"
    )
    return (
        f"{now}; {fewest_prompts(needed):,} prompts are enough if all are right, and a model with {likely:.0%} right needs "
        f"{prompts_to_show(needed, likely):,} (power {POWER:.0%})"
    )


def is_ruler(task: str) -> bool:
    """Whether a task is one of RULER's."""
    return task.startswith(RULER)


def read_tasks(names: Sequence[str], ruler_data: Path | None = None) -> tuple[str, ...]:
    """Return the tasks of names such as ``passkey``, ``ruler``, ``ruler:vt`` and ``vt``, each once.

    ``ruler`` is all of RULER's tasks that can be made: those with questions need their files in ``ruler_data``. A name
    of RULER alone counts as RULER's. What follows a comma in ``vt:hops=2,chains=3`` belongs to the name before it.
    """
    whole: list[str] = []
    for name in filter(None, (name.strip() for name in names)):
        if "=" in name and ":" not in name and whole:
            whole[-1] += f",{name}"
        else:
            whole.append(name)
    tasks: list[str] = []
    for name in whole:
        if name == RULER.removesuffix(":"):
            tasks += [RULER + task for task in ruler.possible_tasks(ruler.read_ruler_data(ruler_data))]
        else:
            own = name.removeprefix(RULER)
            tasks.append(RULER + ruler.canonical(own) if own.partition(":")[0] in ruler.TASKS else name)
    return tuple(dict.fromkeys(tasks))


def doubled_windows(original: int, target: int) -> list[int]:
    """The original length, doubled up to the target, and the target."""
    return [*(original * 2**k for k in range(32) if original * 2**k < target), target]


def specification_of(recipe: Recipe, original: int, target: int, precision: str) -> Specification:
    """What a recipe's evaluation section asks for; the original and the target length are in tokens."""
    rule = recipe.evaluation
    windows = tuple(sorted(rule.windows or doubled_windows(original, target)))
    ruler_data = Path(rule.ruler_data) if rule.ruler_data else None
    return Specification(
        texts=tuple(other_source(recipe.data, source) for source in recipe.measured_sources),
        windows=windows,
        original=original,
        target=target,
        stride=rule.stride,
        documents=rule.documents,
        tokens_per_document=rule.tokens_per_document,
        windows_per_document=2,
        segment_lengths=tuple(rule.segment_lengths or ()),
        segments=rule.segments,
        tasks=read_tasks(rule.tasks, ruler_data) if rule.prompt_trials else (),
        ruler_data=ruler_data,
        prompt_lengths=tuple(rule.prompt_lengths or windows) if rule.prompt_trials else (),
        trials=rule.prompt_trials,
        seed=recipe.seed,
        depths="random",
        precision=precision,
    )


def specification_for(
    models: Sequence[EvaluatedModel], text: Data, *, lengths: Sequence[int], target: int | None, **settings: Any
) -> Specification:
    """What ``skipwise evaluate`` asks of models: windows and prompts from the shortest original length to the target.

    ``lengths`` are those of windows and prompts: by default the shortest original length, doubled up to ``target``, and
    that is by default the longest that a model's config says. ``settings`` are other fields of ``Specification``.
    """
    if lengths and target:
        raise RecipeError("--lengths gives the longest length already, and --target another: give one of them")
    original, longest = min(m.original for m in models), target or max(m.target for m in models)
    windows = tuple(sorted(set(lengths))) if lengths else tuple(doubled_windows(original, longest))
    return Specification(
        texts=(text,),
        windows=windows,
        original=original,
        target=windows[-1],
        windows_per_document=1,
        prompt_lengths=windows,
        **settings,
    )

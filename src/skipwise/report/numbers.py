"""List every number of a report once: pages, terminals, model cards, trackers, figures and CSV files read this list.

To add a number, define its ``Measure`` and yield it in ``_numbers``, with the title of its table and its row and column there.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.canvas import ARM_LOOKS, Look, looks_of
from skipwise.report.folder import Folder
from skipwise.report.rows import Judgement, Row, benchmarks_of, format_points, judgements, other_texts, rows_of
from skipwise.results.scores import (
    RulerScores,
    Score,
    average,
    difference,
    is_of_paper,
    paired_at,
    paper_records,
    shared_tasks,
)
from skipwise.results.statistics import Interval, Z, share_difference, wilson_interval

_MOST_MODELS = 4  # with tables and figures of RULER's tasks


def format_number(value: float) -> str:
    """Format a perplexity in two or three digits: 4.84, 134, 1.2e4."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if value >= 999.5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def format_share(share: float) -> str:
    """Format a share in per cent; 0% and 100% only if exact."""
    text = f"{100 * share:.0f}%"
    if share < 1 and text == "100%":
        return ">99%"
    return "<1%" if share > 0 and text == "0%" else text


def _perplexity(value: Interval, brief: bool) -> str:
    if brief or math.isinf(value.high):
        return format_number(value.mean)
    return f"{format_number(value.mean)} [{format_number(value.low)}, {format_number(value.high)}]"


def _percent(text: str, value: Interval, brief: bool) -> str:
    return text if brief else f"{text} [{100 * value.low:.0f}, {100 * value.high:.0f}]"


def _share(value: Interval, brief: bool) -> str:
    return _percent(format_share(value.mean), value, brief)


def _score(value: Interval, brief: bool) -> str:
    return _percent(f"{100 * value.mean:.1f}", value, brief)


def _mean(form: str, value: Interval, brief: bool) -> str:
    return form.format(value.mean)


def _change(form: str, segments: int, value: Interval, brief: bool) -> str:
    mean, low, high = (form.format(end) for end in (value.mean, value.low, value.high))
    span = f"{counted(segments, 'segment')}: too few for an interval" if math.isnan(value.low) else f"{low}, {high}"
    return f"{mean} [{span}]"


def _with_standard_error(value: Interval, brief: bool) -> str:
    error = "" if math.isnan(value.high) else f" ({(value.high - value.mean) / Z:.4f})"
    return f"{value.mean:.4f}{error}"


@dataclass(frozen=True)
class Measure:
    """The names of a number, and its format."""

    name: str  # in numbers.csv, with its unit
    group: str = ""  # of numbers with one kind of table or figure
    short: str = ""  # in the group, e.g. a task
    factor: int = 1  # from the value to the unit of ``name``
    form: Callable[[Interval, bool], str] = lambda value, brief: str(value)  # the value, without interval if brief
    rank: int = 0  # of its rows and columns in a table
    # Of a result on the model hub: data set, its title, type of metric, its name; fields {text}, {task}, {title}, {length}.
    hub: tuple[str, str, str, str] | None = None


PERPLEXITY = Measure(
    "perplexity by sliding window",
    "perplexity",
    "perplexity",
    form=_perplexity,
    hub=("{text}", "{text}, held out", "perplexity", "perplexity, sliding windows of {length:,} tokens"),
)
LOSS = Measure("loss by position, nats", "position", "loss (nats)", form=partial(_mean, "{:.3f}"))
GAIN = Measure("gain by far text, nats", "position", "gain by far text (nats)", rank=1)
EXCESS = Measure("loss over the base, nats", "position", "over the base (nats)", rank=2)


def task_title(task: str) -> str:
    """Return the title of a retrieval task, or its name."""
    return TASKS[task].title if task in TASKS else task


@dataclass(frozen=True)
class Number:
    """One measured number, with its table, row [label] and column [length]."""

    model: str
    text: str
    measure: Measure
    length: int | None  # tokens
    value: Interval  # NaN if undecided; its ends are NaN without an interval
    label: str = ""  # of its curve in figures
    count: int = 0  # documents, prompts or tasks
    table: str = ""  # empty without a table
    row: str = ""
    column: str = ""

    @property
    def cells(self) -> list[object]:
        """Its line in numbers.csv."""
        value = self.value.times(self.measure.factor)
        cells = [self.length or math.nan, value.mean, value.low, value.high]
        return [self.model, self.text, self.measure.name, *("" if math.isnan(cell) else cell for cell in cells)]


Curves = dict[str, dict[int, Number]]  # by label and length


@dataclass(frozen=True)
class ReportData:
    """Folders, and the results computed from their records."""

    folders: Sequence[Folder]

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each model and text."""
        return rows_of(self.folders)

    @cached_property
    def judged(self) -> list[Judgement]:
        """A judgement of each extended model."""
        return judgements(self.rows)

    @cached_property
    def numbers(self) -> list[Number]:
        """All numbers, in the order of numbers.csv."""
        return list(_numbers(self))

    def curves(self, group: str, short: str | None = None) -> Curves:
        """Return the numbers of a group, by label and length."""
        curves: Curves = {}
        for number in self.numbers:
            if number.measure.group == group and short in (None, number.measure.short) and number.length is not None:
                curves.setdefault(number.label, {})[number.length] = number
        return curves

    def shorts(self, group: str) -> list[str]:
        """Return the tasks or columns of a group."""
        return list(dict.fromkeys(n.measure.short for n in self.numbers if n.measure.group == group))

    @property
    def evaluated(self) -> bool:
        """True for an evaluation, False for runs."""
        return any(folder.models for folder in self.folders)

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Look of each label; an evaluation's base looks like a run's original."""
        arms = [row.arm if row.judged or row.arm in ARM_LOOKS else "original" for row in self.rows]
        looks = dict(zip([row.label for row in self.rows], looks_of(arms), strict=True))
        return {row.model: looks[row.label] for row in reversed(self.rows)} | looks

    @property
    def extended(self) -> set[str]:
        """Labels of extended models, by text and alone."""
        return {name for row in self.rows if row.judged for name in (row.label, row.model)}

    @property
    def bases(self) -> set[str]:
        """Labels of an evaluation's bases, measured inside their original length only."""
        bases = {name for row in self.rows if not row.judged for name in (row.label, row.model)}
        return bases if self.evaluated else set()

    @property
    def original(self) -> int | None:
        """Original length in tokens, if all extended models share it."""
        lengths = {row.original for row in self.rows if row.judged}
        return lengths.pop() if len(lengths) == 1 else None

    def few(self, labels: Sequence[str]) -> list[str]:
        """Return all labels, or of many the extended models'."""
        return list(labels) if len(self.rows) <= 4 else [label for label in labels if label in self.extended]

    @cached_property
    def ruler_tasks(self) -> list[str]:
        """RULER's tasks in the averages: measured at every length of every model."""
        return shared_tasks([row.ruler for row in self.rows if row.ruler])

    @cached_property
    def stand_in_tasks(self) -> set[str]:
        """RULER's tasks for which another text replaces RULER's own."""
        return {task for row in self.rows if row.ruler for task, real in row.ruler.real.items() if not real}

    @cached_property
    def ruler_models(self) -> list[str]:
        """Bases and the first four extended models, with tables of RULER's tasks."""
        rows = [row for row in self.rows if row.ruler]
        first = [row for row in rows if row.judged][:_MOST_MODELS]
        return [row.model for row in rows if row in first or not row.judged]

    @property
    def ruler_note(self) -> str:
        """Which models have tables of RULER's tasks; empty for all."""
        models = sum(row.judged for row in self.rows if row.ruler)
        return f"the first {_MOST_MODELS} of {models} models; numbers.csv has all" if models > _MOST_MODELS else ""

    def ruler_task(self, task: str) -> str:
        """Return a RULER task's name, marked if its text is replaced."""
        return f"{task} (style)" if task in self.stand_in_tasks else task

    @property
    def ruler_name(self) -> str:
        """``RULER``, or ``RULER-style`` with another text."""
        return "RULER-style" if self.stand_in_tasks else "RULER"


def _numbers(data: ReportData) -> Iterator[Number]:
    for row in data.rows:
        title = "Perplexity by sliding window (lower is better)"
        for window, value in row.perplexity.items():
            documents = len(row.sliding[window])
            yield Number(row.model, row.data, PERPLEXITY, window, value, row.label, documents, title)
        for task, lengths in row.found.items():
            title = f"{task_title(task).capitalize()} found, by prompt length (higher is better)"
            hub = "skipwise/{task}", "{title}", "accuracy", "share found, prompts of {length:,} tokens"
            measure = Measure(f"found, {task}, %", "found", task, 100, _share, hub=hub)
            for length, (hits, prompts) in lengths.items():
                value = Interval(hits / prompts, *wilson_interval(hits, prompts))
                yield Number(row.model, row.data, measure, length, value, row.model, prompts, title)
        if row.ruler:
            yield from _ruler_scores(data, row, row.ruler)
    for judgement in data.judged:
        yield from _judged(judgement, f"Loss by position: {judgement.row.label}" if data.evaluated else "")
    title = f"{data.ruler_name}, average of {counted(len(data.ruler_tasks), 'task')}"
    measure = Measure(f"{title}, %", "ruler", "ruler", 100, _score)
    title = f"{title} in %, by prompt length (higher is better)"
    for row in data.rows:
        for length in row.ruler.lengths if row.ruler else ():
            if row.ruler and (mean := row.ruler.average(length, data.ruler_tasks)):
                yield Number(row.model, row.data, measure, length, mean, row.model, len(data.ruler_tasks), title)
    if data.evaluated:
        yield from _differences(data)
    for r in benchmarks_of(data.folders):
        name = f"{r.task}, {r.fewshot}-shot, {r.metric}"
        measure = Measure(f"benchmark {name}", "benchmarks", form=_with_standard_error)
        title = "" if is_of_paper(r) else "Benchmarks (standard error)"
        yield Number(r.arm, "", measure, None, _with_error(r.value, r.standard_error), "", 0, title, name, r.arm)
    for model, scores in paper_differences(data.folders).items():
        for task, score in scores.items():
            measure = Measure(f"benchmark {task}, % less its base's, {'paired' if score.paired else 'not paired'}")
            yield Number(model, "", measure, None, _with_error(score.value, score.error))
    for folder in data.folders:
        yield from _other_texts(folder, f"{folder.name} · " if len(data.folders) > 1 else "")


def _ruler_scores(data: ReportData, row: Row, scores: RulerScores) -> Iterator[Number]:
    """Yield the score of each task, for tables by length or model."""
    name, note = data.ruler_name, f" ({data.ruler_note})" if data.ruler_note else ""
    hub = "skipwise/ruler-{task}", f"{name}, {{task}}", "accuracy", "mean score, prompts of {length:,} tokens"
    several = sum(row.judged for row in data.rows if row.ruler) > 1
    for task, length, _ in scores.means:
        measure = Measure(f"{name}, {task}, %", "ruler by task", task, 100, _score, hub=hub)
        value, prompts = scores.average(length, [task]), len(scores.prompts[task][length])
        assert value is not None
        title = (
            f"{name} by task at {format_length(length)} in %{note}" if several else f"{name} by task in %: {row.model}"
        )
        place = title if row.model in data.ruler_models else "", data.ruler_task(task), row.model if several else ""
        yield Number(row.model, row.data, measure, length, value, row.model, prompts, *place)


def _judged(judgement: Judgement, title: str) -> Iterator[Number]:
    row = judgement.row
    number = partial(Number, row.model, row.data)
    claimed = judgement.effective.claimed(row.original)
    yield number(Measure("effective length"), None, _exact(math.nan if claimed is None else claimed))
    if judgement.ruler:
        yield number(Measure("length by RULER's rule"), None, _exact(judgement.ruler.tokens))
    if judgement.cost:
        yield number(Measure("cost, nats inside the original window"), None, judgement.cost.loss)
        yield number(Measure("cost, next-token accuracy"), None, judgement.cost.accuracy)
    if judgement.ruler_difference:
        length, change = judgement.ruler_difference
        yield number(Measure(f"RULER, average less that of {judgement.base}, %", factor=100), length, change)
    for bucket in judgement.buckets:
        place = f"{bucket.begin:,} .. {bucket.end - 1:,}"
        for measure, value in ((LOSS, bucket.loss), (GAIN, bucket.gain), (EXCESS, bucket.excess)):
            if value:
                yield number(measure, bucket.end, value, row.label, 0, title, place, measure.short)
    for tokens, value in row.truncated().items():
        yield number(Measure("perplexity of the first tokens"), tokens, value)


def _differences(data: ReportData) -> Iterator[Number]:
    """Yield the scores of further extended models minus the first one's.

    RULER's is of the average over ``data.ruler_tasks``.
    """
    rows = list({row.arm: row for row in data.rows if row.judged and (row.trials or row.ruler)}.values())
    for first, row in ((rows[0], row) for row in rows[1:]):
        shares = {
            (task, length): share_difference(_hits(row, task, length), _hits(first, task, length))
            for task, lengths in row.trials.items()
            for length in lengths
        }
        if row.ruler and first.ruler:
            for length in row.ruler.lengths:
                shares[data.ruler_name, length] = paired_at(row.ruler, first.ruler, length, data.ruler_tasks)
        title = f"Difference to {first.model} on the same prompts, in points (95% interval)"
        for (task, length), value in shares.items():
            measure = Measure(
                f"{task}, % more than {first.model}", "differences", task, 100, lambda v, _: format_points(v)
            )
            place = f"{task}, {format_length(length)}"
            if value:
                yield Number(row.model, "", measure, length, value, row.model, 0, title, place, row.model)


def _hits(row: Row, task: str, length: int) -> dict[int, bool]:
    return {number: trial.hit for number, trial in row.trials.get(task, {}).get(length, {}).items()}


def _other_texts(folder: Folder, run: str) -> Iterator[Number]:
    names = {"loss (nats)": ("loss", "cost"), "accuracy (%)": ("next-token accuracy", "change of next-token accuracy")}
    for rank, text in ((list(names).index(text.measure), text) for text in other_texts(folder)):
        (mean, change), unit = names[text.measure], ("nats", "%")[rank]
        where, form = f"on other text, {unit} inside the original window", ("{:.3f}", "{:.2f}")[rank]
        level = Measure(f"{mean} {where}", "other text", form=partial(_mean, form), rank=rank)
        title = f"Short ability: other text inside the original window{f' ({folder.name})' if run else ''}"
        title, row = title + (f": {arm_name(text.arm)}" if folder.models else ""), f"{text.kind}, {text.measure}"
        model, base = f"{run}{arm_name(text.arm)}", f"{run}{folder.base_of(text.arm)}"
        if text.base is not None:
            yield Number(base, text.kind, level, text.tokens, _exact(text.base), "", 0, title, row, "base")
        column = "extended" if text.change else "model"
        yield Number(model, text.kind, level, text.tokens, _exact(text.own), "", 0, title, row, column)
        if text.change:
            signed = partial(_change, form.replace(":", ":+"), text.segments)
            measure = Measure(f"{change} {where}", "other text", form=signed, rank=rank)
            yield Number(model, text.kind, measure, text.tokens, text.change, "", 0, title, row, "difference")


def _exact(value: float) -> Interval:
    return Interval(value, math.nan, math.nan)


def _with_error(value: float, error: float | None) -> Interval:
    return _exact(value) if error is None else Interval(value, value - Z * error, value + Z * error)


def with_average(scores: Mapping[str, Score]) -> dict[str, Score]:
    """Add the average of the paper's benchmarks, if all six are there."""
    mean = average(scores)
    return {**scores, "average": mean} if mean else dict(scores)


def paper_differences(folders: Sequence[Folder]) -> dict[str, dict[str, Score]]:
    """Return each model's paper scores minus its base's, by task."""
    found = paper_records(benchmarks_of(folders))
    bases = {m["label"]: found.get(str(m.get("base") or ""), {}) for folder in folders for m in folder.models}
    differences = {
        model: {task: difference(own[task], bases[model][task]) for task in own if task in bases.get(model, {})}
        for model, own in found.items()
    }
    return {model: with_average(scores) for model, scores in differences.items() if scores}

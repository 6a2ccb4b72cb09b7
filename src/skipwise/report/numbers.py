"""List every number of a report once: pages, terminals, model cards, trackers, figures and CSV files read this list.

To add a number, define its ``Measure`` and yield it in ``_numbers``. With a ``title`` it gets a table by length.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import counted
from skipwise.recipes.names import arm_name
from skipwise.report.canvas import ARM_LOOKS, Look, looks_of
from skipwise.report.folder import Folder
from skipwise.report.rows import Judgement, Row, benchmarks_of, format_points, judgements, other_texts, rows_of
from skipwise.results.scores import Score, average, difference, paired_at, paper_records, shared_tasks
from skipwise.results.statistics import Interval, Z, share_difference, wilson_interval


def format_number(value: float) -> str:
    """Format a perplexity in two to three digits: 4.84, 15.7, 134, 1.2e4, ∞."""
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


def _points(value: Interval, brief: bool) -> str:
    return format_points(value)


@dataclass(frozen=True)
class Measure:
    """The names of a number, and its format."""

    name: str  # in numbers.csv, with its unit
    group: str = ""  # numbers of one group share a table or a figure
    short: str = ""  # in the group: a task, or a column's head
    title: str = ""  # of the table by length; empty without a table
    factor: int = 1  # from the value to the unit of ``name``
    form: Callable[[Interval, bool], str] = lambda value, brief: str(value)  # the value, without interval if brief
    # Of a result on the model hub: data set, its title, type of metric, its name; fields {text}, {task}, {title}, {length}.
    hub: tuple[str, str, str, str] | None = None


PERPLEXITY = Measure(
    "perplexity by sliding window",
    "perplexity",
    "perplexity",
    "Perplexity by sliding window (lower is better)",
    form=_perplexity,
    hub=("{text}", "{text}, held out", "perplexity", "perplexity, sliding windows of {length:,} tokens"),
)
LOSS = Measure("loss by position, nats", "position", "loss (nats)", form=lambda value, brief: f"{value.mean:.3f}")
GAIN = Measure("gain by far text, nats", "position", "gain by far text (nats)")
EXCESS = Measure("loss over the base, nats", "position", "over the base (nats)")


def task_title(task: str) -> str:
    """Return the title of a retrieval task; an unknown task is its own title."""
    return TASKS[task].title if task in TASKS else task


@dataclass(frozen=True)
class Number:
    """One measured number."""

    model: str
    text: str
    measure: Measure
    length: int | None  # tokens
    value: Interval  # NaN if undecided; its ends are NaN without an interval
    label: str = ""  # of its row in tables
    count: int = 0  # documents, prompts or tasks

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
        """Look of each label; the base of an evaluation has the look of a run's original."""
        arms = [row.arm if row.judged or row.arm in ARM_LOOKS else "original" for row in self.rows]
        looks = dict(zip([row.label for row in self.rows], looks_of(arms), strict=True))
        return {row.model: looks[row.label] for row in reversed(self.rows)} | looks

    @property
    def extended(self) -> set[str]:
        """Labels of extended models, by text and alone."""
        return {name for row in self.rows if row.judged for name in (row.label, row.model)}

    @property
    def bases(self) -> set[str]:
        """Labels of an evaluation's bases, which have only windows of their original length; figures extend their lines."""
        bases = {name for row in self.rows if not row.judged for name in (row.label, row.model)}
        return bases if self.evaluated else set()

    @property
    def original(self) -> int | None:
        """Original length in tokens, if all extended models share it."""
        lengths = {row.original for row in self.rows if row.judged}
        return lengths.pop() if len(lengths) == 1 else None

    def few(self, labels: Sequence[str]) -> list[str]:
        """Return the labels for a caption: all, or of many the extended models."""
        return list(labels) if len(self.rows) <= 4 else [label for label in labels if label in self.extended]

    @cached_property
    def ruler_tasks(self) -> list[str]:
        """RULER's tasks in the averages: measured at every length of every model."""
        return shared_tasks([row.ruler for row in self.rows if row.ruler])

    @cached_property
    def stand_in_tasks(self) -> set[str]:
        """RULER's tasks for which another text replaces RULER's own."""
        return {task for row in self.rows if row.ruler for task, real in row.ruler.real.items() if not real}

    @property
    def ruler_name(self) -> str:
        """``RULER``, or ``RULER-style`` with a stand-in text."""
        return "RULER-style" if self.stand_in_tasks else "RULER"


def _numbers(data: ReportData) -> Iterator[Number]:
    for row in data.rows:
        for window, value in row.perplexity.items():
            documents = len(row.sliding[window])
            yield Number(row.model, row.data, PERPLEXITY, window, value, row.label, documents)
        for task, lengths in row.found.items():
            title = f"{task_title(task).capitalize()} found, by prompt length (higher is better)"
            hub = "skipwise/{task}", "{title}", "accuracy", "share found, prompts of {length:,} tokens"
            measure = Measure(f"found, {task}, %", "found", task, title, 100, _share, hub)
            for length, (hits, prompts) in lengths.items():
                value = Interval(hits / prompts, *wilson_interval(hits, prompts))
                yield Number(row.model, row.data, measure, length, value, row.model, prompts)
        yield from _ruler_scores(row, data.ruler_name)
    for judgement in data.judged:
        yield from _judged(judgement)
    title = f"{data.ruler_name}, average of {counted(len(data.ruler_tasks), 'task')}"
    measure = Measure(
        f"{title}, %", "ruler", "ruler", f"{title} in %, by prompt length (higher is better)", 100, _score
    )
    for row in data.rows:
        for length in row.ruler.lengths if row.ruler else ():
            if row.ruler and (mean := row.ruler.average(length, data.ruler_tasks)):
                yield Number(row.model, row.data, measure, length, mean, row.model, len(data.ruler_tasks))
    if data.evaluated:
        yield from _differences(data)
    for r in benchmarks_of(data.folders):
        measure = Measure(f"benchmark {r.task}, {r.fewshot}-shot, {r.metric}")
        yield Number(r.arm, "", measure, None, _with_error(r.value, r.standard_error))
    for model, scores in paper_differences(data.folders).items():
        for task, score in scores.items():
            measure = Measure(f"benchmark {task}, % less its base's, {'paired' if score.paired else 'not paired'}")
            yield Number(model, "", measure, None, _with_error(score.value, score.error))
    for folder in data.folders:
        yield from _other_texts(folder, f"{folder.name} · " if len(data.folders) > 1 else "")


def _ruler_scores(row: Row, name: str) -> Iterator[Number]:
    hub = "skipwise/ruler-{task}", f"{name}, {{task}}", "accuracy", "mean score, prompts of {length:,} tokens"
    for task, length, _ in row.ruler.means if row.ruler else ():
        if row.ruler and (score := row.ruler.score(task, length)):
            measure = Measure(f"{name}, {task}, %", "ruler by task", task, "", 100, _score, hub)
            yield Number(row.model, row.data, measure, length, score, row.model, len(row.ruler.prompts[task][length]))


def _judged(judgement: Judgement) -> Iterator[Number]:
    row = judgement.row

    def number(measure: Measure, length: int | None, value: Interval) -> Number:
        return Number(row.model, row.data, measure, length, value, row.label)

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
        for measure, value in ((LOSS, bucket.loss), (GAIN, bucket.gain), (EXCESS, bucket.excess)):
            if value:
                yield number(measure, bucket.end, value)
    for tokens, value in row.truncated().items():
        yield number(Measure("perplexity of the first tokens"), tokens, value)


def _differences(data: ReportData) -> Iterator[Number]:
    """Yield the share of each further extended model minus the first one's, on the same prompts.

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
        for (task, length), value in shares.items():
            name, title = (
                f"{task}, % more than {first.model}",
                f"Difference to {first.model} on the same prompts, in points (95% interval)",
            )
            if value:
                measure = Measure(name, "differences", task, title, 100, _points)
                yield Number(row.model, "", measure, length, value, row.model)


def _hits(row: Row, task: str, length: int) -> dict[int, bool]:
    return {number: trial.hit for number, trial in row.trials.get(task, {}).get(length, {}).items()}


def _other_texts(folder: Folder, run: str) -> Iterator[Number]:
    names = {"loss (nats)": ("loss", "cost"), "accuracy (%)": ("next-token accuracy", "change of next-token accuracy")}
    for text in other_texts(folder):
        unit = text.measure[text.measure.index("(") + 1 : -1]
        mean, change = (Measure(f"{n} on other text, {unit} inside the original window") for n in names[text.measure])
        model, base = f"{run}{arm_name(text.arm)}", f"{run}{folder.base_of(text.arm)}"
        if text.base is not None:
            yield Number(base, text.kind, mean, text.tokens, _exact(text.base))
        yield Number(model, text.kind, mean, text.tokens, _exact(text.own))
        if text.change:
            yield Number(model, text.kind, change, text.tokens, text.change)


def _exact(value: float) -> Interval:
    return Interval(value, math.nan, math.nan)


def _with_error(value: float, error: float | None) -> Interval:
    return _exact(value) if error is None else Interval(value, value - Z * error, value + Z * error)


def with_average(scores: Mapping[str, Score]) -> dict[str, Score]:
    """Add the average of the paper's benchmarks, if all six are there."""
    mean = average(scores)
    return {**scores, "average": mean} if mean else dict(scores)


def paper_differences(folders: Sequence[Folder]) -> dict[str, dict[str, Score]]:
    """Return by model and task the scores of the paper's benchmarks minus the base's, with their average."""
    found = paper_records(benchmarks_of(folders))
    bases = {m["label"]: found.get(str(m.get("base") or ""), {}) for folder in folders for m in folder.models}
    differences = {
        model: {task: difference(own[task], bases[model][task]) for task in own if task in bases.get(model, {})}
        for model, own in found.items()
    }
    return {model: with_average(scores) for model, scores in differences.items() if scores}

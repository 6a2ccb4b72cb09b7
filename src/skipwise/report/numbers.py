"""List every number of a report once: pages, terminals, model cards, trackers, figures and CSV files read this list.

To add a number, define its ``Measure`` and yield it in ``_numbers``, with the title of its table and its row and column there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from skipwise.data.prompts import TASKS
from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.recipes.names import display_name, public_name
from skipwise.report.canvas import LOOKS, Look, looks_of
from skipwise.report.rows import (
    COST_LIMIT,
    LESS_COST,
    Folder,
    Judgement,
    Row,
    benchmarks_of,
    format_points,
    judge,
    rows_of,
)
from skipwise.results import scores
from skipwise.results.records import OTHER_TEXT, BenchmarkRecord, ReadingRecord
from skipwise.results.scores import PAPER, RulerScores
from skipwise.results.statistics import (
    FEWEST_SEGMENTS,
    Interval,
    Sums,
    Z,
    difference,
    loss,
    share_difference,
    wilson_interval,
)

# Groups of numbers in the order of the page: the head of the labels of their rows.
GROUPS = {"perplexity": "window", "found": "prompt", "ruler": "prompt", "ruler by task": "task"}
GROUPS |= {"differences": "prompt", "other text": "text", "paper": "task", "benchmarks": "task", "position": "position"}
SUMMARY = ("perplexity", "found", "ruler")  # groups in the summary of a run
TRACKED = ("perplexity", "found", "ruler by task")  # groups that trackers log


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


def _percent(form: Callable[[float], str], value: Interval, brief: bool) -> str:
    return form(value.mean) + ("" if brief else f" [{100 * value.low:.0f}, {100 * value.high:.0f}]")


_SCORE = partial(_percent, lambda share: f"{100 * share:.1f}")


def _mean(form: str, value: Interval, brief: bool) -> str:
    return form.format(value.mean)


def _change(form: str, value: Interval, brief: bool) -> str:
    mean, low, high = (form.format(end) for end in (value.mean, value.low, value.high))
    return f"{mean} [{'too few segments' if math.isnan(value.low) else f'{low}, {high}'}]"


def _with_standard_error(form: str, star: str, value: Interval, brief: bool) -> str:
    error = "" if math.isnan(value.high) else f" ({form.replace('+', '').format((value.high - value.mean) / Z)}{star})"
    return f"{form.format(value.mean)}{error}"


@dataclass(frozen=True)
class Measure:
    """The names of a number, and its format."""

    name: str  # in numbers.csv, with its unit
    group: str = ""  # of numbers with one kind of table or figure
    short: str = ""  # in the group, e.g. a task
    factor: float = 1  # from the value to the unit of ``name``
    form: Callable[[Interval, bool], str] = lambda value, brief: str(value)  # the value, without interval if brief
    rank: int = 0  # of its rows and columns in a table


PERPLEXITY = Measure("perplexity by sliding window", "perplexity", "perplexity", form=_perplexity)
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
    count: int = 0  # documents, prompts, segments or tasks
    table: str = ""  # empty without a table
    row: str = ""
    column: str = ""
    hub: tuple[str, str, str, str] | None = None  # on the model hub: data set, its title, type and name of the metric

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
        return judge(self.rows)

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
        names = [row.name if row.judged or row.name in LOOKS else "original" for row in self.rows]
        looks = dict(zip([row.label for row in self.rows], looks_of(names), strict=True))
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
    def rules(self) -> list[str]:
        """Rules of the effective length, without repetition."""
        return list(dict.fromkeys(judgement.effective.rule for judgement in self.judged))

    @property
    def warnings(self) -> list[str]:
        """Warnings of models with a high loss on other text."""
        costs = [n for n in self.numbers if n.measure.group == "other text" and n.measure.short == "cost"]
        rises: dict[str, list[str]] = {}
        for n in costs:
            if n.value.mean > COST_LIMIT:
                rises.setdefault(n.model, []).append(f"{n.value.mean:.3f} on {n.text}")
        several = len({n.model for n in costs}) > 1
        return [
            f"{f'{model}: ' if several else ''}Inside the original window the loss rises by {' and '.join(texts)} (nats per "
            f"token), more than {COST_LIMIT}: the model reads such text worse than its base. {LESS_COST}."
            for model, texts in rises.items()
        ]

    @property
    def original(self) -> int | None:
        """Original length in tokens, if all extended models share it."""
        lengths = {row.original for row in self.rows if row.judged}
        return lengths.pop() if len(lengths) == 1 else None

    @cached_property
    def ruler_tasks(self) -> list[str]:
        """RULER's tasks in the averages: measured at every length of every model."""
        return scores.shared_tasks([row.ruler for row in self.rows if row.ruler])

    @cached_property
    def stand_in_tasks(self) -> set[str]:
        """RULER's tasks for which another text replaces RULER's own."""
        return {task for row in self.rows if row.ruler for task, real in row.ruler.real.items() if not real}

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
            name = public_name(row.data)
            hub = name, f"{name}, held out", "perplexity", f"perplexity, sliding windows of {window:,} tokens"
            count = len(row.sliding[window])
            yield Number(row.model, row.data, PERPLEXITY, window, value, row.label, count, title, hub=hub)
        for task, lengths in row.found.items():
            name, form = task_title(task), partial(_percent, format_share)
            measure = Measure(f"found, {task}, %", "found", task, 100, form)
            title = f"{name.capitalize()} found, by prompt length (higher is better)"
            for length, (hits, prompts) in lengths.items():
                value = Interval(hits / prompts, *wilson_interval(hits, prompts))
                hub = f"skipwise/{task}", name, "accuracy", f"share found, prompts of {length:,} tokens"
                yield Number(row.model, row.data, measure, length, value, row.model, prompts, title, hub=hub)
        if row.ruler:
            yield from _ruler_scores(data, row, row.ruler)
    for judgement in data.judged:
        yield from _judged(judgement, f"Loss by position: {judgement.row.label}" if data.evaluated else "")
    title = f"{data.ruler_name}, average of {counted(len(data.ruler_tasks), 'task')}"
    measure = Measure(f"{title}, %", "ruler", "ruler", 100, _SCORE)
    title = f"{title} in %, by prompt length (higher is better)"
    for row in data.rows:
        for length in row.ruler.lengths if row.ruler else ():
            if row.ruler and (mean := row.ruler.average(length, data.ruler_tasks)):
                yield Number(row.model, row.data, measure, length, mean, row.model, len(data.ruler_tasks), title)
    if data.evaluated:
        yield from _differences(data)
    yield from _benchmarks(data)
    for folder in data.folders:
        yield from _other_texts(folder, f"{folder.name} · " if len(data.folders) > 1 else "")


def _ruler_scores(data: ReportData, row: Row, ruler: RulerScores) -> Iterator[Number]:
    """Yield the score of each task, for tables by length or model."""
    name = data.ruler_name
    several = sum(row.judged for row in data.rows if row.ruler) > 1
    for task, length, _ in ruler.means:
        measure = Measure(f"{name}, {task}, %", "ruler by task", task, 100, _SCORE)
        value, prompts = ruler.average(length, [task]), len(ruler.prompts[task][length])
        assert value is not None
        title = f"{name} by task at {format_length(length)} in %" if several else f"{name} by task in %: {row.model}"
        hub = f"skipwise/ruler-{task}", f"{name}, {task}", "accuracy", f"mean score, prompts of {length:,} tokens"
        place = title, data.ruler_task(task), row.model if several else "", hub
        yield Number(row.model, row.data, measure, length, value, row.model, prompts, *place)


def _judged(judgement: Judgement, title: str) -> Iterator[Number]:
    row = judgement.row
    number = partial(Number, row.model, row.data)
    claimed = judgement.effective.claimed(row.original)
    yield number(Measure("effective length"), None, _exact(math.nan if claimed is None else claimed))
    if judgement.ruler:
        yield number(Measure("length by RULER's rule"), None, _exact(judgement.ruler.tokens))
    if judgement.cost and judgement.accuracy:
        yield number(Measure("cost, nats inside the original window"), None, judgement.cost)
        yield number(Measure("cost, next-token accuracy"), None, judgement.accuracy)
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
    """Yield the scores of further extended models minus the first one's; of RULER its average."""
    rows = list({row.name: row for row in data.rows if row.judged and (row.trials or row.ruler)}.values())
    for first, row in ((rows[0], row) for row in rows[1:]):
        shares = {
            (task, length): share_difference(_hits(row, task, length), _hits(first, task, length))
            for task, lengths in row.trials.items()
            for length in lengths
        }
        if row.ruler and first.ruler:
            for length in row.ruler.lengths:
                shares[data.ruler_name, length] = scores.paired_at(row.ruler, first.ruler, length, data.ruler_tasks)
        title = f"Difference to {first.model} on the same prompts, in points (95% interval)"
        for (task, length), value in shares.items():
            if value:
                form, place = (lambda value, brief: format_points(value)), f"{task}, {format_length(length)}"
                measure = Measure(f"{task}, % more than {first.model}", "differences", task, 100, form)
                yield Number(row.model, "", measure, length, value, row.model, 0, title, place, row.model)


def _hits(row: Row, task: str, length: int) -> dict[int, bool]:
    return {number: trial.hit for number, trial in row.trials.get(task, {}).get(length, {}).items()}


def _benchmarks(data: ReportData) -> Iterator[Number]:
    """Yield benchmark scores; of the paper's benchmarks also averages and differences to bases."""
    paper: dict[str, dict[str, BenchmarkRecord]] = {}  # by model and task
    for r in benchmarks_of(data.folders):
        if scores.is_of_paper(r):
            paper.setdefault(r.arm, {})[r.task] = r
        else:
            name, form = f"{r.task}, {r.fewshot}-shot, {r.metric}", partial(_with_standard_error, "{:.4f}", "")
            value, place = (
                _exact(r.value, math.nan if r.standard_error is None else r.standard_error),
                ("Benchmarks (standard error)", name, r.arm),
            )
            yield Number(r.arm, "", Measure(f"benchmark {name}", "benchmarks", form=form), None, value, "", 0, *place)
    limits = sorted({r.limit for own in paper.values() for r in own.values() if r.limit})
    title = "The paper's benchmarks (its Table 3) in % (standard error; * other questions)"
    title += f", only the first {' and '.join(map(str, limits))} questions of each" if limits else ""
    bases = {m["label"]: str(m.get("base") or "") for folder in data.folders for m in folder.models}
    columns: list[tuple[str, str, dict[str, scores.Score]]] = []
    for model in sorted(paper, key=lambda model: model not in bases.values()):
        own, theirs = paper[model], paper.get(bases.get(model, ""), {})
        columns.append((model, model, {task: scores.score(own[task]) for task in own}))
        changes = {task: scores.difference(own[task], theirs[task]) for task in own if task in theirs}
        columns.append((model, f"{model} less its base", changes))
    for model, column, results in columns:
        if mean := scores.average(results):
            results["average"] = mean
        for task in filter(results.__contains__, (*PAPER, "average")):
            row, name, result = task, task, results[task]
            if how := PAPER.get(task):
                row, name = f"{how.title}, {how.fewshot}-shot", f"{task}, {how.fewshot}-shot, {how.metric}"
            if result.paired is None:
                form = partial(_with_standard_error, "{:.2f}", "")
                measure = Measure(f"benchmark {name}", "paper", "score", 0.01, form)
            else:
                form = partial(_with_standard_error, "{:+.2f}", "" if result.paired else "*")
                name = f"{task}, % less its base's, {'paired' if result.paired else 'not paired'}"
                measure = Measure(f"benchmark {name}", "paper", "difference", form=form)
            yield Number(model, "", measure, None, _exact(result.value, result.error), "", 0, title, row, column)


def _other_texts(folder: Folder, run: str) -> Iterator[Number]:
    """Yield loss and accuracy on other text, of extended models and of their bases on the same segments."""
    read: dict[str, dict[str, dict[int, ReadingRecord]]] = {}  # by model, kind of text and first token
    for r in folder.records:
        if isinstance(r, ReadingRecord) and r.data == OTHER_TEXT:
            read.setdefault(r.arm, {}).setdefault(r.document, {})[r.begin] = r
    bases = {model: folder.base_of(model) for model in read}
    extended = [model for model, base in bases.items() if base or (folder.models and model not in bases.values())]
    measures: list[tuple[Sums, int, str, str, str, str]] = [
        ("nll", 1, "nats", "{:.3f}", "loss", "cost"),
        ("hits", 100, "%", "{:.2f}", "next-token accuracy", "change of next-token accuracy"),
    ]
    for name, kind in [(model, kind) for model in extended for kind in read[model]]:
        own, base = read[name][kind], bases[name]
        theirs = read.get(base, {}).get(kind, {}) if base else own
        ours, others = ([side[begin] for begin in sorted(own.keys() & theirs.keys())] for side in (own, theirs))
        title = f"Short ability: other text inside the original window{f' ({folder.name})' if run else ''}"
        title += f": {display_name(name)}" if folder.models else ""
        for rank, (sums, factor, unit, form, level, change) in enumerate(measures):
            if not (gap := difference(ours, others, sums=sums, by_segment=True)):
                break
            gap = gap if len(ours) >= FEWEST_SEGMENTS else _exact(gap.mean)
            means = [_exact(loss(side, sums=sums).mean) for side in (others, ours)]
            mean, signed = partial(_mean, form), partial(_change, form.replace(":", ":+"))
            columns = [(base, "base", level, means[0], mean), (name, "extended", level, means[1], mean)]
            columns += [(name, "difference", change, gap, signed)]
            for model, column, what, value, write in columns if base else [(name, "model", level, means[1], mean)]:
                where = f"{what} on other text, {unit} inside the original window"
                measure = Measure(where, "other text", what, form=write, rank=rank)
                place = len(ours), title, f"{kind}, {'accuracy' if rank else 'loss'} ({unit})", column
                value = value.times(factor)
                yield Number(f"{run}{display_name(model)}", kind, measure, ours[0].window, value, "", *place)


def _exact(value: float, error: float = math.nan) -> Interval:
    """Return a value with the interval of its standard error, or without one."""
    return Interval(value, value - Z * error, value + Z * error)

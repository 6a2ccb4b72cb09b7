"""RULER's scores -> tables: the average of every model, and what each of at most four scored in every task."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.report.summary import Row, standing_out
from skipwise.report.table import Table
from skipwise.results.scores import RulerScores, shared_tasks
from skipwise.results.statistics import Interval

_SIDE_BY_SIDE = 4  # models; more would not fit beside each other


def ruler_tables(rows: Sequence[Row], brief: bool) -> list[Table]:
    """The average of each model by length, and below it the tasks: of one model by length, of several side by side."""
    scores = {row.model: row.ruler for row in rows if row.ruler}
    tasks = shared_tasks(list(scores.values()))
    lengths = sorted({length for one in scores.values() for length in one.lengths})

    def cells(of: Callable[[int], Interval | None]) -> list[str]:
        return [_share(of(length), brief) for length in lengths]

    averages = [[label, *cells(partial(_average, one, tasks))] for label, one in scores.items()]
    title = f"{ruler_name(scores.values())}, average of {counted(len(tasks), 'task')} in %, by prompt length (higher is better)"
    head = ["prompt", *map(format_length, lengths)]
    tables = [Table(title, "ruler", head, averages, standing_out(rows))] if tasks else []
    if sum(row.judged for row in rows) > 1:
        shown = {row.model: row.ruler for row in shown_beside(rows) if row.ruler}
        return [*tables, *(_tasks_beside(shown, length, beside_told(rows), brief) for length in lengths)]
    for label, one in scores.items():
        each = [[task_name(task, one), *cells(partial(one.score, task))] for task in one.prompts]
        title = f"{ruler_name([one])} by task in %: {label}"
        tables.append(Table(title, "ruler by task", head, each))
    return tables


def shown_beside(rows: Sequence[Row]) -> list[Row]:
    """The rows whose tasks are shown side by side: the first four extended models, and the bases."""
    asked = [row for row in rows if row.ruler]
    first = [row for row in asked if row.judged][:_SIDE_BY_SIDE]
    return [row for row in asked if row in first or not row.judged]


def beside_told(rows: Sequence[Row]) -> str:
    """Which of the models are shown side by side; empty where all are."""
    models = sum(row.judged for row in rows if row.ruler)
    if models <= _SIDE_BY_SIDE:
        return ""
    return f"the first {_SIDE_BY_SIDE} of {models} models; numbers.csv has all"


def _tasks_beside(scores: dict[str, RulerScores], length: int, some: str, brief: bool) -> Table:
    """Every task at one length, the models side by side; ``some`` says which models these are, if not all."""
    asked = {label: one for label, one in scores.items() if length in one.lengths}
    tasks = dict.fromkeys(task for one in asked.values() for task in one.prompts)
    rows = [
        [
            task_name(task, next(one for one in asked.values() if task in one.prompts)),
            *(_share(one.score(task, length), brief) for one in asked.values()),
        ]
        for task in tasks
    ]
    title = f"{ruler_name(asked.values())} by task at {format_length(length)} in %{f' ({some})' if some else ''}"
    return Table(
        title, "ruler by task", ["task", *asked], [row for row in rows if any(cell != "–" for cell in row[1:])]
    )


def _average(scores: RulerScores, tasks: Sequence[str], length: int) -> Interval | None:
    return scores.average(length, tasks) if length in scores.lengths else None


def ruler_name(scores: Iterable[RulerScores]) -> str:
    """RULER, or what to call it where a text stood in for its essays in some task."""
    return "RULER" if all(real for one in scores for real in one.real.values()) else "RULER-style"


def task_name(task: str, scores: RulerScores) -> str:
    """The name of one of RULER's tasks; marked where a text stood in for its essays."""
    return task if scores.real.get(task, True) else f"{task} (style)"


def _share(score: Interval | None, brief: bool) -> str:
    if score is None:
        return "–"
    mean = f"{100 * score.mean:.1f}"
    return mean if brief else f"{mean} [{100 * score.low:.0f}, {100 * score.high:.0f}]"

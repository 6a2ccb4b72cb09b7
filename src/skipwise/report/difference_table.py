"""Models that were asked the same prompts -> a table of their differences to the first, with intervals."""

from collections.abc import Sequence

from skipwise.method.lengths import format_length
from skipwise.report.ruler_tables import ruler_name
from skipwise.report.summary import Row
from skipwise.report.table import Table
from skipwise.results.ruler import paired_at
from skipwise.results.statistics import Interval, share_difference


def differences_table(rows: Sequence[Row]) -> Table:
    """What every further model of an evaluation scores more than the first on the same prompts, side by side."""
    models = list({row.arm: row for row in rows if row.judged}.values())
    first, others = models[:1], [row for row in models[1:] if _differences(row, models[0])]
    differences = [_differences(row, first[0]) for row in others]
    asked = dict.fromkeys(place for each in differences for place in each)
    cells = [
        [f"{task}, {format_length(length)}", *(_points(each.get((task, length))) for each in differences)]
        for task, length in asked
    ]
    title = f"Difference to {first[0].label if first else ''} on the same prompts, in points (95% interval)"
    return Table(title, "differences", ["prompt", *(row.label for row in others)], cells)


def _differences(own: Row, other: Row) -> dict[tuple[str, int], Interval]:
    """By task and length: retrieval tasks each, and the average of RULER's."""
    differences: dict[tuple[str, int], Interval] = {}
    for task, lengths in own.trials.items():
        for length, trials in lengths.items():
            theirs = other.trials.get(task, {}).get(length, {})
            hits = ({n: trial.hit for n, trial in asked.items()} for asked in (trials, theirs))
            if difference := share_difference(*hits):
                differences[task, length] = difference
    if own.ruler and other.ruler:
        for length in own.ruler.lengths:
            if difference := paired_at(own.ruler, other.ruler, length):
                differences[ruler_name([own.ruler, other.ruler]), length] = difference
    return differences


def _points(difference: Interval | None) -> str:
    if difference is None:
        return "–"
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    return f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]"

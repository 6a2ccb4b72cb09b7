"""Models that were asked the same prompts -> a table of their differences to the first, with intervals."""

from collections.abc import Sequence

from skipwise.method.lengths import format_length
from skipwise.report.ruler_tables import ruler_name
from skipwise.report.summary import Row
from skipwise.report.table import Table, format_points
from skipwise.results.scores import paired_at, shared_tasks
from skipwise.results.statistics import Interval, share_difference

Differences = dict[tuple[str, int], Interval]  # by task and length


def differences_table(rows: Sequence[Row]) -> Table:
    """What every further model of an evaluation scores more than the first on the same prompts, side by side."""
    first, apart = differences_to_first(rows)
    asked = dict.fromkeys(place for each in apart.values() for place in each)
    cells = [
        [
            f"{place[0]}, {format_length(place[1])}",
            *(format_points(each[place]) if place in each else "–" for each in apart.values()),
        ]
        for place in asked
    ]
    return Table(
        f"Difference to {first} on the same prompts, in points (95% interval)", "differences", ["prompt", *apart], cells
    )


def differences_to_first(rows: Sequence[Row]) -> tuple[str, dict[str, Differences]]:
    """Return the first extended model's label, and by the others' what each scores more on the same prompts.

    Of RULER it is the average over the tasks that the table of averages has.
    """
    tasks = shared_tasks([row.ruler for row in rows if row.ruler])
    asked = [row for row in rows if row.judged and (row.trials or row.ruler)]
    models = list({row.arm: row for row in asked}.values())
    apart = {row.model: _differences(row, models[0], tasks) for row in models[1:]}
    return models[0].model if models else "", {label: each for label, each in apart.items() if each}


def _differences(own: Row, other: Row, tasks: Sequence[str]) -> Differences:
    """By task and length: retrieval tasks each, and the average over ``tasks`` of RULER's."""
    differences: Differences = {}
    for task, lengths in own.trials.items():
        for length, trials in lengths.items():
            theirs = other.trials.get(task, {}).get(length, {})
            hits = ({n: trial.hit for n, trial in asked.items()} for asked in (trials, theirs))
            if difference := share_difference(*hits):
                differences[task, length] = difference
    if own.ruler and other.ruler:
        for length in own.ruler.lengths:
            if difference := paired_at(own.ruler, other.ruler, length, tasks):
                differences[ruler_name([own.ruler, other.ruler]), length] = difference
    return differences

"""RULER's records -> figures: the average by prompt length, and a heat map of task and length for each model."""

import re
from collections.abc import Iterator, Sequence
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.report.canvas import Plot, base_line, draw_scale, length_axis, mark_original, named, percent_axis, shade
from skipwise.report.ruler_tables import beside_told, ruler_name, shown_beside, task_name
from skipwise.report.shown import Shown
from skipwise.report.summary import Row
from skipwise.results.scores import THRESHOLD, shared_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _LINE = 0.21, 0.14  # inches, of a row of a heat map, and of each further line of a task's name
_NAME = 24  # letters, of a line of a task's name; longer ones would leave the heat map no place


def ruler_plots(shown: Shown) -> Iterator[Plot]:
    """The averages of at most four models, and what each scored in every task."""
    asked = [row.ruler for row in shown.rows if row.ruler]
    if not asked:
        return
    rows = shown_beside(shown.rows)
    if tasks := shared_tasks(asked):
        yield _averages(shown, rows, tasks)
    for number, row in enumerate(rows, 1):
        yield _by_task(row, shown, f"ruler-tasks-{number}" if len(rows) > 1 else "ruler-tasks")


def _averages(shown: Shown, rows: Sequence[Row], tasks: list[str]) -> Plot:
    scores = {row.model: row.ruler for row in rows if row.ruler}
    looks = {row.model: shown.looks[row.label] for row in rows}
    data: list[list[Any]] = [
        [label, length, len(tasks), average.mean, average.low, average.high]
        for label, one in scores.items()
        for length in one.lengths
        if (average := one.average(length, tasks))
    ]
    lengths = sorted({length for one in scores.values() for length in one.lengths})

    def draw(axes: "Axes", ink: str) -> None:
        for label in scores:
            points = [values for values in data if values[0] == label]
            x, mean, low, high = ([100 * p[k] if k > 1 else p[k] for p in points] for k in (1, 3, 4, 5))
            look = looks[label]
            axes.plot(x, mean, label=named(label), **look.line)
            axes.vlines(x, low, high, color=look.colour, lw=0.8, alpha=0.6)
        base_line(axes, 100 * THRESHOLD, ink)
        length_axis(axes, lengths, "prompt length (tokens)")
        axes.set_ylim(0, 104)
        percent_axis(axes.yaxis, "score (%)")
        mark_original(axes, shown.original, ink)

    caption = (
        f"The mean of {counted(len(tasks), 'task')}: {', '.join(tasks)}. The dashed line is RULER's limit, {THRESHOLD:.1%}: what "
        "Llama-2-7B scores at 4,096 tokens. Thin lines are 95% intervals."
    )
    if some := beside_told(shown.rows):
        caption = f"{caption} Shown: {some}."
    columns = ["model", "length", "tasks", "score", "low_95", "high_95"]
    return Plot("ruler", f"{ruler_name(scores.values())}, average by prompt length", columns, data, draw, caption)


def _by_task(row: Row, shown: Shown, name: str) -> Plot:
    scores = row.ruler
    assert scores is not None
    tasks, lengths, colour = list(scores.prompts), scores.lengths, shown.looks[row.label].colour
    names = [fill(re.sub("[:,]", r"\g<0> ", task_name(task, scores)), _NAME) for task in tasks]
    data: list[list[Any]] = [
        [row.model, task, length, len(scores.prompts[task][length]), found.mean]
        for task in tasks
        for length in lengths
        if (found := scores.score(task, length))
    ]

    def draw(axes: "Axes", ink: str) -> None:
        for _, task, length, _, mean in data:
            x, y = lengths.index(length), tasks.index(task)
            axes.bar(x + 0.5, 0.92, 0.94, y + 0.04, lw=0, **shade(colour, mean))
            axes.text(x + 0.5, y + 0.52, f"{100 * mean:.0f}", ha="center", va="center", fontsize=9)
        axes.set_xlim(0, len(lengths))
        axes.set_ylim(len(tasks), 0)
        axes.set_xticks([x + 0.5 for x in range(len(lengths))], [format_length(n) for n in lengths])
        axes.set_yticks([y + 0.5 for y in range(len(tasks))], names)
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylabel("task")
        axes.grid(visible=False)
        draw_scale(axes, colour, "score (%)")

    of = f": {shorten(row.model, 40, placeholder='…')}" if len([r for r in shown.rows if r.ruler]) > 1 else ""
    caption = (
        "The mean score of each task in per cent: the stronger the colour, the more. An empty cell was not asked, because the "
        "task has no prompt that is so short, or because a base is asked inside its own window only."
    )
    columns = ["model", "task", "length", "prompts", "score"]
    title = f"{ruler_name([scores])} by task{of}"
    more = max(name.count("\n") for name in names)
    return Plot(name, title, columns, data, draw, caption, height=1.0 + len(tasks) * (_ROW + _LINE * more))

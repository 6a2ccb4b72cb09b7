"""An evaluation's folder -> figures, numbers.csv and one self-contained HTML page, from its records alone."""

import csv
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

from markupsafe import Markup

from skipwise.errors import RunError
from skipwise.intervals import Interval, wilson_interval
from skipwise.report.canvas import Figure
from skipwise.report.evaluation import (
    TASK_NAMES,
    Evaluated,
    Evaluation,
    price_words,
    read_evaluation,
    tables,
)
from skipwise.report.page import facts_of, page_template, require_own, written
from skipwise.report.plots import curve_figure, depth_figure


def write_evaluation(folder: Path, out: Path | None = None) -> Path:
    """Write the report of an evaluation: ``report.html``, ``numbers.csv`` and ``figures/`` beside it.

    Args:
        folder: holds ``run.json`` and ``results.jsonl``.
        out: the page, or a folder for it; default: the evaluation's own.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder holds no results, or what is to be written is a file of another kind.
    """
    evaluation = read_evaluation(folder)
    place = folder if out is None else out
    page = place if place.suffix.lower() in (".html", ".htm") else place / "report.html"
    require_own(page)
    if out is not None and not page.exists():
        for name in ("numbers.csv", "figures"):
            if (page.parent / name).exists():
                raise RunError(f"{page.parent / name} exists and is not ours; give another --out")
    with written(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        figures = list(_figures(evaluation, page.parent / "figures"))
        with open(page.parent / "numbers.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(_numbers(evaluation))
    text = page_template("evaluation.html.j2").render(
        name=folder.resolve().name,
        models=evaluation.models,
        prices=[
            price_words(m.price, str(m.facts["base"])) if m.perplexity else "" for m in evaluation.models
        ],
        unfinished=evaluation.unfinished,
        rules=list(dict.fromkeys(m.effective.rule for m in evaluation.models)),
        title=_title(evaluation),
        conditions=_conditions(evaluation),
        tables=tables(evaluation),
        figures=[(figure, Markup(figure.svg), caption) for figure, caption in figures],
        facts=facts_of([(folder.name, evaluation.info)]),
        command=str(evaluation.info.get("command", "")),
    )
    with written(page):
        page.write_text(text, encoding="utf-8")
    return page


def _title(evaluation: Evaluation) -> str:
    if evaluation.unfinished:
        return "Unfinished"
    if len(evaluation.models) > 1:
        return f"{len(evaluation.models)} models compared"
    return evaluation.models[0].headline


def _conditions(evaluation: Evaluation) -> str:
    """How it was measured, in a few sentences."""
    asked, first = evaluation.question, evaluation.models[0]
    strides = sorted({stride for model in evaluation.models for stride in model.strides.values()})
    parts = []
    if evaluation.documents:
        held = f", held out by name ({asked['held_out']:.0%})" if asked.get("held_out") else ""
        parts.append(
            f"Perplexity: {evaluation.documents} documents of {asked['data']}{held}, "
            f"{max(first.truncated, default=0):,} tokens of each, every token but the first scored once, windows by "
            f"{' and '.join(f'{s:,}' for s in strides)} tokens; a window begins where it begins, without a BOS of its own. "
            "Intervals: 95%, by resampling documents."
        )
    if any(model.found for model in evaluation.models):
        parts.append(
            f"Retrieval: {asked['trials']} prompts a length, depths spread over tenths of the prompt, greedy, all five "
            f"digits; seed {asked['seed']}. Intervals: 95%, Wilson."
        )
    prints = evaluation.info.get("fingerprints", {})
    if len({prints.get(f"text of {m.label}") for m in evaluation.models}) > 1:
        parts.append("The models read different tokens: their perplexities are not comparable.")
    parts.append(f"Precision: {asked['precision']}.")
    return " ".join(parts)


def _figures(evaluation: Evaluation, folder: Path) -> Iterator[tuple[Figure, str]]:
    """Each figure that the records allow, with its caption."""
    models = evaluation.models
    mark = int(models[0].facts["original"]) if len({m.facts["original"] for m in models}) == 1 else None

    def curves(
        name: str,
        title: str,
        axis: str,
        values: dict[str, dict[int, Interval]],
        caption: str,
        limits: tuple[float, float] | None = None,
    ) -> Iterator[tuple[Figure, str]]:
        values = {label: curve for label, curve in values.items() if curve}
        if any(len(curve) > 1 for curve in values.values()):
            means = {label: {x: v.mean for x, v in curve.items()} for label, curve in values.items()}
            ends = {label: {x: (v.low, v.high) for x, v in curve.items()} for label, curve in values.items()}
            yield curve_figure(folder, name, title, axis, means, mark, ends, limits), caption

    for task in dict.fromkeys(task for m in models for task in m.found):
        found = {m.label: {n: _share(*f) for n, f in m.found.get(task, {}).items()} for m in models}
        words = TASK_NAMES.get(task, task)
        yield from curves(
            f"found-{task}",
            f"Found: {words} (%)",
            "prompt (tokens)",
            found,
            "Five digits hidden in the prompt; all must be right. Band: 95% interval.",
            (0, 112),
        )
        for number, m in enumerate(models, 1):
            if task in m.depths:
                name = f"depth-{task}" + (f"-{number}" if len(models) > 1 else "")
                of = f", {shorten(m.label, 24, placeholder='…')}" if len(models) > 1 else ""
                title = f"{words.capitalize()}{of}: by depth"
                yield (
                    depth_figure(folder, name, title, m.label, m.depths[task]),
                    "0% is the prompt's beginning, farthest from the question. Pale cells are where the number is missed.",
                )
    yield from curves(
        "perplexity",
        "Perplexity by window",
        "window (tokens)",
        {m.label: m.perplexity for m in models},
        "Lower is better. Level beyond the original length is needed, and proves little: a window of any length scores well "
        "by its last few hundred tokens.",
    )
    yield from curves(
        "gain",
        "Gain by far text (nats) by position",
        "position (tokens)",
        {m.label: {b.end: b.gain for b in m.buckets if b.gain} for m in models},
        "How much better a token is predicted with all of its document before it than in a window of the original length. "
        "Above zero: far text is used. Each point is of the tokens between the point before and it.",
    )
    yield from curves(
        "excess",
        "Loss over the base (nats) by position",
        "position (tokens)",
        {m.label: {b.end: b.excess for b in m.buckets if b.excess} for m in models},
        "The same tokens as the base predicts them in windows of its own length. Below zero: better than the base can.",
    )
    yield from curves(
        "first-tokens",
        "Perplexity of the first tokens",
        "tokens read",
        {
            m.label: {n: Interval(p, float("nan"), float("nan")) for n, p in m.truncated.items()}
            for m in models
        },
        "From one pass over each document: what follows a token does not change its loss.",
    )


def _share(hits: int, asked: int) -> Interval:
    low, high = wilson_interval(hits, asked)
    return Interval(100 * hits / asked, 100 * low, 100 * high)


def _numbers(evaluation: Evaluation) -> Iterator[list[object]]:
    """Every number of the page: model, measure, length, value and the ends of its interval."""
    yield ["model", "measure", "length", "value", "low_95", "high_95"]
    for m in evaluation.models:
        yield [m.label, "effective length", "", m.effective.tokens, "", ""]
        for measure, length, value in _intervals(m):
            yield [m.label, measure, length, value.mean, value.low, value.high]
        for n, perplexity in m.truncated.items():
            yield [m.label, "perplexity of the first tokens", n, perplexity, "", ""]


def _intervals(m: Evaluated) -> Iterator[tuple[str, int | str, Interval]]:
    if m.price:
        yield "price, nats inside the original window", "", m.price.loss
        yield "price, next-token accuracy", "", m.price.accuracy
    for window, value in m.perplexity.items():
        yield "perplexity by sliding window", window, value
    for bucket in m.buckets:
        yield "loss by position, nats", bucket.end, bucket.loss
        if bucket.gain:
            yield "gain by far text, nats", bucket.end, bucket.gain
        if bucket.excess:
            yield "loss over the base, nats", bucket.end, bucket.excess
    for task, lengths in m.found.items():
        for n, found in lengths.items():
            yield f"found, {task}, %", n, _share(*found)

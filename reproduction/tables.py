"""The scores of an exhibit -> its tables, with the paper's numbers next to ours, and its figures."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from reproduction import paper
from reproduction.claims import Rows, seeds_interval
from reproduction.exhibits import Block, Exhibit
from reproduction.runs import ArmRun
from skipwise.evaluation.specification import specification_of
from skipwise.method.lengths import format_length
from skipwise.recipes.names import display_name
from skipwise.report.canvas import curve_plot, write
from skipwise.report.numbers import format_number, format_share
from skipwise.report.page import markdown_table
from skipwise.results.statistics import Interval, perplexity_of


def block_markdown(
    exhibit: Exhibit, block: Block, runs: Sequence[ArmRun], rows: Rows, partial: Sequence[ArmRun], figures: Path
) -> list[str]:
    """Return how a block was trained and measured, its figures, drawn into ``figures``, and its tables."""
    missing = [display_name(label) for label, row in rows.items() if not row.measured]
    rows = {label: row for label, row in rows.items() if row.measured}
    texts = list(dict.fromkeys(text for row in rows.values() for text, _ in [*row.nll, *row.segments]))
    left_out = [f"{display_name(run.row)}, seed {run.recipe.seed}" for run in partial]
    setup = [_budget(runs, rows), _reading(runs, rows)]
    setup += [f"Not run: {', '.join(missing)}."] * bool(missing)
    setup += [f"Left out, because measured in part: {'; '.join(left_out)}."] * bool(left_out)
    original = runs[0].original
    tables = []
    if exhibit.show == "ability":
        tables += [_ability_table(rows, original), _benchmarks(block.label)]
    elif exhibit.show == "costs":
        tables += [_step_table(rows)]
    elif exhibit.show == "curves":
        tables += [_curve_table(block, rows, text) for text in texts]
    else:
        if exhibit.show == "passkey":
            tables += [_retrieval_table(exhibit, block, rows)]
        tables += [_perplexity_table(block, rows, text, original) for text in texts]
    return [
        " ".join(filter(None, setup)),
        _figure(exhibit, block, rows, next(iter(texts), ""), original, figures),
        *tables,
    ]


def _budget(runs: Sequence[ArmRun], rows: Rows) -> str:
    """Return the seeds of the trained rows, and their training tokens."""
    seeds = sorted({seed for row in rows.values() for each in row.seeds.values() for seed in each})
    spread = " ±: standard deviation over seeds." if len(seeds) > 1 else ""
    budgets: dict[str, list[str]] = {}
    for run in runs:
        if run.trained and run.recipe.seed == seeds[0] and run.row in rows:
            training = run.recipe.training
            steps = f"{training.max_steps:,} steps of {training.global_batch_size} x {run.window:,}"
            budgets.setdefault(f"{run.tokens:,} tokens ({steps})", []).append(display_name(run.row))
    trained = "; ".join(f"{', '.join(names)}: {budget}" for budget, names in budgets.items())
    return f"Seeds: {', '.join(map(str, seeds))}.{spread}" + (f" Trained on: {trained}." if trained else "")


def _reading(runs: Sequence[ArmRun], rows: Rows) -> str:
    """Return how the sliding windows were read, and which texts were not measured."""
    read = {stride for row in rows.values() for stride, _ in row.reading.values()}
    if not read:
        return ""
    documents = sorted({many for row in rows.values() for _, many in row.reading.values()})
    spec = specification_of(runs[0].recipe, runs[0].original, runs[0].target, "float32")
    measured = {text for row in rows.values() for text, _ in row.nll}
    missing = [text for text in runs[0].recipe.evaluation.source or [] if text not in measured]
    return (
        f"Sliding windows at stride {' and '.join(f'{stride:,}' for stride in sorted(read))}, over the first "
        f"{spec.tokens_read(spec.windows[-1]):,} tokens of {' or '.join(map(str, documents))} documents of each text."
        + (f" Not measured: {', '.join(missing)}." if missing else "")
    )


def _figure(exhibit: Exhibit, block: Block, rows: Rows, text: str, original: int, folder: Path) -> str:
    """Draw the exhibit's figure, of several texts the first, and return the link."""
    if exhibit.show == "perplexity":
        title, axis = f"Perplexity by window, {text}", ("window (tokens)", "perplexity")
        curves = {label: {n: _over_seeds(row.nll[text, n]) for n in row.by_window(text)} for label, row in rows.items()}
    elif exhibit.show == "curves":
        title, axis = f"Perplexity of the first tokens, {text}", ("tokens read", "perplexity")
        curves = {label: {n: _alone(v) for n, v in row.first_tokens(text).items()} for label, row in rows.items()}
    elif exhibit.show == "passkey":
        title, axis = "Passkeys found (%)", ("prompt (tokens)", "found (% of prompts)")
        shares = {
            label: {n: [found / prompts for found, prompts in seeds] for n, seeds in row.hits.items()}
            for label, row in rows.items()
        }
        curves = {label: {n: seeds_interval(v).times(100) for n, v in by.items()} for label, by in shares.items()}
    elif exhibit.show == "costs":
        title, axis = "Loss at the target by step", ("training steps", "loss (nats per token)")
        curves = {label: {n: _alone(fmean(v)) for n, v in row.steps.items()} for label, row in rows.items()}
    else:
        return ""
    curves = {label: curve for label, curve in curves.items() if curve}
    if len(curves) < 2 or max(map(len, curves.values())) < 2:  # only a row or column of the table
        return ""
    name = f"{exhibit.name}-{block.label}".replace(", ", "-").lower()
    marked = original if axis[1] == "perplexity" else None
    plot = curve_plot(name, title, axis, curves, marked, percent="%" in axis[1])
    write(plot, folder, png=False)  # with a CSV; the pages need no PNG
    return f"![{title}: {block.label}](figures/{name}.svg)"


def _over_seeds(nll: Sequence[float]) -> Interval:
    """Return the perplexity of one loss a seed, with its 95% interval over seeds."""
    return seeds_interval(nll).exp() if len(nll) > 1 else _alone(perplexity_of(nll[0]))


def _alone(value: float) -> Interval:
    """Return a value that has no interval."""
    return Interval(value, -math.inf, math.inf)


def _perplexity_table(block: Block, rows: Rows, text: str, original: int) -> str:
    windows = sorted({window for row in rows.values() for window in row.by_window(text)})
    # The paper's mathematics is compared with mathematics, its other text with all others.
    of_mathematics = re.search(r"(^|[\W_])math", text) and paper.PROOF_PILE in block.published
    source = paper.PROOF_PILE if of_mathematics else next(iter(block.published), "")
    published = block.published.get(source, {})
    places = {window: _place(block, window, original) for window in windows if published}
    known = {window: place for window, place in places.items() if place is not None}
    head = [f"perplexity, {text}", *map(format_length, windows), *(f"paper, {source} {n // original}x" for n in known)]
    lines = []
    for label, row in rows.items():
        reported = [format_reported(published.get(label, ()), place) for place in known.values()]
        lines.append(_line(label, [_mean(row.perplexity(text, window)) for window in windows], reported))
    return markdown_table(head, lines)


def _place(block: Block, window: int, original: int) -> int | None:
    """Return the index of a window in the paper's row; None if the paper does not have it."""
    if block.windows:
        return block.windows.index(window // original) if window // original in block.windows else None
    place = math.log2(window / original)
    return int(place) if place >= 0 and place == int(place) else None


def format_reported(values: Sequence[float], place: int) -> str:
    """Write the paper's figure at ``place`` of a row; a dash where it has none."""
    if place >= len(values):
        return "–"
    return ">1000" if math.isinf(values[place]) else format_number(values[place])


def _curve_table(block: Block, rows: Rows, text: str) -> str:
    curves = {label: row.first_tokens(text) for label, row in rows.items()}
    lengths = sorted({length for curve in curves.values() for length in curve})
    head = [f"perplexity of the first tokens, {text}", *map(format_length, lengths), "paper 1k", "paper 16k"]
    published = paper.FAMILIES.get(block.label, {})
    lines = []
    for label, curve in curves.items():
        cells = [format_number(curve[n]) if n in curve else "–" for n in lengths]
        lines.append(_line(label, cells, [format_reported(published.get(label, ()), place) for place in (0, 1)]))
    return markdown_table(head, lines)


def _ability_table(rows: Rows, original: int) -> str:
    """Return loss and accuracy inside the original length, and their change."""
    head = ["", "text", "perplexity", "accuracy"]
    head += ["loss less the original's, nats per token", "accuracy less the original's, points"]
    lines: list[list[str]] = []
    for label, row in rows.items():
        for text in (text for text, length in row.segments if length == original):
            loss, right = (row.by_position(text, original, 0, original, sums) for sums in ("nll", "hits"))
            assert loss is not None
            assert right is not None
            changes = ["–", "–"]
            if "original" in rows and label != "original":
                more = row.difference(rows["original"], text, original)
                points = row.difference(rows["original"], text, original, "hits")
                changes = [str(more), str(points.times(100))] if more and points else changes
            share = f"{100 * right.mean:.1f}% [{100 * right.low:.1f}, {100 * right.high:.1f}]"
            lines.append([display_name(label), text, format_number(perplexity_of(loss.mean)), share, *changes])
    return markdown_table(head, lines, left=2) if lines else ""


def _benchmarks(label: str) -> str:
    """Return the paper's six benchmarks and their mean."""
    lines = [
        [display_name(arm), *(f"{value:.2f}" for value in values), f"{sum(values) / len(values):.2f}"]
        for (arm, where), values in paper.ABILITY.items()
        if where in ("", label)
    ]
    return markdown_table(["the paper, per cent", *paper.BENCHMARKS, "mean"], lines)


def _step_table(rows: Rows) -> str:
    steps = sorted({step for row in rows.values() for step in row.steps})
    head = ["perplexity after steps", *map(str, steps), *(f"paper {step}" for step in paper.STEPS)]
    lines = []
    for label, row in rows.items():
        means = [fmean(row.steps[s]) if s in row.steps else math.nan for s in steps]
        published = [format_number(value) for value in paper.BY_STEP.get(label, ())]
        lines.append(_line(label, [format_number(perplexity_of(mean)) for mean in means], published))
    return markdown_table(head, lines)


def _retrieval_table(exhibit: Exhibit, block: Block, rows: Rows) -> str:
    lengths = sorted({length for row in rows.values() for length in row.hits})
    reported = exhibit.passkey if block.retrieved else ()
    lines = []
    for label, row in rows.items():
        shares = [_found(row.hits[n]) if n in row.hits else "–" for n in lengths]
        published = block.retrieved.get(label, (None,) * len(reported))[: len(reported)]
        lines.append(_line(label, shares, [share or "–" for share in published]))
    return markdown_table(["passkeys found", *map(format_length, lengths), *(f"paper {n}x" for n in reported)], lines)


def _found(hits: Sequence[tuple[int, int]]) -> str:
    """Return the share of passkeys found, mean over seeds, with the lowest and the highest share of a seed."""
    shares = [found / prompts for found, prompts in hits]
    mean, ends = format_share(sum(shares) / len(shares)), [format_share(f(shares)) for f in (min, max)]
    return mean if ends[0] == ends[1] else f"{mean} ({ends[0]} to {ends[1]})"


def _mean(score: tuple[float, float] | None) -> str:
    if score is None:
        return "–"
    mean, spread = score
    return f"{format_number(mean)} ± {format_number(spread)}" if spread else format_number(mean)


def _line(label: str, cells: Sequence[str], published: Iterable[str] = ()) -> list[str]:
    return [display_name(label), *cells, *published]

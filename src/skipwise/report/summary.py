"""Records -> the results table, and the verdict in words that heads the report."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipwise.lengths import format_length
from skipwise.results import BenchmarkRecord, PasskeyRecord, PerplexityRecord, Record

BASELINES = ("original", "pi-only")
ARM_NAMES = {
    "original": "original",
    "pi-only": "PI-only",
    "short": "short",
    "randpos": "RandPos",
    "cream": "CREAM",
    "pose": "PoSE",
    "full": "full-length",
}
TOLERANCE = 1.05
ACCURACY = 0.9
_SIDE_BY_SIDE = 10  # columns of numbers in 80 of text


@dataclass(frozen=True)
class Row:
    """What one arm of one run scored on one text.

    Attributes:
        label: ``arm``, or ``run · arm`` where several runs are compared.
        perplexity: by window in tokens.
        passkey: by prompt length in tokens.
    """

    run: str
    arm: str
    data: str
    label: str
    perplexity: dict[int, PerplexityRecord] = field(default_factory=dict)
    passkey: dict[int, PasskeyRecord] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        """Whether the arm was trained by its run."""
        return self.arm not in BASELINES


@dataclass(frozen=True)
class ResultsTable:
    """The rows, and every window and passkey length that any of them has (tokens, rising)."""

    rows: list[Row]
    windows: list[int]
    lengths: list[int]


@dataclass(frozen=True)
class Verdict:
    """How far a run reads by the rule, in plain words.

    Attributes:
        headline: one sentence.
        rule: the rule behind it, with its numbers.
        shortfall: what failed at the first length that did not hold; empty when all held.
        reads: the largest length that holds, in tokens; 0 for none, or where nothing could be judged.
    """

    headline: str
    rule: str
    shortfall: str
    reads: int


def results_table(runs: Mapping[str, Sequence[Record]]) -> ResultsTable:
    """Arrange the records of one or more runs, by arm; a number measured again replaces the older one.

    A baseline that scored the same in several runs is one row, without a run's name.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    several_runs = len(runs) > 1
    for run, records in runs.items():
        texts = {r.data for r in records if isinstance(r, PerplexityRecord)}
        for record in records:
            if isinstance(record, PerplexityRecord):
                key = (run, record.arm, record.data)
                label = _label(run if several_runs else "", record.arm, record.data if len(texts) > 1 else "")
                row = rows.setdefault(key, Row(*key, label))
                row.perplexity[record.window] = record
        for record in records:
            if isinstance(record, PasskeyRecord):
                first = next((row for row in rows.values() if (row.run, row.arm) == (run, record.arm)), None)
                key = (run, record.arm, first.data if first else "")
                row = rows.setdefault(key, Row(*key, _label(run if several_runs else "", record.arm)))
                row.passkey[record.length] = record
    order = {run: i for i, run in enumerate(runs)}
    ordered = _merge_baselines(
        sorted(rows.values(), key=lambda row: (row.trained, order[row.run], arm_rank(row.arm)))
    )
    windows = sorted({w for row in ordered for w in row.perplexity})
    return ResultsTable(ordered, windows, sorted({n for row in ordered for n in row.passkey}))


def _merge_baselines(rows: list[Row]) -> list[Row]:
    merged: dict[object, list[Row]] = {}
    for row in rows:
        scores = tuple((w, r.stride, r.tokens, r.nll) for w, r in sorted(row.perplexity.items()))
        hits = tuple((n, r.seed, tuple(r.hits)) for n, r in sorted(row.passkey.items()))
        same = row.run if row.trained else (scores, hits)
        merged.setdefault((row.arm, row.data, same), []).append(row)
    return [
        group[0] if len(group) == 1 else replace(group[0], label=arm_name(group[0].arm))
        for group in merged.values()
    ]


def verdict(
    records: Sequence[Record], original_length: int | None = None, target_length: int | None = None
) -> Verdict:
    """Judge by rule how far the trained arm of one run reads.

    The largest measured length such that at it and at every shorter one the trained arm's perplexity is at
    most 1.05 times the original's at the shortest window, and its passkey accuracy at least 90%.
    """
    rows = results_table({"": records}).rows
    original = next((row for row in rows if row.arm == "original" and row.perplexity), None)
    trained = next((row for row in rows if row.trained and row.perplexity), None)
    if original is None or trained is None:
        missing = "original model" if original is None else "trained model"
        return Verdict("Not judged", f"The {missing}'s perplexity was not measured.", "", 0)
    shortest = min(original.perplexity)
    limit = original.perplexity[shortest].perplexity * TOLERANCE
    reads, shortfall = _reach(trained, limit)
    passkey = f" and finds the passkey in at least {ACCURACY:.0%} of the trials" if trained.passkey else ""
    rule = (
        f"The longest measured length such that, at it and at every shorter one, the trained arm has a perplexity "
        f"of at most {TOLERANCE} times the original's at {shortest:,} tokens (that is, {format_number(limit)})"
        f"{passkey}."
    )
    if not trained.passkey:
        rule += " Passkey retrieval was not measured, so distant recall is not shown."
    return Verdict(_headline(reads, original_length, target_length), rule, shortfall, reads)


def _reach(row: Row, limit: float) -> tuple[int, str]:
    """The largest length that holds, and what failed at the next one."""
    reads = 0
    for length in sorted({*row.perplexity, *row.passkey}):
        score, passkey = row.perplexity.get(length), row.passkey.get(length)
        failures = []
        if score and not score.perplexity <= limit:
            failures.append(f"perplexity {format_number(score.perplexity)}, over {format_number(limit)}")
        if passkey and passkey.accuracy < ACCURACY:
            failures.append(f"passkey {format_share(passkey.accuracy)}, under {ACCURACY:.0%}")
        if failures:
            return reads, f"At {length:,} tokens it fails: {'; '.join(failures)}."
        if score and (passkey or not row.passkey):
            reads = length
    return reads, ""


def _headline(reads: int, original_length: int | None, target_length: int | None) -> str:
    if not reads:
        return "Not extended: fails the rule at the shortest length already"
    if original_length is None:
        return f"Reads {reads:,} tokens"
    if reads <= original_length:
        return f"Not extended: reads {reads:,} tokens, no more than its original {original_length:,}"
    text = f"Reads {reads:,} tokens, {reads / original_length:.3g} times its original {original_length:,}"
    return (
        f"{text}, short of its target {target_length:,}" if target_length and reads < target_length else text
    )


def summary_table(records: Sequence[Record]) -> RenderableType:
    """Lay out one run's results for the terminal: a row an arm, perplexity and passkey by window.

    They stand side by side, or where that would not fit 80 columns one below the other.
    """
    table = results_table({"": records})
    kinds = [("perplexity", table.windows), ("passkey", table.lengths)]
    if len(table.windows) + len(table.lengths) <= _SIDE_BY_SIDE:
        return _grid(table, kinds)
    return Group(*(_grid(table, [kind]) for kind in kinds if kind[1]))


def _grid(table: ResultsTable, kinds: Sequence[tuple[str, list[int]]]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column("\narm", no_wrap=True)
    for kind, lengths in kinds:
        for i, length in enumerate(lengths):
            head = f"{kind if i == 0 else ''}\n{format_length(length)}"
            grid.add_column(head, justify="right", no_wrap=True)
    for row in table.rows:
        cells = [
            cell
            for kind, lengths in kinds
            for cell in (_perplexities if kind == "perplexity" else _accuracies)(row, lengths)
        ]
        grid.add_row(Text(row.label), *cells, style="bold" if row.trained else None)
    return grid


def benchmark_table(records: Sequence[BenchmarkRecord]) -> Table:
    """Lay out benchmarks for the terminal, a row a metric; values as the harness gives them."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for i, head in enumerate(("task", "shots", "metric", "value", "standard error", "questions")):
        grid.add_column(head, justify="left" if i in (0, 2) else "right")
    for r in records:
        error = "–" if r.standard_error is None else f"{r.standard_error:.4f}"
        grid.add_row(Text(r.task), str(r.fewshot), Text(r.metric), f"{r.value:.4f}", error, f"{r.samples:,}")
    return grid


def summary_markdown(records: Sequence[Record]) -> str:
    """Write one run's results as a Markdown table, for the model card; empty without results."""
    table = results_table({"": records})
    if not table.rows:
        return ""
    columns = [f"perplexity {format_length(w)}" for w in table.windows]
    columns += [f"passkey {format_length(n)}" for n in table.lengths]
    lines = [["arm", *columns], ["---", *["---:"] * len(columns)]]
    for row in table.rows:
        cells = [*_perplexities(row, table.windows), *_accuracies(row, table.lengths)]
        lines.append([_plain(row.label), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def format_number(value: float) -> str:
    """Write a perplexity in two to three digits: 4.84, 15.7, 134, 1.2e4, ∞."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if value >= 999.5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def format_share(share: float) -> str:
    """Write a share in per cent; 0% and 100% only where they are exact."""
    text = f"{100 * share:.0f}%"
    if share < 1 and text == "100%":
        return ">99%"
    return "<1%" if share > 0 and text == "0%" else text


def arm_name(arm: str) -> str:
    """The arm as the paper writes it."""
    return ARM_NAMES.get(arm, arm)


def arm_rank(arm: str) -> int:
    """The arm's place in every table and legend: baselines first."""
    return list(ARM_NAMES).index(arm) if arm in ARM_NAMES else len(ARM_NAMES)


def _label(run: str, arm: str, data: str = "") -> str:
    label = f"{run} · {arm_name(arm)}" if run else arm_name(arm)
    return f"{label} ({data})" if data else label


def _perplexities(row: Row, windows: Iterable[int]) -> list[str]:
    return [format_number(row.perplexity[w].perplexity) if w in row.perplexity else "–" for w in windows]


def _accuracies(row: Row, lengths: Iterable[int]) -> list[str]:
    return [format_share(row.passkey[n].accuracy) if n in row.passkey else "–" for n in lengths]


def _plain(text: str) -> str:
    """Text that Markdown and the HTML inside it read as text."""
    for mark, harmless in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(mark, harmless)
    return text

"""What to see in each figure, in words written from the records."""

from collections.abc import Mapping, Sequence

from skipwise.report.summary import Row, arm_name, format_number, format_share, results_table
from skipwise.results import CoverageRecord, Record, TrainingRecord


def captions(runs: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """A caption for each figure that ``plots.draw_figures`` can draw, by the figure's name."""
    rows = results_table(runs).rows
    return {
        "perplexity": _perplexity([row for row in rows if row.perplexity]),
        "passkey": _passkey([row for row in rows if row.passkey]),
        "passkey-depth": (
            "0% is the prompt's beginning, farthest from the question. Each cell is the share of trials with "
            "all five digits right: pale cells are where the key is missed."
        ),
        "loss": _loss(runs),
        "coverage": _coverage(runs),
    }


def _perplexity(rows: list[Row]) -> str:
    """How each arm goes from its shortest window to its longest."""
    changes = []
    for row in _few(rows):
        first, last = (row.perplexity[end(row.perplexity)].perplexity for end in (min, max))
        ends = format_number(first), format_number(last)
        if last > 1.1 * first or last < first / 1.1:
            changes.append(f"{row.label} {'rises' if last > first else 'falls'} from {ends[0]} to {ends[1]}")
        else:
            changes.append(f"{row.label} stays level ({ends[0]} and {ends[1]})")
    return f"Lower is better. From the shortest window to the longest, {_listed(changes)}."


def _passkey(rows: list[Row]) -> str:
    farthest = []
    for row in _few(rows):
        length = max(row.passkey)
        farthest.append(f"{row.label} {format_share(row.passkey[length].accuracy)}")
    length = max(n for row in rows for n in row.passkey) if rows else 0
    return (
        "Five digits hidden at a random depth; all must be right. "
        f"At {length:,} tokens: {_listed(farthest)}. Thin lines are 95% intervals."
    )


def _loss(runs: Mapping[str, Sequence[Record]]) -> str:
    ends = {}
    for records in runs.values():
        for record in records:
            if isinstance(record, TrainingRecord):
                ends[arm_name(record.arm)] = record
    trained = [f"{name} {r.step:,} steps, {r.tokens:,} tokens" for name, r in ends.items()]
    return f"Pale: as logged; strong: smoothed. Trained: {'; '.join(trained)}."


def _coverage(runs: Mapping[str, Sequence[Record]]) -> str:
    curves = [r for records in runs.values() for r in records if isinstance(r, CoverageRecord)]
    if not curves:
        return ""
    length = curves[0].train_length
    return (
        f"Training windows of {length:,} tokens alone never show the model two tokens farther apart than "
        f"{length - 1:,}; with skipped positions every distance up to the target gets its share of examples."
    )


def _few(rows: list[Row]) -> list[Row]:
    """All arms, or only the trained ones where there are many."""
    return rows if len(rows) <= 4 else [row for row in rows if row.trained]


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)

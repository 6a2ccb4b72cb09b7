"""Tables of the commands perplexity, passkey and benchmark."""

import math
from collections.abc import Sequence
from itertools import pairwise

from skipwise.method.lengths import format_length
from skipwise.report.numbers import format_number, format_share
from skipwise.report.tables import Table
from skipwise.results.records import BenchmarkRecord, ReadingRecord, TrialRecord
from skipwise.results.statistics import Interval, difference, found, loss, perplexity, wilson_interval


def perplexity_table(mode: str, readings: Sequence[ReadingRecord], ends: Sequence[int]) -> Table:
    """Return the table of ``skipwise perplexity``.

    ``ends`` are the windows, and in the modes truncated and by-position the ends of the parts.
    """
    windows = sorted({r.window for r in readings})
    of = {window: [r for r in readings if r.window == window] for window in windows}
    if mode == "sliding":
        rows = [
            [format_length(w), *_with_span(perplexity(of[w])), f"{len(of[w])}", f"{sum(r.tokens for r in of[w]):,}"]
            for w in windows
        ]
        head = ["window", "perplexity", "95% interval", "documents", "tokens"]
        return Table("perplexity", "perplexity", head, rows)
    short, whole = of[windows[0]], of[windows[-1]]
    if mode == "truncated":
        rows = [[format_length(end), *_with_span(perplexity(whole, end))] for end in ends]
        return Table("perplexity of the first tokens", "perplexity", ["tokens", "perplexity", "95% interval"], rows)
    rows = [
        [f"{begin:,} .. {end - 1:,}", f"{loss(whole, begin, end).mean:.3f}", str(gain or "–")]
        for begin, end in pairwise([1, *ends])
        for gain in [difference(short, whole, begin, end)]
    ]
    title = f"loss by position; gain over windows of {windows[0]:,}"
    return Table(title, "loss", ["position", "loss (nats)", "gain by far text (nats)"], rows)


def _with_span(value: Interval) -> list[str]:
    span = f"{format_number(value.low)} to {format_number(value.high)}"
    return [format_number(value.mean), span if math.isfinite(value.high) else "–"]


def trials_table(task: str, trials: Sequence[TrialRecord]) -> Table:
    """Return the table of ``skipwise passkey``."""
    rows = []
    for length in sorted({trial.length for trial in trials}):
        hits, prompts = found(trial for trial in trials if trial.length == length)
        low, high = wilson_interval(hits, prompts)
        span = f"{100 * low:.0f} to {100 * high:.0f}%"
        rows.append([format_length(length), f"{hits} of {prompts}", format_share(hits / prompts), span])
    return Table(task, task, ["length", "found", "share", "95% interval"], rows)


def benchmarks_table(records: Sequence[BenchmarkRecord]) -> Table:
    """Return the table of ``skipwise benchmark``, a row for each metric."""
    rows = [
        [
            r.task,
            str(r.fewshot),
            r.metric,
            f"{r.value:.4f}",
            f"{error:.4f}" if error is not None else "–",
            f"{r.samples:,}",
        ]
        for r in records
        for error in [r.standard_error]
    ]
    head = ["task", "shots", "metric", "value", "standard error", "questions"]
    return Table("benchmarks", "benchmarks", head, rows)

"""Scores -> Markdown: the measured table, the paper's figures beside it, and each claim with its verdict."""

import math
from collections.abc import Mapping, Sequence

from skipwise.lengths import format_length
from skipwise.report.summary import arm_name, format_number, format_share
from skipwise.reproduction.exhibits import Exhibit, Setting
from skipwise.reproduction.runs import ArmRun
from skipwise.reproduction.scores import Scores, judge


def exhibit_markdown(
    exhibit: Exhibit, runs: Sequence[ArmRun], scores: Mapping[str, Mapping[str, Scores]], original: int
) -> str:
    """One exhibit as Markdown; ``original`` is the base's window in tokens."""
    parts = [f"## {exhibit.name}: {exhibit.title.lower()}", f"The paper's {exhibit.source}."]
    for setting in exhibit.settings:
        rows = scores.get(setting.label, {})
        if not any(row.nll or row.hits for row in rows.values()):
            continue
        parts += [f"### {setting.label}", _budget(setting, runs)]
        for text in sorted({text for row in rows.values() for text, _ in row.nll}):
            parts.append(_perplexity_table(setting, rows, text, original))
        if any(row.hits for row in rows.values()):
            parts.append(_passkey_table(rows))
        target = max(window for row in rows.values() for _, window in row.nll)
        for claim in exhibit.claims:
            finding = judge(claim, rows, original, target)
            verdict = {True: "holds", False: "**does not hold**", None: "not measured"}[finding.holds]
            parts.append(f"- {finding.rule}: {verdict} ({finding.worst})")
    return "\n\n".join(parts) + "\n"


def _budget(setting: Setting, runs: Sequence[ArmRun]) -> str:
    seeds = sorted({run.recipe.seed for run in runs if run.setting == setting.label})
    lines = []
    for run in runs:
        if run.setting == setting.label and run.trained and run.recipe.seed == seeds[0]:
            training = run.recipe.training
            lines.append(f"{arm_name(run.variant)} {training.max_steps:,} x {training.batch_size}")
    return f"Seeds: {', '.join(map(str, seeds))}. Steps x windows: {'; '.join(lines)}."


def _perplexity_table(setting: Setting, rows: Mapping[str, Scores], text: str, original: int) -> str:
    windows = sorted({window for row in rows.values() for name, window in row.nll if name == text})
    paper = any(setting.paper.values())
    head = [f"perplexity, {text}", *map(format_length, windows)]
    head += [f"paper {window // original}x" for window in windows] if paper else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for variant, row in rows.items():
        cells = [_perplexity(row.perplexity(text, window)) for window in windows]
        if paper:
            cells += [_published(setting.paper.get(variant, ()), window, original) for window in windows]
        lines.append([arm_name(variant), *cells])
    return _table(lines)


def _passkey_table(rows: Mapping[str, Scores]) -> str:
    lengths = sorted({length for row in rows.values() for length in row.hits})
    lines = [["passkey", *map(format_length, lengths)], ["---", *["---:"] * len(lengths)]]
    for variant, row in rows.items():
        shares = [row.hits.get(n) for n in lengths]
        lines.append([arm_name(variant), *(format_share(s[0] / s[1]) if s else "–" for s in shares)])
    return _table(lines)


def _perplexity(score: tuple[float, float] | None) -> str:
    if score is None:
        return "–"
    mean, spread = score
    return f"{format_number(mean)} ± {format_number(spread)}" if spread else format_number(mean)


def _published(values: Sequence[float], window: int, original: int) -> str:
    place = math.log2(window / original)
    if place != int(place) or not 0 <= place < len(values):
        return "–"
    value = values[int(place)]
    return ">1000" if math.isinf(value) else format_number(value)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Scores -> Markdown: the measured tables, the paper's figures beside them, and each claim with its verdict."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from reproduction import paper
from reproduction.estimate import tokens_of
from reproduction.exhibits import Exhibit, Setting
from reproduction.runs import ArmRun
from reproduction.scores import Scores
from reproduction.verdicts import Finding, judge, verdict
from skipwise.evaluation.arms import evaluation_windows
from skipwise.method.lengths import format_length
from skipwise.report.summary import arm_name, format_number, format_share
from skipwise.results.statistics import wilson_interval

Rows = Mapping[str, Scores]


def exhibit_markdown(
    exhibit: Exhibit,
    runs: Sequence[ArmRun],
    scores: Mapping[str, Rows],
    figures: Mapping[str, Sequence[str]] | None = None,
    partial: Sequence[ArmRun] = (),
) -> str:
    """One exhibit as Markdown, as far as it is measured; ``figures`` are paths by setting, ``partial`` runs left out."""
    title = f"{exhibit.title[0].lower()}{exhibit.title[1:]}"
    parts = [f"## {exhibit.name}: {title}", f"The paper's {exhibit.source}."]
    for setting in exhibit.settings:
        rows = scores.get(setting.label, {})
        if _measured(rows):
            mine = [run for run in runs if run.setting == setting.label]
            verdicts = [verdict(finding) for finding in _judged(exhibit, setting, mine, rows)]
            images = [f"![{setting.label}]({path})" for path in (figures or {}).get(setting.label, [])]
            told = [_budget(mine), _reading(mine, rows), _left_out(partial, setting)]
            parts += [f"### {setting.label}", " ".join(t for t in told if t)]
            parts += ["\n".join(verdicts), "\n".join(images)]
            parts += _tables(exhibit, setting, mine, rows)
    return "\n\n".join(part for part in parts if part) + "\n"


def findings(
    exhibit: Exhibit, runs: Sequence[ArmRun], scores: Mapping[str, Rows]
) -> list[tuple[str, Finding]]:
    """Every claim of the exhibit in every block of it that is measured, with the block's name."""
    return [
        (setting.label, finding)
        for setting in exhibit.settings
        if _measured(rows := scores.get(setting.label, {}))
        for finding in _judged(exhibit, setting, [r for r in runs if r.setting == setting.label], rows)
    ]


def _judged(exhibit: Exhibit, setting: Setting, runs: Sequence[ArmRun], rows: Rows) -> list[Finding]:
    original, target = runs[0].original, runs[0].recipe.target or 0
    return [judge(claim, rows, original, target) for claim in exhibit.claims_in(setting)]


def _measured(rows: Rows) -> bool:
    return any(row.nll or row.hits or row.positions or row.steps for row in rows.values())


def _tables(exhibit: Exhibit, setting: Setting, runs: Sequence[ArmRun], rows: Rows) -> list[str]:
    original, target = runs[0].original, runs[0].recipe.target or 0
    parts: list[str] = []
    if "perplexity" in exhibit.show:
        parts += [_perplexity_table(setting, rows, text, original) for text in _texts(rows)]
    if "by-position" in exhibit.show:
        read = dict.fromkeys(place for row in rows.values() for place in row.positions)
        parts += [_position_table(rows, *place, original) for place in read if place[1] > original]
    if "ability" in exhibit.show:
        parts += [_ability_table(setting, rows, original)]
    if "curves" in exhibit.show:
        parts += [_curve_table(setting, rows, text, target) for text in _read(rows, target)]
    if "steps" in exhibit.show and any(row.steps for row in rows.values()):
        parts += [_step_table(rows)]
    if "passkey" in exhibit.show and any(row.hits for row in rows.values()):
        parts += [_passkey_table(exhibit, setting, rows)]
    return parts


def _texts(rows: Rows) -> list[str]:
    return list(dict.fromkeys(text for row in rows.values() for text, _ in row.nll))


def _read(rows: Rows, length: int) -> list[str]:
    return list(dict.fromkeys(text for row in rows.values() for text in row.texts(length)))


def _budget(runs: Sequence[ArmRun]) -> str:
    """Seeds, and what each trained arm was trained on; arms of one budget together."""
    seeds = sorted({run.recipe.seed for run in runs})
    budgets: dict[str, list[str]] = {}
    for run in runs:
        if run.trained and run.recipe.seed == seeds[0]:
            training, tokens = run.recipe.training, tokens_of(run)
            width = tokens // (training.max_steps * training.batch_size)
            told = f"{tokens:,} tokens ({training.max_steps:,} steps of {training.batch_size} x {width:,})"
            budgets.setdefault(told, []).append(arm_name(run.variant))
    trained = [f"{', '.join(arms)}: {told}" for told, arms in budgets.items()]
    if not trained:
        return ""
    asked = max(run.recipe.data.passkey for run in runs)
    prompts = f" {asked:.0%} of the examples end in a passkey prompt, no longer than their window." * (
        asked > 0
    )
    return f"Seeds {', '.join(map(str, seeds))}. Trained on: {'; '.join(trained)}.{prompts}"


def _reading(runs: Sequence[ArmRun], rows: Rows) -> str:
    """How the sliding windows were read, and which text that was asked for was not."""
    strides: dict[int, list[int]] = {}
    for row in rows.values():
        for (_, window), (stride, _) in row.reading.items():
            strides.setdefault(stride, []).append(window)
    if not strides:
        return ""
    told = [
        f"{stride:,}" if len(strides) == 1 else f"{stride:,} (windows {_listed(windows)})"
        for stride, windows in sorted(strides.items())
    ]
    documents = sorted({n for row in rows.values() for _, n in row.reading.values()})
    rule, target = runs[0].recipe.evaluation, runs[0].recipe.target or 0
    limit = rule.tokens_per_document or 2 * evaluation_windows(rule, runs[0].original, target)[-1]
    missing = [text for text in rule.source or [] if text not in _texts(rows)]
    return (
        f"Sliding windows at stride {' and '.join(told)}, over the first {limit:,} tokens of "
        f"{' or '.join(map(str, documents))} documents of each text."
        + (f" Not measured: {', '.join(missing)}." if missing else "")
    )


def _listed(windows: Iterable[int]) -> str:
    return ", ".join(format_length(window) for window in sorted(set(windows)))


def _left_out(partial: Sequence[ArmRun], setting: Setting) -> str:
    names = [
        arm_name(r.variant) + f", seed {r.recipe.seed}" * r.trained
        for r in partial
        if r.setting == setting.label
    ]
    return f"Left out, because measured in part: {'; '.join(names)}." if names else ""


def _perplexity_table(setting: Setting, rows: Rows, text: str, original: int) -> str:
    windows = sorted({window for row in rows.values() for name, window in row.nll if name == text})
    source, published = _published(setting.published, text)
    beside = [w for w in windows if _place(setting, w, original) is not None] if published else []
    head = [f"perplexity, {text}", *map(format_length, windows)]
    head += [f"{source} {window // original}x" for window in beside]
    lines = []
    for variant, row in rows.items():
        cells = [_mean(row.perplexity(text, window)) for window in windows]
        values = published.get(variant, ())
        cells += [_value(values, _place(setting, window, original)) for window in beside]
        if any((text, window) in row.nll for window in windows):
            lines.append([arm_name(variant), *cells])
    return table(head, lines)


def _published(published: paper.Published, text: str) -> tuple[str, dict[str, tuple[float, ...]]]:
    """The paper's figures that stand beside ours of ``text``: of its mathematics beside mathematics."""
    if not published:
        return "", {}
    names = list(published)
    mathematics = re.search(r"(^|[\W_])math", text) and paper.PROOF_PILE in names
    name = paper.PROOF_PILE if mathematics else names[0]
    return name, published[name]


def _place(setting: Setting, window: int, original: int) -> int | None:
    """Where the paper's figure at a window stands in its row."""
    if setting.windows:
        return setting.windows.index(window // original) if window // original in setting.windows else None
    place = math.log2(window / original)
    return int(place) if place >= 0 and place == int(place) else None


def _value(values: Sequence[float], place: int | None) -> str:
    if place is None or place >= len(values):
        return "–"
    return ">1000" if math.isinf(values[place]) else format_number(values[place])


def _position_table(rows: Rows, text: str, length: int, original: int) -> str:
    """Perplexity by token position, from the segments of the target length."""
    ends = next(
        row.positions[text, length][0].edges for row in rows.values() if (text, length) in row.positions
    )
    bounds = [b for b in ends if b >= original]
    places = list(zip([1, *bounds[:-1]], bounds, strict=True))
    head = [
        f"perplexity at positions, {text}",
        *(f"{format_length(a)} to {format_length(b)}" for a, b in places),
    ]
    lines = []
    for variant, row in rows.items():
        losses = [row.by_position(text, length, a, b) for a, b in places]
        if any(losses):
            cells = [format_number(math.exp(min(700, loss.mean))) if loss else "–" for loss in losses]
            lines.append([arm_name(variant), *cells])
    return table(head, lines)


def _curve_table(setting: Setting, rows: Rows, text: str, target: int) -> str:
    curves = {variant: row.curves().get(f"{text}, first tokens", {}) for variant, row in rows.items()}
    lengths = sorted({length for curve in curves.values() for length in curve})
    head = [f"perplexity of the first tokens, {text}", *map(format_length, lengths), "paper 1k", "paper 16k"]
    published = paper.FAMILIES.get(setting.label, {})
    lines = []
    for variant, curve in curves.items():
        cells = [format_number(curve[n]) if n in curve else "–" for n in lengths]
        values = published.get(variant, ())
        lines.append([arm_name(variant), *cells, _value(values, 0), _value(values, 1)])
    return table(head, lines)


def _ability_table(setting: Setting, rows: Rows, original: int) -> str:
    """Loss and accuracy inside the original length, their change, and the paper's mean over its six benchmarks."""
    head = [
        "",
        "text",
        "perplexity",
        "accuracy",
        "loss against the original",
        "accuracy against the original, points",
    ]
    lines = []
    for variant, row in rows.items():
        for text in row.texts(original):
            loss, right = (row.by_position(text, original, 0, original, sums) for sums in ("nll", "hits"))
            apart = [
                row.difference(rows["original"], text, original, 0, original, sums)
                if "original" in rows
                else None
                for sums in ("nll", "hits")
            ]
            assert loss is not None
            assert right is not None
            lines.append(
                [
                    arm_name(variant),
                    text,
                    format_number(math.exp(min(700, loss.mean))),
                    f"{100 * right.mean:.1f}% [{100 * right.low:.1f}, {100 * right.high:.1f}]",
                    str(apart[0]) if apart[0] and variant != "original" else "–",
                    str(apart[1].times(100)) if apart[1] and variant != "original" else "–",
                ]
            )
    return "\n\n".join([table(head, lines, left=2), _benchmarks(setting.label)])


def _benchmarks(label: str) -> str:
    lines = [
        [arm_name(arm), *(f"{value:.2f}" for value in values), f"{sum(values) / len(values):.2f}"]
        for (arm, where), values in paper.ABILITY.items()
        if where in ("", label)
    ]
    return table(["the paper, per cent", *paper.BENCHMARKS, "mean"], lines)


def _step_table(rows: Rows) -> str:
    steps = sorted({step for row in rows.values() for step in row.steps})
    head = ["perplexity after steps", *map(str, steps), *(f"paper {step}" for step in paper.STEPS)]
    lines = []
    for variant, row in rows.items():
        means = [sum(row.steps[s]) / len(row.steps[s]) if s in row.steps else math.nan for s in steps]
        published = [format_number(value) for value in paper.BY_STEP.get(variant, ())]
        lines.append([arm_name(variant), *(format_number(math.exp(mean)) for mean in means), *published])
    return table(head, lines)


def _passkey_table(exhibit: Exhibit, setting: Setting, rows: Rows) -> str:
    lengths = sorted({length for row in rows.values() for length in row.hits})
    beside = exhibit.passkey if setting.retrieved else ()
    lines = []
    for variant, row in rows.items():
        if row.hits:
            shares = [_found(row.hits[n]) if n in row.hits else "–" for n in lengths]
            published = setting.retrieved.get(variant, (None,) * len(beside))
            lines.append([arm_name(variant), *shares, *(share or "–" for share in published)])
    trials = sorted({asked for row in rows.values() for hits in row.hits.values() for _, asked in hits})
    told = []
    for n in trials:
        (_, high), (low, _), (middle, _) = (wilson_interval(hits, n) for hits in (0, n, n // 2))
        told.append(
            f"Of {n} prompts the 95% interval of 0% reaches up to {format_share(high)}, that of 100% down to "
            f"{format_share(low)}, that of {n // 2 / n:.0%} from {format_share(middle)}."
        )
    if any(len(hits) > 1 for row in rows.values() for hits in row.hits.values()):
        told.insert(0, "The mean over seeds; in brackets the least and the most of one.")
    head = ["passkey", *map(format_length, lengths), *(f"paper {n}x" for n in beside)]
    return "\n\n".join([table(head, lines), " ".join(told)])


def _found(hits: Sequence[tuple[int, int]]) -> str:
    """The share of passkeys found, mean over seeds, and where they differ its range."""
    shares = [found / asked for found, asked in hits]
    mean, ends = format_share(sum(shares) / len(shares)), [format_share(f(shares)) for f in (min, max)]
    return mean if ends[0] == ends[1] else f"{mean} ({ends[0]} to {ends[1]})"


def _mean(score: tuple[float, float] | None) -> str:
    if score is None:
        return "–"
    mean, spread = score
    return f"{format_number(mean)} ± {format_number(spread)}" if spread else format_number(mean)


def table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, its first ``left`` columns to the left and the others to the right."""
    rows = [head, ["---"] * left + ["---:"] * (len(head) - left), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

"""Scores -> Markdown: the measured tables with the paper's figures beside them, and the verdict on each claim."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from reproduction import paper
from reproduction.exhibits import Exhibit, Setting
from reproduction.intervals import seeds_interval
from reproduction.measured import PROMPTS
from reproduction.runs import ArmRun
from reproduction.scores import Scores
from reproduction.verdicts import Finding, judge
from skipwise.evaluation.specification import specification_of
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.numbers import format_number, format_share, task_title
from skipwise.report.tables import markdown_table
from skipwise.results.statistics import perplexity_of, wilson_interval

Rows = Mapping[str, Scores]


def exhibit_markdown(
    exhibit: Exhibit,
    runs: Sequence[ArmRun],
    scores: Mapping[str, Rows],
    figures: Mapping[str, Sequence[str]],
    partial: Mapping[str, Sequence[ArmRun]],
) -> str:
    """One exhibit as Markdown, as far as it is measured; ``figures`` are links and ``partial`` runs, by setting."""
    title = f"{exhibit.title[0].lower()}{exhibit.title[1:]}"
    parts = [f"# {exhibit.name}: {title}", f"The paper's {exhibit.source}."]
    for setting in exhibit.settings:
        rows = scores.get(setting.label, {})
        if any(row.measured for row in rows.values()):
            mine = [run for run in runs if run.setting == setting.label]
            images = figures.get(setting.label, [])
            left_out = _left_out(partial.get(setting.label, []))
            told = [_budget(mine, rows), _reading(mine, rows), left_out]
            parts += [f"## {setting.label}", " ".join(t for t in told if t)]
            parts += ["\n".join(map(str, _judged(exhibit, setting, mine, rows))), "\n".join(images)]
            parts += _tables(exhibit, setting, mine, rows)
    return "\n\n".join(part for part in parts if part) + "\n"


def findings(exhibit: Exhibit, runs: Sequence[ArmRun], scores: Mapping[str, Rows]) -> list[tuple[str, Finding]]:
    """Every claim of the exhibit in every block of it that is measured, with the block's name."""
    found = []
    for setting in exhibit.settings:
        rows = scores.get(setting.label, {})
        if any(row.measured for row in rows.values()):
            mine = [run for run in runs if run.setting == setting.label]
            found += [(setting.label, finding) for finding in _judged(exhibit, setting, mine, rows)]
    return found


def _judged(exhibit: Exhibit, setting: Setting, runs: Sequence[ArmRun], rows: Rows) -> list[Finding]:
    original, target = runs[0].original, runs[0].target
    return [judge(claim, rows, original, target) for claim in exhibit.claims_in(setting)]


def _tables(exhibit: Exhibit, setting: Setting, runs: Sequence[ArmRun], rows: Rows) -> list[str]:
    original, target = runs[0].original, runs[0].target
    texts = dict.fromkeys(text for row in rows.values() for text, _ in row.nll)
    read = dict.fromkeys(place for row in rows.values() for place in row.segments)
    parts: list[str] = []
    if (arm := exhibit.compared) and arm in rows and rows[arm].nll:
        parts += [_paired_table(arm, rows, text) for text in texts]
    if "ratios" in exhibit.show and texts:
        parts.append(_ratio_table(exhibit, rows, list(texts), target))
    if "perplexity" in exhibit.show:
        parts += [_perplexity_table(setting, rows, text, original) for text in texts]
    if "by-position" in exhibit.show:
        parts += [_position_table(rows, *place, original) for place in read if place[1] > original]
    if "ability" in exhibit.show:
        parts += [_ability_table(rows, original), _benchmarks(setting.label)]
    if "curves" in exhibit.show:
        parts += [_curve_table(setting, rows, text) for text, length in read if length == target]
    if "steps" in exhibit.show and any(row.steps for row in rows.values()):
        parts.append(_step_table(rows))
    tasks = dict.fromkeys(task for row in rows.values() for task in row.hits)
    parts += [_retrieval_table(exhibit, setting, rows, task) for task in tasks if "passkey" in exhibit.show]
    if any("passkey" in exhibit.show and row.hits for row in rows.values()):
        parts.append(_trials(setting, rows))
    return parts


def _budget(runs: Sequence[ArmRun], rows: Rows) -> str:
    """Seeds, and what each trained arm was trained on; arms of one budget together."""
    first = min((run.recipe.seed for run in runs), default=0)
    budgets: dict[str, list[str]] = {}
    schemes, measured = set(), {variant for variant, row in rows.items() if row.measured}
    for run in runs:
        if run.trained and run.recipe.seed == first and run.variant in measured:
            training = run.recipe.training
            told = f"{run.tokens:,} tokens ({training.max_steps:,} steps of {training.batch_size} x {run.window:,})"
            budgets.setdefault(told, []).append(arm_name(run.variant))
            schemes.add(run.recipe.positions.scheme)
    if not budgets:
        return ""
    trained = [f"{', '.join(arms)}: {told}" for told, arms in budgets.items()]
    told = f"{_seeds(rows)} Trained on: {'; '.join(trained)}."
    if "full" in schemes and len(schemes) > 1:
        told += (
            " Arms of the same number of steps train on the same number of tokens, so full-length training has fewer "
            "windows; the paper gives every arm the same number of windows."
        )
    return f"{told} {_prompts(runs)}".rstrip()


def _prompts(runs: Sequence[ArmRun]) -> str:
    """Which share of the arms' examples is made of prompts."""
    shares = {arm_name(run.variant): run.recipe.data for run in runs if run.trained}
    told = []
    for asked in sorted({data.passkey for data in shares.values()} - {0}):
        arms = [arm for arm, data in shares.items() if data.passkey == asked]
        whose = "the examples" if len(arms) == len(shares) else f"the examples of {', '.join(arms)}"
        told.append(f"{asked:.0%} of {whose} end in a passkey prompt, no longer than their window.")
    prompts = {arm: (data.retrieval, data.retrieval_end) for arm, data in shares.items() if data.retrieval}
    for begin, end in sorted(set(prompts.values()), key=str):
        whose = ", ".join(arm for arm, asked in prompts.items() if asked == (begin, end))
        share = f"{begin:.0%} of the examples of {whose} are retrieval prompts"
        if end is not None:
            share = f"Of the first examples of {whose} {begin:.0%} are retrieval prompts, of the last {end:.0%}"
        told.append(f"{share}, none worded as those measured.")
    return " ".join(told)


def _seeds(rows: Rows) -> str:
    """The seeds of the trained rows, and those of the passkeys where they are others."""

    def of(kinds: Iterable[str]) -> str:
        most = max((row.seeds.get(kind, []) for row in rows.values() for kind in kinds), key=len, default=[])
        return ("Seeds " if len(most) > 1 else "Seed ") + ", ".join(map(str, most))

    everything, passkeys = of({kind for row in rows.values() for kind in row.seeds}), of([PROMPTS])
    hits = any(row.hits for row in rows.values())
    spread = " ±: standard deviation over seeds." if everything.startswith("Seeds") else ""
    return f"{everything}{f'; passkeys: {passkeys.lower()}' if hits and passkeys != everything else ''}.{spread}"


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
    run = runs[0]
    asked = specification_of(run.recipe, run.original, run.target, "float32")
    read = {text for row in rows.values() for text, _ in row.nll}
    missing = [text for text in run.recipe.evaluation.source or [] if text not in read]
    return (
        f"Sliding windows at stride {' and '.join(told)}, over the first {asked.tokens_read(asked.windows[-1]):,} tokens of "
        f"{' or '.join(map(str, documents))} documents of each text."
        + (f" Not measured: {', '.join(missing)}." if missing else "")
    )


def _listed(windows: Iterable[int]) -> str:
    return ", ".join(format_length(window) for window in sorted(set(windows)))


def _left_out(partial: Sequence[ArmRun]) -> str:
    names = [arm_name(r.variant) + f", seed {r.recipe.seed}" * r.trained for r in partial]
    return f"Left out, because measured in part: {'; '.join(names)}." if names else ""


def _ratio_table(exhibit: Exhibit, rows: Rows, texts: Sequence[str], target: int) -> str:
    """Perplexity at the target over that of full-length training, which was trained as long."""
    lines = []
    for variant, row in rows.items():
        other = exhibit.against.get(variant, "full")
        pairs = [(row.perplexity(text, target), rows[other].perplexity(text, target)) for text in texts]
        if variant not in ("full", *exhibit.against.values()):
            cells = [f"{100 * (a[0] / b[0] - 1):+.1f}%" if a and b else "–" for a, b in pairs]
            lines.append(_line(variant, cells))
    return markdown_table([f"perplexity at {format_length(target)} over full-length's", *texts], lines)


def _paired_table(arm: str, rows: Rows, text: str) -> str:
    """Perplexity of ``arm`` over that of the others, less 1, seed by seed: the mean and its 95% interval over seeds."""
    windows = sorted(window for name, window in rows[arm].nll if name == text)
    lines = []
    for variant, row in rows.items():
        cells = []
        for window in windows:
            ours, theirs = rows[arm].nll[text, window], row.nll.get((text, window), [])
            theirs = theirs * len(ours) if len(theirs) == 1 else theirs  # a baseline is the same for every seed
            apart = [100 * (perplexity_of(a - b) - 1) for a, b in zip(ours, theirs, strict=False)]
            cells.append(_signed(apart) if apart else "–")
        if variant != arm:
            lines.append(_line(variant, cells))
    compared = any(row.measured for variant, row in rows.items() if variant != arm)
    return (
        markdown_table(
            [f"{arm_name(arm)}'s perplexity relative to each arm's, %, {text}", *map(format_length, windows)], lines
        )
        if compared
        else ""
    )


def _signed(values: Sequence[float]) -> str:
    """Their mean, and of several its interval."""
    if len(values) == 1:
        return f"{values[0]:+.1f}"
    apart = seeds_interval(values)
    return f"{apart.mean:+.1f} [{apart.low:+.1f}, {apart.high:+.1f}]"


def _perplexity_table(setting: Setting, rows: Rows, text: str, original: int) -> str:
    windows = sorted({window for row in rows.values() for window in row.by_window(text)})
    source, published = _published(setting.published, text)
    beside = [w for w in windows if _place(setting, w, original) is not None] if published else []
    head = [f"perplexity, {text}", *map(format_length, windows)]
    head += [f"{source} {window // original}x" for window in beside]
    lines = []
    for variant, row in rows.items():
        values = published.get(variant, ())
        reported = [format_reported(values, _place(setting, window, original)) for window in beside]
        lines.append(_line(variant, [_mean(row.perplexity(text, window)) for window in windows], reported))
    return markdown_table(head, lines)


def _published(published: paper.Published, text: str) -> tuple[str, dict[str, tuple[float, ...]]]:
    """The name and figures of the paper's text that is shown beside ``text``: its mathematics beside mathematics."""
    if not published:
        return "", {}
    names = list(published)
    mathematics = re.search(r"(^|[\W_])math", text) and paper.PROOF_PILE in names
    name = paper.PROOF_PILE if mathematics else names[0]
    return name, published[name]


def _place(setting: Setting, window: int, original: int) -> int | None:
    """The index of a window in the paper's row; None if the paper does not have it."""
    if setting.windows:
        return setting.windows.index(window // original) if window // original in setting.windows else None
    place = math.log2(window / original)
    return int(place) if place >= 0 and place == int(place) else None


def format_reported(values: Sequence[float], place: int | None) -> str:
    """Write the paper's figure at ``place`` of a row; a dash where it has none."""
    if place is None or place >= len(values):
        return "–"
    return ">1000" if math.isinf(values[place]) else format_number(values[place])


def _position_table(rows: Rows, text: str, length: int, original: int) -> str:
    """Perplexity by token position, from the segments of the target length."""
    edges = next(row.segments[text, length][0][0].edges for row in rows.values() if (text, length) in row.segments)
    places = list(pairwise([1, *(edge for edge in edges if edge >= original)]))
    head = [f"perplexity at positions, {text}"]
    head += [f"{format_length(begin)} to {format_length(end)}" for begin, end in places]
    lines = []
    for variant, row in rows.items():
        losses = [row.by_position(text, length, begin, end) for begin, end in places]
        lines.append(_line(variant, [format_number(perplexity_of(one.mean)) if one else "–" for one in losses]))
    return markdown_table(head, lines)


def _curve_table(setting: Setting, rows: Rows, text: str) -> str:
    curves = {variant: row.curves().get(f"{text}, first tokens", {}) for variant, row in rows.items()}
    lengths = sorted({length for curve in curves.values() for length in curve})
    head = [f"perplexity of the first tokens, {text}", *map(format_length, lengths), "paper 1k", "paper 16k"]
    published = paper.FAMILIES.get(setting.label, {})
    lines = []
    for variant, curve in curves.items():
        values = published.get(variant, ())
        cells = [format_number(curve[n]) if n in curve else "–" for n in lengths]
        lines.append(_line(variant, cells, [format_reported(values, 0), format_reported(values, 1)]))
    return markdown_table(head, lines)


def _ability_table(rows: Rows, original: int) -> str:
    """Loss and accuracy inside the original length, and their change."""
    head = ["", "text", "perplexity", "accuracy"]
    head += ["loss less the original's, nats per token", "accuracy less the original's, points"]
    lines: list[list[str]] = []
    for variant, row in rows.items():
        for text in row.texts(original):
            loss, right = (row.by_position(text, original, 0, original, sums) for sums in ("nll", "hits"))
            assert loss is not None
            assert right is not None
            apart = ["–", "–"]
            if "original" in rows and variant != "original":
                place = (rows["original"], text, original, 0, original)
                more, points = row.difference(*place), row.difference(*place, "hits")
                apart = [str(more), str(points.times(100))] if more and points else apart
            lines.append(
                [
                    arm_name(variant),
                    text,
                    format_number(perplexity_of(loss.mean)),
                    f"{100 * right.mean:.1f}% [{100 * right.low:.1f}, {100 * right.high:.1f}]",
                    *apart,
                ]
            )
    return markdown_table(head, lines, left=2) if lines else ""


def _benchmarks(label: str) -> str:
    """The paper's six benchmarks and their mean, where the paper trained an arm in this setting."""
    lines = [
        [arm_name(arm), *(f"{value:.2f}" for value in values), f"{sum(values) / len(values):.2f}"]
        for (arm, where), values in paper.ABILITY.items()
        if where in ("", label)
    ]
    return markdown_table(["the paper, per cent", *paper.BENCHMARKS, "mean"], lines) if len(lines) > 1 else ""


def _step_table(rows: Rows) -> str:
    steps = sorted({step for row in rows.values() for step in row.steps})
    head = ["perplexity after steps", *map(str, steps), *(f"paper {step}" for step in paper.STEPS)]
    lines = []
    for variant, row in rows.items():
        means = [sum(row.steps[s]) / len(row.steps[s]) if s in row.steps else math.nan for s in steps]
        published = [format_number(value) for value in paper.BY_STEP.get(variant, ())]
        lines.append(_line(variant, [format_number(perplexity_of(mean)) for mean in means], published))
    return markdown_table(head, lines)


def _retrieval_table(exhibit: Exhibit, setting: Setting, rows: Rows, task: str) -> str:
    hits = {variant: row.hits.get(task, {}) for variant, row in rows.items()}
    lengths = sorted({length for asked in hits.values() for length in asked})
    beside = exhibit.passkey if setting.retrieved and task == "passkey" else ()
    lines = []
    for variant, asked in hits.items():
        shares = [_found(asked[n]) if n in asked else "–" for n in lengths]
        published = setting.retrieved.get(variant, (None,) * len(beside)) if beside else ()
        lines.append(_line(variant, shares, [share or "–" for share in published]))
    title = "passkeys" if task == "passkey" else task_title(task)
    return markdown_table([f"{title} found", *map(format_length, lengths), *(f"paper {n}x" for n in beside)], lines)


def _trials(setting: Setting, rows: Rows) -> str:
    """What the shares of the retrieval tables are of, and how sure one of them is."""
    every = [hits for row in rows.values() for asked in row.hits.values() for hits in asked.values()]
    told = []
    if setting.retrieved:
        told.append("The paper's figure is under linear interpolation.")
    if any(len(hits) > 1 for hits in every):
        told.append("The mean over seeds; in brackets the lowest and the highest share of one seed.")
    for n in sorted({asked for hits in every for _, asked in hits}):
        (_, high), (low, _), (middle, _) = (wilson_interval(hits, n) for hits in (0, n, n // 2))
        told.append(
            f"With {n} prompts the 95% interval of 0% reaches up to {format_share(high)}, that of 100% down to "
            f"{format_share(low)}, that of {n // 2 / n:.0%} down to {format_share(middle)}."
        )
    return " ".join(told)


def _found(hits: Sequence[tuple[int, int]]) -> str:
    """The share of numbers found, mean over seeds, and its range where seeds differ."""
    shares = [found / asked for found, asked in hits]
    mean, ends = format_share(sum(shares) / len(shares)), [format_share(f(shares)) for f in (min, max)]
    return mean if ends[0] == ends[1] else f"{mean} ({ends[0]} to {ends[1]})"


def _mean(score: tuple[float, float] | None) -> str:
    if score is None:
        return "–"
    mean, spread = score
    return f"{format_number(mean)} ± {format_number(spread)}" if spread else format_number(mean)


def _line(variant: str, cells: Sequence[str], published: Sequence[str] = ()) -> list[str]:
    """A row; one without any measured cell says so."""
    if cells and all(cell == "–" for cell in cells):
        cells = ["not measured", *cells[1:]]
    return [arm_name(variant), *cells, *published]

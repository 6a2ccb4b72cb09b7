"""An evaluation's records -> what they say of each model, and the terminal's view of it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipwise.errors import RunError
from skipwise.intervals import Interval, mean_interval, wilson_interval
from skipwise.lengths import format_length
from skipwise.report.effective_length import EffectiveLength, effective_length
from skipwise.report.summary import format_number, format_share
from skipwise.results import BenchmarkRecord, ReadingRecord, Record, TrialRecord, read_records

PRICE = 0.03  # nats: 3% in perplexity
TASK_NAMES = {"passkey": "passkey", "keys": "one key of four", "lines": "one line of a register"}


@dataclass(frozen=True)
class Price:
    """What the extension cost inside the original window, on the same tokens: the model less its base.

    Attributes:
        loss: nats a token.
        accuracy: of the next token, a share.
        tokens: compared.
    """

    loss: Interval
    accuracy: Interval
    tokens: int

    @property
    def warning(self) -> str:
        """What to say where the price is high; else empty."""
        if self.loss.mean <= PRICE:
            return ""
        return (
            f"The extension cost {self.loss.mean:.3f} nats inside the original window, more than {PRICE}: short texts are "
            "read worse than by the base. Train longer, at a lower rate, or under another interpolation."
        )


@dataclass(frozen=True)
class Bucket:
    """Tokens at positions ``begin .. end - 1``.

    Attributes:
        loss: nats a token, each read with all of its document before it.
        gain: the loss of the same tokens read in windows of the original length, less ``loss``: what far text is worth.
        excess: ``loss`` less the base's in windows of the original length.
    """

    begin: int
    end: int
    loss: Interval
    gain: Interval | None
    excess: Interval | None


@dataclass(frozen=True)
class Evaluated:
    """What the records say of one model; lengths are in tokens.

    Attributes:
        facts: of ``run.json``: label, name, original, target, base.
        perplexity: by window.
        strides: by window.
        truncated: perplexity of the first tokens, by how many.
        buckets: loss by position.
        found: (found, asked) by task and length.
        depths: hits by task and length, by tenth of the prompt.
        price: None where no base was read.
        effective: how far it reads.
    """

    facts: Mapping[str, Any]
    perplexity: dict[int, Interval]
    strides: dict[int, int]
    truncated: dict[int, float]
    buckets: list[Bucket]
    found: dict[str, dict[int, tuple[int, int]]]
    depths: dict[str, dict[int, list[list[bool]]]]
    price: Price | None
    effective: EffectiveLength

    @property
    def label(self) -> str:
        """By which it is named."""
        return str(self.facts["label"])

    @property
    def headline(self) -> str:
        """How far it reads, in one sentence."""
        tokens, original = self.effective.tokens, int(self.facts["original"])
        if self.effective.shortfall.startswith("Not judged"):
            return "Not judged"
        if not tokens:
            return self.effective.shortfall.split(" it fails")[0].replace("At ", "Fails at ")
        if tokens <= original:
            return f"Reads {tokens:,} tokens, no more than its original {original:,}"
        return f"Reads {tokens:,} tokens, {tokens / original:.3g} times its original {original:,}"


@dataclass(frozen=True)
class Evaluation:
    """One folder: what was asked, and of each model what was found.

    Attributes:
        question: of ``run.json``.
        models: those asked for, without the bases that are there to compare with.
        info: all of ``run.json``.
        documents: read of each text.
        records: how many there are.
    """

    question: Mapping[str, Any]
    models: list[Evaluated]
    info: Mapping[str, Any]
    documents: int
    records: list[Record]

    @property
    def unfinished(self) -> str:
        """How much is measured, where that is not all; a share, or stopped."""
        asked = self.info.get("records")
        made = len({_what(r) for r in self.records if isinstance(r, ReadingRecord | TrialRecord)})
        if not isinstance(asked, int) or made >= asked:
            return ""
        return (
            f"Unfinished: {made:,} of {asked:,} records. What stands here is of a part, and prompts are not answered in the "
            "order of their depths; the same command goes on, shares are put together by skipwise merge."
        )


def _what(record: ReadingRecord | TrialRecord) -> tuple[object, ...]:
    if isinstance(record, TrialRecord):
        return record.arm, record.task, record.length, record.trial
    return record.arm, record.window, record.document


def read_evaluation(folder: Path) -> Evaluation:
    """Read what ``skipwise evaluate`` wrote.

    Raises:
        RunError: it holds no evaluation, or nothing was measured yet.
    """
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        question = info["evaluation"]
        models = [dict(model) for model in question["models"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{folder} holds no evaluation that can be read ({error!r})") from None
    records = read_records(folder / "results.jsonl")
    if not records:
        raise RunError(f"{folder} holds no results yet; the same evaluate command goes on")
    readings = [r for r in records if isinstance(r, ReadingRecord)]
    trials = [r for r in records if isinstance(r, TrialRecord)]
    found = [
        _evaluated(facts, models, readings, trials) for facts in models if not facts.get("control", False)
    ]
    return Evaluation(question, found, info, len({r.document for r in readings}), records)


def is_evaluation(folder: Path) -> bool:
    """Whether a folder is one of ``skipwise evaluate``, and not of a run."""
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return "models" in info.get("evaluation", {})
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


def _evaluated(
    facts: Mapping[str, Any],
    models: Sequence[Mapping[str, Any]],
    readings: Sequence[ReadingRecord],
    trials: Sequence[TrialRecord],
) -> Evaluated:
    own = _by_window(readings, str(facts["label"]))
    original = int(facts["original"])
    behind = str(facts["base"]) or str(facts["label"])
    base_window = next((int(m["original"]) for m in models if m["label"] == behind), original)
    window = original if original in _by_window(readings, behind) else base_window
    if own:  # where no length reaches the original one, the base was read as far as the lengths go
        window = min(window, max(own))
    control = _by_window(readings, behind).get(window, [])
    longest = own.get(max(own), []) if own else []
    whole = [
        r for r in longest if r.window >= r.edges[-1]
    ]  # in one window: all of the document before each token
    found, depths = _trials(trials, str(facts["label"]))
    lengths = sorted({w for w in own} | {n for task in found.values() for n in task})
    own_control = behind == facts["label"]
    buckets = _buckets(whole, own.get(original, []), [] if own_control else control, original)
    words = f"{'the model itself' if own_control else behind} in windows of its original {window:,} tokens"
    return Evaluated(
        facts,
        {w: perplexity_interval(rs) for w, rs in own.items()},
        {w: rs[0].stride for w, rs in own.items()},
        {edge: _exp(bucket_mean(whole, 0, edge)) for edge in (whole[0].edges[1:] if whole else [])},
        buckets,
        found,
        depths,
        None if own_control else _price(own.get(window, []), control),
        effective_length(
            found.get("passkey", {}), dict(_excess(whole, control, [n for n in lengths])), words
        ),
    )


def _by_window(readings: Iterable[ReadingRecord], label: str) -> dict[int, list[ReadingRecord]]:
    found: dict[int, dict[str, ReadingRecord]] = {}
    for record in readings:
        if record.arm == label:
            found.setdefault(record.window, {})[record.document] = record
    # By name, so that the order in which machines answered changes no figure.
    return {window: [found[window][name] for name in sorted(found[window])] for window in sorted(found)}


def _trials(
    trials: Iterable[TrialRecord], label: str
) -> tuple[dict[str, dict[int, tuple[int, int]]], dict[str, dict[int, list[list[bool]]]]]:
    found: dict[str, dict[int, tuple[int, int]]] = {}
    depths: dict[str, dict[int, list[list[bool]]]] = {}
    for record in sorted(trials, key=lambda r: r.length):
        if record.arm != label:
            continue
        hits, asked = found.setdefault(record.task, {}).get(record.length, (0, 0))
        found[record.task][record.length] = hits + record.hit, asked + 1
        parts = depths.setdefault(record.task, {}).setdefault(record.length, [[] for _ in range(10)])
        parts[record.tenth].append(record.hit)
    return found, depths


def perplexity_interval(records: Sequence[ReadingRecord], end: int | None = None) -> Interval:
    """Perplexity over documents, token by token, of their first ``end`` tokens or of all, with its 95% interval."""
    parts = [_within(r, 0, end or r.edges[-1]) for r in records]
    loss = mean_interval([s for s, _ in parts], [t for _, t in parts], [r.document for r in records])
    return Interval(_exp(loss.mean), _exp(loss.low), _exp(loss.high))


def bucket_mean(records: Sequence[ReadingRecord], begin: int, end: int) -> float:
    """Loss in nats a token at positions ``begin .. end - 1``."""
    totals = [_within(r, begin, end) for r in records]
    return sum(total for total, _ in totals) / sum(tokens for _, tokens in totals)


def _within(record: ReadingRecord, begin: int, end: int, sums: str = "nll") -> tuple[float, int]:
    """Sum and tokens of the buckets that lie in ``begin .. end - 1``."""
    values = getattr(record, sums)
    inside = [
        (value, high - low)
        for value, (low, high) in zip(values, pairwise(record.edges), strict=True)
        if low >= begin and high <= end
    ]
    return sum(value for value, _ in inside), sum(tokens for _, tokens in inside)


def bucket_difference(
    ours: Sequence[ReadingRecord],
    theirs: Sequence[ReadingRecord],
    begin: int,
    end: int,
    sums: str = "nll",
) -> Interval | None:
    """Ours less theirs a token, on the same documents, with its interval over them."""
    other = {r.document: r for r in theirs}
    pairs = [
        (r, other[r.document]) for r in ours if r.document in other and other[r.document].edges == r.edges
    ]
    apart = [_within(a, begin, end, sums)[0] - _within(b, begin, end, sums)[0] for a, b in pairs]
    tokens = [_within(a, begin, end)[1] for a, _ in pairs]
    if not sum(tokens):
        return None
    return mean_interval(apart, tokens, [a.document for a, _ in pairs])


def _buckets(
    whole: Sequence[ReadingRecord],
    short: Sequence[ReadingRecord],
    control: Sequence[ReadingRecord],
    original: int,
) -> list[Bucket]:
    """Of a quarter of the original length, then twice as long each."""
    if not whole:
        return []
    edges = whole[0].edges
    doubled = {max(2, original // 4) * 2**k for k in range(32)}
    buckets = []
    for begin, end in pairwise([1, *(e for e in edges[1:-1] if e in doubled), edges[-1]]):
        sums = [_within(r, begin, end) for r in whole]
        loss = mean_interval([s for s, _ in sums], [t for _, t in sums], [r.document for r in whole])
        gain = bucket_difference(short, whole, begin, end) if begin >= original else None
        buckets.append(Bucket(begin, end, loss, gain, bucket_difference(whole, control, begin, end)))
    return buckets


def _excess(
    whole: Sequence[ReadingRecord], control: Sequence[ReadingRecord], lengths: Sequence[int]
) -> Iterable[tuple[int, Interval]]:
    """Between each length and the next shorter one."""
    for begin, end in pairwise([1, *lengths]):
        if whole and end in whole[0].edges and (found := bucket_difference(whole, control, begin, end)):
            yield end, found


def _price(ours: Sequence[ReadingRecord], theirs: Sequence[ReadingRecord]) -> Price | None:
    if not ours or not theirs:
        return None
    end = ours[0].edges[-1]
    loss, accuracy = bucket_difference(ours, theirs, 0, end), bucket_difference(ours, theirs, 0, end, "hits")
    if loss is None or accuracy is None:
        return None
    both = {r.document for r in ours} & {r.document for r in theirs}
    return Price(loss, accuracy, len(both) * (end - 1))


def price_words(price: Price | None, base: str) -> str:
    """What was paid, in one sentence."""
    if price is None:
        return "What was paid is not known: no base was read (--base)."
    loss, accuracy = price.loss, price.accuracy.times(100)
    return (
        f"Paid inside the original window, against {base}: {loss} nats a token ({100 * math.expm1(loss.mean):+.1f}% "
        f"perplexity), next-token accuracy {accuracy.mean:+.2f} [{accuracy.low:+.2f}, {accuracy.high:+.2f}] points."
    )


def evaluation_terminal(folder: Path) -> RenderableType:
    """What the page says, for the terminal."""
    evaluation = read_evaluation(folder)
    parts: list[RenderableType] = []
    if evaluation.unfinished:
        parts.append(Text(evaluation.unfinished, style="yellow"))
    for model in evaluation.models:
        parts.append(Text(f"{model.label}: {model.headline}", style="bold"))
        if model.effective.shortfall:
            parts.append(Text(model.effective.shortfall))
        if model.perplexity:
            parts.append(Text(price_words(model.price, str(model.facts["base"]))))
            if model.price and model.price.warning:
                parts.append(Text(model.price.warning, style="yellow"))
    parts += [Text(rule, style="dim") for rule in dict.fromkeys(m.effective.rule for m in evaluation.models)]
    for title, head, rows in tables(evaluation, brief=True):
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for number, column in enumerate(head):
            grid.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            grid.add_row(*map(Text, row))
        parts += [Text(""), Text(title), grid]
    return Group(*parts)


def tables(evaluation: Evaluation, *, brief: bool = False) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of every table, as text; brief without the intervals for which a terminal lacks room."""
    models = evaluation.models
    found = []
    windows = sorted({w for m in models for w in m.perplexity})
    if windows:
        rows = [
            [m.label, *(_cell(m.perplexity.get(w), format_number, brief) for w in windows)]
            for m in models
            if m.perplexity
        ]
        found.append(("Perplexity by sliding window", ["window", *map(format_length, windows)], rows))
    for task in dict.fromkeys(t for m in models for t in m.found):
        lengths = sorted({n for m in models for n in m.found.get(task, {})})
        rows = [
            [m.label, *(_share(m.found[task].get(n), brief and len(lengths) > 4) for n in lengths)]
            for m in models
            if task in m.found
        ]
        found.append((f"Found: {TASK_NAMES.get(task, task)}", ["prompt", *map(format_length, lengths)], rows))
    labels = [str(facts["label"]) for facts in evaluation.question["models"]]
    sat = [r for r in evaluation.records if isinstance(r, BenchmarkRecord) and r.arm in labels]
    if sat:
        head = ["task", *(label for label in labels if any(r.arm == label for r in sat))]
        values = {(_task(r), r.arm): r for r in sat}
        rows = [
            [task, *(_score(values.get((task, label))) for label in head[1:])]
            for task in dict.fromkeys(map(_task, sat))
        ]
        found.append(("Benchmarks (standard error)", head, rows))
    for model in models:
        if model.buckets:
            rows = [
                [
                    f"{b.begin:,} .. {b.end - 1:,}",
                    f"{b.loss.mean:.3f}",
                    str(b.gain) if b.gain else "–",
                    str(b.excess) if b.excess else "–",
                ]
                for b in model.buckets
            ]
            head = ["position", "loss (nats)", "gain by far text", "over the base"]
            found.append((f"Loss by position: {model.label}", head, rows))
    return found


def _cell(value: Interval | None, form: Any, brief: bool) -> str:
    if value is None:
        return "–"
    if brief or math.isinf(value.high):
        return str(form(value.mean))
    return f"{form(value.mean)} [{form(value.low)}, {form(value.high)}]"


def _share(found: tuple[int, int] | None, brief: bool) -> str:
    if found is None:
        return "–"
    low, high = wilson_interval(*found)
    if brief:
        return format_share(found[0] / found[1])
    return f"{format_share(found[0] / found[1])} [{100 * low:.0f}, {100 * high:.0f}]"


def _task(record: BenchmarkRecord) -> str:
    return f"{record.task}, {record.fewshot}-shot, {record.metric}"


def _score(record: BenchmarkRecord | None) -> str:
    if record is None:
        return "–"
    return f"{record.value:.4f}" + (f" ({record.standard_error:.4f})" if record.standard_error else "")


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf

"""Results of each model: effective length, gain by far text, cost, other text."""

import math
from dataclasses import replace

import numpy as np
import pytest

from skipwise.errors import RunError
from skipwise.report.folder import Folder, read_folder
from skipwise.report.rows import (
    COST_LIMIT,
    benchmarks_of,
    judgements,
    other_text_warning,
    other_texts,
    perplexity_by_step,
    rows_of,
)
from skipwise.results.records import OTHER_TEXT, BenchmarkRecord, ReadingRecord, append_record
from skipwise.results.statistics import FEWEST_SEGMENTS
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, WINDOWS, arm, evaluation_folder, readings, run_folder, trials

EDGES = [1, 64, 128, *WINDOWS]
KINDS = ("prose", "mathematics", "code")


def judged(*records, info=INFO):
    [one] = judgements(rows_of([Folder("run", list(records), info)]))
    return one


def random_readings(seed: int, name: str, window: int) -> list[ReadingRecord]:
    rng = np.random.default_rng(seed)
    return [
        replace(r, nll=list(rng.uniform(1, 2, 6) * np.diff(EDGES)), hits=list(map(int, rng.integers(0, 50, 6))))
        for r in readings(name, window, 1.0)
    ]


def segments(arm: str, kind: str, nats: float, count: int = FEWEST_SEGMENTS, tokens: int = 256) -> list[ReadingRecord]:
    """Segments of one kind of other text; later ones have a higher loss."""
    request = ReadingRecord(arm, OTHER_TEXT, kind, "segment", 0, tokens, tokens, [1, tokens], "float32", "d")
    return [replace(request, begin=tokens * n, nll=[(nats + 0.5 * n) * (tokens - 1)], hits=[0]) for n in range(count)]


def other_text(**rises: float) -> list[ReadingRecord]:
    """Both arms on each kind; ``rises`` in nats by kind."""
    base = [r for kind in KINDS for r in segments("original", kind, 2.0)]
    return [*base, *(r for kind in KINDS for r in segments("pose", kind, 2.0 + rises.get(kind, 0.0)))]


def test_every_number_has_its_formula(tmp_path) -> None:
    whole, short, base = (
        random_readings(seed, name, window) for seed, name, window in ((0, "m", 2048), (1, "m", 256), (2, "base", 256))
    )
    records = [*whole, *reversed(short), *base[3:], *base[:3], *trials("m", 256, 40, 40), *trials("m", 2048, 39, 40)]
    [one] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", records))]))
    row, every = one.row, slice(None)

    def total(read, buckets=every, what="nll") -> float:
        return sum(float(np.sum(getattr(r, what)[buckets])) for r in read)

    assert row.perplexity[2048].mean == pytest.approx(math.exp(total(whole) / (6 * 2047)))
    assert row.perplexity[256].mean == pytest.approx(math.exp(total(short) / (6 * 2047)))
    assert row.perplexity[2048].low < row.perplexity[2048].mean < row.perplexity[2048].high
    assert {edge: first.mean for edge, first in row.truncated().items()} == pytest.approx(
        {edge: math.exp(total(whole, slice(0, i + 1)) / (6 * (edge - 1))) for i, edge in enumerate(EDGES[1:])}
    )
    assert [b.begin for b in one.buckets] == EDGES[:-1]
    last = one.buckets[-1]
    assert last.loss.mean == pytest.approx(total(whole, 5) / (6 * 1024))
    assert last.gain.mean == pytest.approx((total(short, 5) - total(whole, 5)) / (6 * 1024))
    assert last.excess.mean == pytest.approx((total(whole, 5) - total(base, 5)) / (6 * 1024))
    assert [b.gain is None for b in one.buckets] == [True] * 3 + [False] * 3  # none inside the original length
    assert one.cost.loss.mean == pytest.approx((total(short) - total(base)) / (6 * 2047))
    hits = total(short, what="hits") - total(base, what="hits")
    assert one.cost.accuracy.mean == pytest.approx(hits / (6 * 2047))
    assert row.found == {"passkey": {256: (40, 40), 2048: (39, 40)}}


@pytest.mark.parametrize(("more", "warned"), [(0.02, False), (COST_LIMIT + 0.01, True)])
def test_a_high_cost_has_a_warning(more, warned) -> None:
    one = judged(*readings("original", 256, 15.0), *readings("pose", 256, 15.0 * math.exp(more)))
    assert one.cost.loss.mean == pytest.approx(more)
    assert bool(one.cost.warning) is warned
    assert one.effective.claimed(256) is None  # no passkey was asked


def test_baselines_are_first_and_equal_ones_are_merged() -> None:
    def labels(*runs: tuple[str, list]) -> list[str]:
        return [row.label for row in rows_of([Folder(name, records, INFO) for name, records in runs])]

    assert labels(("a", [*POSE, *PI_ONLY, *ORIGINAL])) == ["original", "PI-only", "PoSE"]
    assert labels(("a", [*POSE, *ORIGINAL]), ("b", [*ORIGINAL, *POSE])) == ["original", "a · PoSE", "b · PoSE"]
    other = arm("original", [16, 80, 110, 135], [100, 0, 0, 0])
    runs = [(name, [*ORIGINAL, *POSE]) for name in "ab"] + [(name, [*other, *POSE]) for name in "cd"]
    assert labels(*runs)[:2] == ["a · original", "c · original"]


def test_a_repeated_measurement_replaces_the_older_one() -> None:
    records = [*readings("pose", 256, 9), *readings("pose", 256, 8, digest="e"), *trials("pose", 256, 10, 10)]
    [row] = rows_of([Folder("a", [*records, *(replace(t, digest="e", hit=False) for t in records[-10:])], INFO)])
    assert row.perplexity[256].mean == pytest.approx(8)
    assert row.found["passkey"][256] == (0, 10)
    record = BenchmarkRecord("m", "boolq", "acc", 0, 256, None, "float32", "0.4", "d", 4, 0.5)
    assert benchmarks_of([Folder("a", [record, replace(record, value=0.75)])]) == [replace(record, value=0.75)]
    some = replace(record, limit=10, samples=3, value=0.9)  # fewer questions
    assert benchmarks_of([Folder("a", [record, some])]) == [record]


def test_settings_of_a_resumed_run_select_its_records(tmp_path) -> None:
    settings = {"documents": {"held out": ["d0", "d2"]}, "windows": [512], "prompt_lengths": [512], "trials": 4}
    settings |= {"tasks": ["passkey"], "tokens": {"held out": [2048, 2048]}, "other": False}
    records = [*readings("original", 256, 9), *readings("original", 512, 9), *readings("original", 1024, 9)]
    records += [*trials("original", 512, 1, 3, "keys"), *trials("original", 256, 5), *trials("original", 512, 5)]
    records += [replace(r, data="another") for r in readings("original", 512, 9)] + other_text()
    folder = read_folder(run_folder(tmp_path / "a", records, {**INFO, "evaluation": settings}))
    [row] = rows_of([folder])
    assert set(row.perplexity) == {256, 512}  # the original has its own window too
    assert [r.document for r in row.readings(512)] == ["d0", "d2"]
    assert row.found == {"passkey": {512: (4, 4)}}
    assert other_texts(folder) == []
    folder = read_folder(run_folder(tmp_path / "b", records, {**INFO, "evaluation": {}}))
    assert set(rows_of([folder])[0].perplexity) == {256, 512, 1024}
    assert other_texts(folder)


def test_perplexity_by_step_has_far_text_of_segments_and_whole_sliding_windows() -> None:
    def at(step: int, mode: str, near: float, far: float) -> list:
        made = readings("pose", 2048, [near] * 3 + [far] * 3, documents=2)
        return [replace(record, mode=mode, step=step) for record in made]

    records = [*at(2, "sliding", 9, 9), *at(4, "sliding", 8, 8), *at(2, "segment", 9, 5), *at(4, "segment", 9, 6)]
    records += at(6, "segment", 9, 1)[:1]  # a kill cut the step short
    records += [replace(r, data="another") for r in at(2, "sliding", 1, 1)]
    info = {**INFO, "evaluation": {"documents": {"held out": ["d0", "d1"], "another": ["d0"]}}}
    curves = perplexity_by_step(Folder("run", records, info))
    assert {key: {step: p.mean for step, p in curve.items()} for key, curve in curves.items()} == {
        ("sliding", 2048): pytest.approx({2: 9, 4: 8}), ("segment", 2048): pytest.approx({2: 5, 4: 6})
    }  # fmt: skip


def test_other_text_is_paired_by_segment() -> None:
    texts = other_texts(Folder("run", other_text(prose=0.05, code=-0.02), INFO))
    prose, mathematics, code = (text for text in texts if text.measure == "loss (nats)")
    assert (prose.arm, prose.kind, prose.segments, prose.tokens) == ("pose", "prose", 8, 256)
    assert prose.base == pytest.approx(2.0 + 0.5 * 3.5)
    assert prose.own == pytest.approx(prose.base + 0.05)
    # Segments differ by 0.5 nats, their differences by none.
    assert [prose.change.low, prose.change.mean, prose.change.high] == pytest.approx([0.05] * 3)
    assert code.change.mean == pytest.approx(-0.02)
    assert mathematics.change.mean == 0
    shared = [*segments("original", "prose", 2.0)[:3], *segments("pose", "prose", 2.1)]
    [loss, _] = other_texts(Folder("run", shared, INFO))
    assert loss.segments == 3
    assert math.isnan(loss.change.low)


@pytest.mark.parametrize(("rise", "warned"), [(0.029, False), (0.031, True)])
def test_a_high_loss_on_other_text_has_a_warning(rise, warned) -> None:
    warning = other_text_warning(Folder("run", other_text(code=rise), INFO))
    assert ("code" in warning) == bool(warning) == warned
    assert "prose" not in warning


def test_an_evaluation_counts_its_missing_records(tmp_path) -> None:
    records = [*readings("m", 256, 9), *trials("m", 256, 3, 4)]
    with pytest.raises(RunError):
        read_folder(evaluation_folder(tmp_path / "empty", []))
    folder = evaluation_folder(tmp_path / "e", records, records=12)
    assert "10 of 12" in read_folder(folder).unfinished
    append_record(folder / "results.jsonl", *records, *trials("m", 512, 1, 2))
    assert read_folder(folder).unfinished == ""

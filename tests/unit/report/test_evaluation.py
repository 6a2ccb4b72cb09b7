"""What an evaluation's records say: how far a model reads, what far text is worth, and what the extension cost."""

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from skipwise.errors import RunError
from skipwise.report.evaluation import (
    bucket_difference,
    evaluation_terminal,
    is_evaluation,
    perplexity_interval,
    read_evaluation,
)
from skipwise.results.effective_length import effective_length
from skipwise.results.records import ReadingRecord, TrialRecord, append_record
from skipwise.results.statistics import Interval

GOOD, BAD = Interval(0.0, -0.01, 0.01), Interval(0.2, 0.1, 0.3)
ALL, MOST, HALF = (100, 100), (97, 100), (50, 100)


@pytest.mark.parametrize(
    ("found", "excess", "tokens", "shortfall"),
    [
        ({256: ALL, 512: MOST}, {256: GOOD, 512: GOOD}, 512, ""),
        (
            {256: ALL, 512: HALF, 1024: ALL},
            {256: GOOD, 512: GOOD, 1024: GOOD},
            256,
            "At 512 tokens it fails: 50 of 100",
        ),
        ({256: ALL, 512: ALL}, {256: GOOD, 512: BAD}, 256, r"At 512 tokens it fails: loss \+0\.200"),
        ({256: HALF}, {256: BAD}, 0, "At 256 tokens it fails: 50 of 100 .*; loss"),
        ({256: (9, 10)}, {256: GOOD}, 0, "9 of 10 passkeys, which may be 60%, under 90%"),
        (
            {256: ALL, 512: (20, 20)},
            {256: GOOD, 512: GOOD},
            256,
            "Not judged at 512 tokens: all of 20 passkeys are too few",
        ),
        ({512: ALL}, {256: GOOD, 512: GOOD}, 512, ""),
        ({256: ALL, 512: ALL}, {256: GOOD}, 256, "At 512 tokens only one of passkeys and loss was measured"),
        ({}, {256: GOOD}, 0, "Not judged: passkeys not measured"),
        ({256: ALL}, {}, 0, "Not judged: loss by position not measured"),
        ({256: ALL}, {256: Interval(math.nan, math.nan, math.nan)}, 0, "At 256 tokens it fails"),
    ],
)
def test_the_longest_length_at_which_this_and_all_shorter_pass(found, excess, tokens, shortfall) -> None:
    found_out = effective_length(found, excess, "its base")
    assert found_out.tokens == tokens

    assert re.search(shortfall, found_out.shortfall)
    assert bool(found_out.shortfall) is bool(shortfall)
    assert "90% of the passkeys" in found_out.rule
    assert "its base" in found_out.rule


def reading(
    arm: str, document: str, window: int, nll: list[float], hits: list[int] | None = None
) -> ReadingRecord:
    edges = [1, 64, 256, 512]
    return ReadingRecord(arm, "x", document, window, 32, edges, nll, hits or [1, 2, 3], "float32", 0.1)


def folder_of(path: Path, *records: object, base: str = "base") -> Path:
    model = {
        "label": "m",
        "name": "m",
        "original": 256,
        "target": 512,
        "base": base,
        "control": False,
        "weights": "0" * 64,
    }
    behind = {**model, "label": "base", "base": "", "control": True}
    asked = {
        "data": "x",
        "trials": 40,
        "seed": 0,
        "precision": "float32",
        "held_out": None,
        "models": [model, behind],
    }
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"evaluation": asked}))
    for record in records:
        append_record(path / "results.jsonl", record)
    return path


def trials(length: int, hits: int, asked: int = 40) -> list[TrialRecord]:
    return [
        TrialRecord("m", "passkey", length, 0, i, i / asked, length - 3, i < hits, "1", "float32", 0.1)
        for i in range(asked)
    ]


def test_every_number_is_its_own_formula(tmp_path) -> None:
    rng = np.random.default_rng(0)
    whole = {d: rng.uniform(1, 2, 3) * [63, 192, 256] for d in "abc"}
    short = {d: rng.uniform(1, 2, 3) * [63, 192, 256] for d in "abc"}
    base = {d: rng.uniform(1, 2, 3) * [63, 192, 256] for d in "abc"}
    records = [reading("m", d, 512, list(whole[d])) for d in "abc"]
    records += [reading("m", d, 256, list(short[d]), [4, 4, 4]) for d in "cab"]
    records += [reading("base", d, 256, list(base[d]), [5, 5, 8]) for d in "bca"]
    [m] = read_evaluation(folder_of(tmp_path / "e", *records, *trials(256, 40), *trials(512, 40))).models
    total = lambda texts, i=slice(None): sum(float(np.sum(v[i])) for v in texts.values())  # noqa: E731
    assert m.perplexity[512].mean == pytest.approx(math.exp(total(whole) / (3 * 511)))
    assert m.perplexity[256].mean == pytest.approx(math.exp(total(short) / (3 * 511)))
    assert m.perplexity[512].low < m.perplexity[512].mean < m.perplexity[512].high
    assert m.truncated == pytest.approx(
        {
            64: math.exp(total(whole, 0) / (3 * 63)),
            256: math.exp(total(whole, slice(0, 2)) / (3 * 255)),
            512: math.exp(total(whole) / (3 * 511)),
        }
    )
    last = m.buckets[-1]
    assert (last.begin, last.end) == (256, 512)
    assert last.loss.mean == pytest.approx(total(whole, 2) / (3 * 256))
    assert last.gain.mean == pytest.approx((total(short, 2) - total(whole, 2)) / (3 * 256))
    assert last.excess.mean == pytest.approx((total(whole, 2) - total(base, 2)) / (3 * 256))
    assert m.price.loss.mean == pytest.approx((total(short) - total(base)) / (3 * 511))
    assert m.price.accuracy.mean == pytest.approx((12 - 18) / 511)
    assert m.price.tokens == 3 * 511
    assert m.found == {"passkey": {256: (40, 40), 512: (40, 40)}}
    assert [len(part) for part in m.depths["passkey"][512]] == [4] * 10


def test_the_order_in_which_documents_were_read_changes_nothing(tmp_path) -> None:
    records = [
        reading(arm, d, w, [60.0 + ord(d) + w / 99] * 3)
        for arm in ("m", "base")
        for d in "abcd"
        for w in (256, 512)
    ]
    one = read_evaluation(folder_of(tmp_path / "one", *records)).models[0]
    other = read_evaluation(folder_of(tmp_path / "other", *reversed(records))).models[0]
    assert one == other


def test_a_price_beyond_the_margin_is_warned_of_and_one_below_is_not(tmp_path) -> None:
    for name, more in (("cheap", 0.02), ("dear", 0.04)):
        own = [
            reading("m", d, w, [63 * (1 + more), 192 * (1 + more), 256 * (1 + more)])
            for d in "ab"
            for w in (256, 512)
        ]
        base = [reading("base", d, 256, [63.0, 192.0, 256.0]) for d in "ab"]
        [m] = read_evaluation(folder_of(tmp_path / name, *own, *base)).models
        assert m.price.loss.mean == pytest.approx(more)
        assert ("cost 0.040 nats inside the original window, more than 0.03" in m.price.warning) is (
            name == "dear"
        )


def test_without_a_base_the_model_is_its_own_control(tmp_path) -> None:
    records = [reading("m", d, w, [63.0, 192.0, 256.0 + w]) for d in "ab" for w in (256, 512)]
    [m] = read_evaluation(folder_of(tmp_path / "e", *records, base="")).models
    assert m.price is None
    assert m.buckets[-1].excess is None
    assert "the model itself in windows of its original 256 tokens" in m.effective.rule


def test_one_document_has_no_interval() -> None:
    value = perplexity_interval([reading("m", "a", 256, [63.0, 192.0, 256.0])])
    assert value.mean == pytest.approx(math.e)
    assert math.isinf(value.high)
    assert str(value) == "+2.718 [one document]"
    assert (
        bucket_difference([reading("m", "a", 256, [1.0] * 3)], [reading("m", "b", 256, [1.0] * 3)], 0, 512)
        is None
    )


def test_the_terminal_says_what_the_page_says(tmp_path) -> None:
    own = [reading("m", d, w, [63.0, 192.0, 256.0]) for d in "ab" for w in (256, 512)]
    base = [reading("base", d, 256, [63.0, 192.0, 256.0]) for d in "ab"]
    folder = folder_of(tmp_path / "e", *own, *base, *trials(256, 40), *trials(512, 12))
    out = io.StringIO()
    Console(file=out, width=80).print(evaluation_terminal(folder))
    said = " ".join(out.getvalue().split())
    assert "m: Reads 256 tokens, no more than its original 256" in said
    assert "At 512 tokens it fails: 12 of 40 passkeys, which may be 18%, under 90%." in said
    assert "Paid inside the original window, against base: +0.000" in said
    assert "30% [18, 45]" in said


def test_a_folder_of_something_else_is_refused(tmp_path) -> None:
    (tmp_path / "run.json").write_text('{"evaluation": {"documents": {}}}')
    assert not is_evaluation(tmp_path)
    assert not is_evaluation(tmp_path / "nowhere")
    with pytest.raises(RunError, match="holds no evaluation that can be read"):
        read_evaluation(tmp_path)
    empty = folder_of(tmp_path / "e")
    with pytest.raises(RunError, match="holds no results yet; the same evaluate command goes on"):
        read_evaluation(empty)

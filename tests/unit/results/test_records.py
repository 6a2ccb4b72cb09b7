"""Records: what identifies one, what is read back, and what is refused and left unchanged."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.errors import RunError
from skipwise.method.coverage import coverage
from skipwise.results.records import (
    BenchmarkRecord,
    CostRecord,
    CoverageRecord,
    Measured,
    ReadingRecord,
    RulerRecord,
    TrainingRecord,
    TrialRecord,
    append_record,
    read_records,
    require_results,
)

TRAINING = TrainingRecord("pose", 10, 2.5, 1e-5, None, 81920, 12345.6)
READING = ReadingRecord(
    "pose", "stdlib", "a.py", "sliding", 0, 512, 128, [1, 256, 512], "float32", "ab", None, [300.5, 299.0], [9, 8], 1.5
)  # fmt: skip
TRIAL = TrialRecord("original", "passkey", 512, 0, 3, "spread", "float32", "cd", 0.9, 505, True, "12345", 0.5)
COVERAGE = CoverageRecord("2 chunks", 2048, 16384, [1, 2048], [1.0, 0.1428], [0.0, 0.0])
BENCHMARK = BenchmarkRecord(
    "pose", "boolq", "acc", 0, 256, None, "float32", "0.4.13", "ef", 4, 0.5, None, 1.0, "0110", "a5"
)  # fmt: skip
COST = CostRecord("pose", 512, 256, 2, [0.3, 0.1], 2000, 1000, "cpu", "f05")
RULER = RulerRecord("pose", "vt:hops=2", 512, 0, 3, True, "float32", "cd", 505, None, 0.5, "a b", 0.5)
EVERY_KIND = [TRAINING, READING, TRIAL, RULER, COVERAGE, BENCHMARK, replace(BENCHMARK, scores=[0.5, 0.25]), COST]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.mark.parametrize("record", [READING, TRIAL, RULER, BENCHMARK])
def test_a_request_has_the_key_of_the_record_that_answers_it(record: Measured) -> None:
    request = type(record)(**{f.name: getattr(record, f.name) for f in fields(record) if f.name not in record.ANSWER})
    assert request != record
    assert request.key == record.key
    assert len(record.key) == 16


OTHERS = {
    "arm": "full", "data": "books", "document": "b.py", "mode": "segment", "begin": 1, "window": 256, "stride": 64,
    "edges": [1, 512], "precision": "bf16", "digest": "00", "step": 3, "task": "lines", "length": 256, "seed": 1,
    "trial": 4, "real_data": False, "depths": "random", "metric": "acc_norm", "fewshot": 5, "target": 512, "limit": 3, "harness": "0.5",
}  # fmt: skip


@pytest.mark.parametrize("record", [READING, TRIAL, RULER, BENCHMARK])
def test_every_field_that_is_not_the_answer_changes_the_key(record: Measured) -> None:
    asked = {f.name for f in fields(record)} - set(record.ANSWER)
    keys = {replace(record, **{name: OTHERS[name]}).key for name in asked}
    assert len(keys | {record.key}) == 1 + len(asked)


def test_records_of_different_kinds_never_share_a_key() -> None:
    assert len({r.key for r in (READING, TRIAL, RULER, BENCHMARK)}) == 4


def test_records_come_back_equal_and_in_order(path: Path) -> None:
    assert read_records(path) == []
    append_record(path, *EVERY_KIND[:3])
    for record in EVERY_KIND[3:]:
        append_record(path, record)
    assert read_records(path) == EVERY_KIND


def test_a_line_has_kind_and_key(path: Path) -> None:
    append_record(path, READING)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["kind"], written["key"], written["window"]) == ("reading", READING.key, 512)


@settings(max_examples=25)
@given(loss=st.floats(allow_nan=False), name=st.text())
def test_any_number_and_any_name_come_back(tmp_path_factory: pytest.TempPathFactory, loss: float, name: str) -> None:
    path = tmp_path_factory.mktemp("records") / "results.jsonl"
    record = TrainingRecord(name, 1, loss, 1e-5, 0.1, 1, 1.0)
    append_record(path, record)
    assert read_records(path) == [record]


def test_a_line_torn_anywhere_costs_that_record_alone(path: Path) -> None:
    append_record(path, TRAINING, TRIAL)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert read_records(path) == [TRAINING]
        require_results(path)
        append_record(path, READING)
        assert read_records(path) == [TRAINING, READING]


@pytest.mark.parametrize("content", ["my notes", "my notes\nwithout an end", "my notes\n", '{"a": 1}\n'])
@pytest.mark.parametrize("records", [[], [TRAINING]])
def test_a_file_of_the_users_own_is_refused_and_left_unchanged(path: Path, content: str, records: list) -> None:
    append_record(path, *records)
    with open(path, "a") as file:
        file.write(content)
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"results\.jsonl"):
        require_results(path)
    if not content.endswith("\n"):
        with pytest.raises(RunError, match=r"results\.jsonl"):
            append_record(path, TRIAL)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line", ["not json", "[1, 2]", "{}", '{"kind": "unknown"}', '{"kind": "trial", "arm": "pose"}', "7"]
)
def test_a_line_that_is_no_record_is_refused_by_number(path: Path, line: str) -> None:
    append_record(path, TRAINING)
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=r"line 2"):
        read_records(path)


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (TRAINING, "step", "a"),
        (TRAINING, "loss", None),
        (READING, "nll", "abc"),
        (READING, "mode", "whole"),
        (READING, "window", True),
        (TRIAL, "hit", 1),
        (TRIAL, "depths", "even"),
        (COVERAGE, "distances", [1, "x"]),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(path: Path, record, field, value) -> None:
    append_record(path, TRAINING, record)
    first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(second), field: value})}\n", encoding="utf-8")
    with pytest.raises(RunError, match=rf"line 2.*{field}"):
        read_records(path)


def test_a_folder_for_results_is_made_and_left_empty(tmp_path: Path) -> None:
    require_results(tmp_path / "a" / "b" / "r.jsonl")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_path_that_cannot_hold_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for use in (require_results, lambda path: append_record(path, TRAINING)):
        for path in (tmp_path, tmp_path / "file" / "r.jsonl"):
            with pytest.raises(OSError, match=tmp_path.name):
                use(path)


def test_a_coverage_record_keeps_the_bends_of_the_curve() -> None:
    curve = coverage(64, 512)
    record = CoverageRecord.of(curve, "2 chunks", points=20)
    assert (record.label, record.train_length, record.target_length) == ("2 chunks", 64, 512)
    assert {63, 64, 512 - 64, 512 - 64 + 1} <= set(record.distances)
    assert record.distances[0] == 1
    assert record.distances[-1] == 511
    assert len(record.distances) <= 24
    for distance, probability in zip(record.distances, record.probability, strict=True):
        assert probability == curve.probability[distance - 1]

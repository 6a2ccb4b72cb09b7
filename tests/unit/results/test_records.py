"""Records: what identifies one, what is read back, and what is refused and left unchanged."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results.records import (
    BenchmarkRecord,
    CoverageRecord,
    Measured,
    ReadingRecord,
    RulerRecord,
    TrainingRecord,
    TrialRecord,
    append_record,
    read_records,
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
RULER = RulerRecord("pose", "vt:hops=2", 512, 0, 3, True, "float32", "cd", 505, None, 0.5, "a b", 0.5)
EVERY_KIND = [TRAINING, READING, TRIAL, RULER, COVERAGE, BENCHMARK, replace(BENCHMARK, scores=[0.5, 0.25])]


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
    "arm": "full_length", "data": "books", "document": "b.py", "mode": "segment", "begin": 1, "window": 256, "stride": 64,
    "edges": [1, 512], "precision": "bf16", "digest": "00", "step": 3, "task": "lines", "length": 256, "seed": 1,
    "trial": 4, "real_data": False, "depths": "random", "metric": "acc_norm", "fewshot": 5, "target": 512, "limit": 3, "harness": "0.5",
}  # fmt: skip


@pytest.mark.parametrize("record", [READING, TRIAL, RULER, BENCHMARK])
def test_every_field_that_is_not_the_answer_changes_the_key(record: Measured) -> None:
    asked = {f.name for f in fields(record)} - set(record.ANSWER)
    keys = {replace(record, **{name: OTHERS[name]}).key for name in asked}
    assert len(keys | {record.key}) == 1 + len(asked)


def test_records_come_back_equal_and_in_order(path: Path) -> None:
    assert read_records(path) == []
    append_record(path, *EVERY_KIND[:3])
    for record in EVERY_KIND[3:]:
        append_record(path, record)
    assert read_records(path) == EVERY_KIND


def test_a_line_torn_anywhere_costs_that_record_alone(path: Path) -> None:
    append_record(path, TRAINING, TRIAL)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole), 9):
        path.write_bytes(whole[:cut])
        assert read_records(path) == [TRAINING]
        append_record(path, READING)
        assert read_records(path) == [TRAINING, READING]


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"kind": "unknown"}', '{"kind": "training", "step": "a"}'])
def test_a_line_that_is_no_record_is_refused(path: Path, line: str) -> None:
    append_record(path, TRAINING)
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError):
        read_records(path)

"""Records: what identifies one, what comes back from the disk, and what is refused and left unchanged."""

import errno
import json
import math
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.errors import RunError
from skipwise.method.coverage import coverage
from skipwise.results import results_file as records
from skipwise.results.records import (
    SCHEMA,
    BenchmarkRecord,
    CostRecord,
    CoverageRecord,
    Measured,
    ReadingRecord,
    TrainingRecord,
    TrialRecord,
    append_record,
    drop_cut_off_record,
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
EVERY_KIND = [TRAINING, READING, TRIAL, COVERAGE, BENCHMARK, replace(BENCHMARK, scores=[0.5, 0.25, 0.5, 0.75]), COST]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.mark.parametrize("record", [READING, TRIAL, BENCHMARK])
def test_a_request_has_the_key_of_the_record_that_answers_it(record: Measured) -> None:
    request = type(record)(**{f.name: getattr(record, f.name) for f in fields(record) if f.name not in record.ANSWER})
    assert request != record
    assert request.key == record.key
    assert len(record.key) == 16


OTHERS = {
    "arm": "full", "data": "books", "document": "b.py", "mode": "segment", "begin": 1, "window": 256, "stride": 64,
    "edges": [1, 512], "precision": "bf16", "digest": "00", "step": 3, "task": "lines", "length": 256, "seed": 1,
    "trial": 4, "depths": "random", "metric": "acc_norm", "fewshot": 5, "target": 512, "limit": 3, "harness": "0.5",
}  # fmt: skip


@pytest.mark.parametrize("record", [READING, TRIAL, BENCHMARK])
def test_every_field_that_is_not_the_answer_changes_the_key(record: Measured) -> None:
    asked = {f.name for f in fields(record)} - set(record.ANSWER)
    keys = {replace(record, **{name: OTHERS[name]}).key for name in asked}
    assert len(keys | {record.key}) == 1 + len(asked)


def test_records_of_different_kinds_never_share_a_key() -> None:
    assert len({r.key for r in (READING, TRIAL, BENCHMARK)}) == 3


def test_a_stored_key_that_belongs_to_another_record_is_refused(path: Path) -> None:
    append_record(path, READING)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["key"] == READING.key
    path.write_text(json.dumps(written | {"window": 1024}) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match=rf"line 1: not a result record .*{READING.key}"):
        read_records(path)


def test_a_changed_digit_is_refused(path: Path) -> None:
    append_record(path, READING)
    text = path.read_text(encoding="utf-8")
    changed = text.replace(f'"seconds": {READING.seconds}', '"seconds": 99.5')
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    with pytest.raises(RunError, match=r"line 1: not a result record .*the check differs"):
        read_records(path)
    values = json.loads(changed)
    del values["check"]  # as the archive of the reproduction leaves it out
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert read_records(path)[0].seconds == 99.5


def test_records_come_back_equal_and_in_order(path: Path) -> None:
    for record in EVERY_KIND:
        append_record(path, record)
    assert read_records(path) == EVERY_KIND


def test_records_that_belong_together_are_appended_together(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, BENCHMARK, TRIAL)
    assert read_records(path) == [TRAINING, BENCHMARK, TRIAL]


def test_a_line_is_an_object_with_schema_and_kind(path: Path) -> None:
    append_record(path, READING)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert (written["schema"], written["kind"], written["window"]) == (SCHEMA, "reading", 512)


def test_ten_thousand_questions_take_kilobytes(path: Path) -> None:
    append_record(path, replace(BENCHMARK, samples=10_000, scores="01" * 5_000))
    assert path.stat().st_size < 10_500


@pytest.mark.parametrize(("scores", "message"), [("011", "it has 3 scores of 4 questions"), ("0120", "scores")])
def test_scores_are_a_digit_or_a_number_for_each_question(path: Path, scores: str, message: str) -> None:
    append_record(path, replace(BENCHMARK, scores=scores))
    with pytest.raises(RunError, match=rf"line 1: not a result record \(.*{message}"):
        read_records(path)


def test_a_missing_file_gives_no_records(path: Path) -> None:
    assert read_records(path) == []


@settings(max_examples=25)
@given(loss=st.floats(allow_nan=False), name=st.text())
def test_any_number_and_any_name_come_back(tmp_path_factory: pytest.TempPathFactory, loss: float, name: str) -> None:
    path = tmp_path_factory.mktemp("records") / "results.jsonl"
    record = TrainingRecord(name, 1, loss, 1e-5, 0.1, 1, 1.0)
    append_record(path, record)
    assert read_records(path) == [record]


def test_a_last_line_cut_off_anywhere_costs_that_record_alone(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, TRIAL)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.warns(UserWarning, match="cut off by a kill"):
            assert read_records(path) == [TRAINING]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", "it has no 'schema'"),
        ('{"schema": 2}', "it has no 'kind'"),
        ('{"schema": 2, "kind": "unheard-of"}', "its kind 'unheard-of' is unknown"),
        ("[1, 2]", "it has no fields"),
        ("3", "it has no fields"),
        ("{", "Expecting property name"),
    ],
)
def test_why_a_line_is_no_record_is_said_in_words(path: Path, line: str, why: str) -> None:
    path.write_text(f"{line}\n")
    with pytest.raises(RunError, match=rf"line 1: not a result record \({why}"):
        read_records(path)


def test_appending_after_a_kill_starts_a_line_of_its_own(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, TRIAL)
    path.write_bytes(path.read_bytes()[:-20])
    append_record(path, READING)
    assert read_records(path) == [TRAINING, READING]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b"{}",
        b'{"schema": 2, "kind": "unheard-of"}',
        b'{"schema": 2, "kind": "trial", "arm": "pose"}',
        b"\xff\xfe",
        b'"text"',
        b"7",
        b"[" * 100_000,
    ],
)
def test_a_broken_line_is_named(path: Path, line: bytes) -> None:
    append_record(path, TRAINING)
    with open(path, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunError, match=r"results\.jsonl, line 2: not a result record .* delete that line"):
        read_records(path)


@pytest.mark.parametrize("cut", [60, -30])
def test_a_record_of_ours_that_is_cut_is_named_before_anything_is_added(path: Path, cut: int) -> None:
    append_record(path, TRAINING, TRIAL, READING)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in (lines[0], lines[1][:cut], lines[2])))
    before = path.read_bytes()
    said = (
        r"results\.jsonl, line 2: not a result record .*; restore the file, or delete that line: .* measures it again"
    )
    for use in (require_results, drop_cut_off_record, read_records):
        with pytest.raises(RunError, match=said):
            use(path)
    assert path.read_bytes() == before


def test_an_unknown_schema_is_refused_with_the_way_out(path: Path) -> None:
    path.write_text('{"schema": 99, "kind": "training"}\n', encoding="utf-8")
    with pytest.raises(RunError, match=r"line 1: schema 99, .* reads schema 2; .* run\.json"):
        read_records(path)


def test_a_field_of_a_later_release_is_passed_over(path: Path) -> None:
    append_record(path, TRAINING)
    values = json.loads(path.read_text(encoding="utf-8")) | {"added_later": 1}
    del values["check"]
    path.write_text(json.dumps(values | {"check": records._check(values)}) + "\n", encoding="utf-8")
    assert read_records(path) == [TRAINING]


FOREIGN = [
    b"my notes",
    b"my notes\nwithout an end",
    b"my notes\n",
    b'{"schema": "https://json-schema.org"}',
    b'{"schema": 3, "kind": "training", "arm": "po',
    b'{"schema": 1, "kind": "training", "arm": "pose"}\n',
    b"\xff\xfe\n",
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_another_kind_is_refused_and_left_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (require_results, drop_cut_off_record, lambda file: append_record(file, TRAINING)):
        with pytest.raises(
            RunError, match=r"holds no results of skipwise \(schema 2\); give another --out; nothing was"
        ):
            use(path)
        assert path.read_bytes() == content


@pytest.mark.parametrize("foreign", ["a note of my own", "a note of my own\n"])
def test_foreign_text_after_records_is_left_unchanged(path: Path, foreign: str) -> None:
    append_record(path, TRAINING)
    with open(path, "a") as file:
        file.write(foreign)
    before = path.read_bytes()
    with pytest.raises(RunError, match="nothing was changed"):
        append_record(path, TRIAL)
    assert path.read_bytes() == before


def test_records_before_are_not_read_again_with_each(path: Path, monkeypatch) -> None:
    append_record(path, TRAINING)
    monkeypatch.setattr("skipwise.results.records._read", None)
    for _ in range(3):
        append_record(path, TRIAL, READING)
    monkeypatch.undo()
    assert len(read_records(path)) == 7


def test_records_longer_than_what_is_looked_at_are_continued(path: Path, monkeypatch) -> None:
    monkeypatch.setattr("skipwise.results.records._LOOKED_AT", 10)
    for _ in range(2):
        append_record(path, TRAINING, TRIAL)
    assert len(read_records(path)) == 4


def test_every_beginning_of_a_record_may_be_continued(path: Path) -> None:
    append_record(path, TRAINING)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        require_results(path)
        append_record(path, TRIAL)
        assert read_records(path) == [TRIAL]


def test_a_folder_for_results_is_made_and_left_empty(tmp_path: Path) -> None:
    require_results(tmp_path / "a" / "b" / "r.jsonl")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_paths_that_cannot_hold_results_are_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"is no file; results are one file of JSON Lines"):
        require_results(tmp_path)
    with pytest.raises(RunError, match=r"results cannot be written to .* give another --out"):
        require_results(tmp_path / "file" / "r.jsonl")
    with pytest.raises(RunError, match=r"results cannot be written to .* give another --out"):
        append_record(tmp_path / "missing" / "r.jsonl", TRAINING)
    with pytest.raises(RunError, match="is no file"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("record", "field", "value", "rule"),
    [
        (TRAINING, "step", "a", "step: Input should be a valid integer"),
        (TRAINING, "loss", None, "loss: Input should be a valid number"),
        (TRAINING, "grad_norm", "x", "grad_norm: Input should be a valid number"),
        (READING, "nll", "abc", "nll: Input should be a valid list"),
        (READING, "nll", [math.nan, 1.0], "nll.0: Input should be greater than or equal to 0"),
        (READING, "nll", [1.0], "nll and hits must have 2 buckets, not 1 and 2"),
        (READING, "hits", [1, -1], "hits.1: Input should be greater than or equal to 0"),
        (READING, "edges", [1], r"edges \[1\] must be two or more and rise"),
        (READING, "edges", [1, 512, 256], "must be two or more and rise"),
        (READING, "mode", "whole", "mode: Input should be 'sliding' or 'segment'"),
        (READING, "window", 0, "window: Input should be greater than or equal to 1"),
        (READING, "window", True, "window: Input should be a valid integer"),
        (READING, "window", 10**400, "window: "),
        (READING, "arm", None, "arm: Input should be a valid string"),
        (TRIAL, "hit", 1, "hit: Input should be a valid boolean"),
        (TRIAL, "depth", 1.5, "depth: Input should be less than or equal to 1"),
        (TRIAL, "depths", "even", "depths: Input should be 'random' or 'spread'"),
        (COVERAGE, "probability", [], r"its lists have \[0, 2\] items"),
        (COVERAGE, "distances", "x", "distances: Input should be a valid list"),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_named(path: Path, record, field, value, rule) -> None:
    append_record(path, TRAINING)
    append_record(path, record)
    first, second = path.read_text(encoding="utf-8").splitlines()
    changed = {**json.loads(second), field: value}
    path.write_text(f"{first}\n{json.dumps(changed)}\n", encoding="utf-8")
    with pytest.raises(RunError, match=rf"results\.jsonl, line 2: .*{rule}"):
        read_records(path)


def test_empty_lists_are_refused(path: Path) -> None:
    append_record(path, replace(COVERAGE, distances=[], probability=[], standard_error=[]))
    with pytest.raises(RunError, match=r"its lists have \[0\] items"):
        read_records(path)


def test_a_file_that_the_system_withholds_is_explained(path: Path, monkeypatch) -> None:
    def fail(*args):
        raise PermissionError(13, "Permission denied")

    append_record(path, TRAINING)
    with open(path, "a") as file:
        file.write('{"schema": 2, "kin')
    monkeypatch.setattr(os, "truncate", fail)
    with pytest.raises(RunError, match=r"results cannot be written to .*Permission denied"):
        append_record(path, TRAINING)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(RunError, match=r"cannot be read: .*Permission denied; change its permissions"):
        read_records(path)


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


def test_a_disk_that_is_full_is_no_reason_for_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line says that what was written is kept; in another folder it would be lost."""
    for code, kind in ((errno.ENOSPC, OSError), (errno.EACCES, RunError)):

        def refuse(file: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(kind) as caught:
            append_record(tmp_path / "results.jsonl", READING)
        assert ("give another --out" in str(caught.value)) == (code == errno.EACCES)

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.errors import RunError
from skipwise.results.records import (
    SCHEMA,
    BenchmarkRecord,
    CoverageRecord,
    PasskeyRecord,
    PerplexityRecord,
    StepRecord,
    TrainingRecord,
    append_record,
    drop_torn_record,
    read_records,
    require_results,
)

TRAINING = TrainingRecord("pose", 10, 2.5, 1e-5, None, 81920, 12345.6)
PERPLEXITY = PerplexityRecord("pose", 2048, 128, 8, 1000, 2000.0, "float32", 1.5, "stdlib, held out")
PASSKEY = PasskeyRecord("original", 512, 0, [0.0, 1.0], [505, 507], [True, False], 0.5, ["12345", "99999"])
STEP = StepRecord("pose", 10, 512, 128, 1, 10, 1.0, "x", 2.5)
COVERAGE = CoverageRecord("2 chunks", 2048, 16384, [1, 2048], [1.0, 0.1428], [0.0, 0.0])
BENCHMARK = BenchmarkRecord("pose", "boolq", "acc", 0, 256, None, 40, 0.5, None, "float32", 1.0, "0.4.13")
EVERY_KIND = [TRAINING, PERPLEXITY, PASSKEY, STEP, COVERAGE, BENCHMARK]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_records_come_back_equal_and_in_order(path: Path) -> None:
    for record in EVERY_KIND:
        append_record(path, record)
    assert read_records(path) == EVERY_KIND


def test_records_that_belong_together_are_appended_together(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, BENCHMARK, PASSKEY)
    assert read_records(path) == [TRAINING, BENCHMARK, PASSKEY]


def test_a_line_is_an_object_with_schema_and_kind(path: Path) -> None:
    append_record(path, PERPLEXITY)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert (written["schema"], written["kind"], written["window"]) == (SCHEMA, "perplexity", 2048)


def test_a_step_written_before_far_loss_was_is_read(path: Path) -> None:
    append_record(path, STEP)
    written = json.loads(path.read_text(encoding="utf-8"))
    del written["far_loss"]
    path.write_text(json.dumps(written) + "\n", encoding="utf-8")
    assert read_records(path) == [StepRecord("pose", 10, 512, 128, 1, 10, 1.0, "x", None)]


def test_no_file_gives_no_records(path: Path) -> None:
    assert read_records(path) == []


@settings(max_examples=25)
@given(loss=st.floats(allow_nan=False), name=st.text())
def test_any_number_and_any_name_survive(
    tmp_path_factory: pytest.TempPathFactory, loss: float, name: str
) -> None:
    path = tmp_path_factory.mktemp("records") / "results.jsonl"
    record = TrainingRecord(name, 1, loss, 1e-5, 0.1, 1, 1.0)
    append_record(path, record)
    assert read_records(path) == [record]


def test_every_torn_last_line_costs_that_record_only(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, PASSKEY)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.warns(UserWarning, match="cut off by a kill"):
            assert read_records(path) == [TRAINING]


def test_appending_after_a_kill_starts_a_line_of_its_own(path: Path) -> None:
    append_record(path, TRAINING)
    append_record(path, PASSKEY)
    path.write_bytes(path.read_bytes()[:-20])
    append_record(path, PERPLEXITY)
    assert read_records(path) == [TRAINING, PERPLEXITY]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b"{}",
        b'{"schema": 1, "kind": "unheard-of"}',
        b'{"schema": 1, "kind": "passkey", "arm": "pose"}',
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


def test_another_schema_names_the_way_out(path: Path) -> None:
    path.write_text('{"schema": 99, "kind": "training"}\n', encoding="utf-8")
    with pytest.raises(RunError, match=r"line 1: schema 99, this skipwise reads schema 1; .* run\.json"):
        read_records(path)


def test_a_field_of_a_later_release_is_passed_over(path: Path) -> None:
    append_record(path, TRAINING)
    path.write_text(
        path.read_text(encoding="utf-8").replace('"step"', '"added_later": 1, "step"'), encoding="utf-8"
    )
    assert read_records(path) == [TRAINING]


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    assert PERPLEXITY.perplexity == pytest.approx(math.exp(2))


def test_perplexity_too_large_for_a_float_is_infinite() -> None:
    assert PerplexityRecord("original", 1, 1, 1, 10, 8000.0, "float32", 1.0).perplexity == math.inf


def test_passkey_accuracy_is_the_share_of_hits() -> None:
    assert (PASSKEY.trials, PASSKEY.accuracy) == (2, 0.5)


FOREIGN = [
    b"my notes",
    b"my notes\nwithout an end",
    b"my notes\n",
    b'{"schema": "https://json-schema.org"}',
    b'{"schema": 1, "kind": "training"}\n',
    b'{"schema": 2, "kind": "training", "arm": "po',
    b"\xff\xfe\n",
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (require_results, drop_torn_record, lambda file: append_record(file, TRAINING)):
        with pytest.raises(RunError, match=r"holds no results of skipwise; give another --out; nothing was"):
            use(path)
        assert path.read_bytes() == content


def test_foreign_text_after_records_is_kept(path: Path) -> None:
    append_record(path, TRAINING)
    with open(path, "a") as file:
        file.write("a note of my own")
    before = path.read_bytes()
    with pytest.raises(RunError, match="nothing was changed"):
        append_record(path, PASSKEY)
    assert path.read_bytes() == before


def test_every_beginning_of_a_record_may_be_gone_on_from(path: Path) -> None:
    append_record(path, TRAINING)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        require_results(path)
        append_record(path, PASSKEY)
        assert read_records(path) == [PASSKEY]


def test_a_place_for_results_is_made_and_left_empty(tmp_path: Path) -> None:
    require_results(tmp_path / "a" / "b" / "r.jsonl")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_places_that_cannot_hold_results_are_explained(tmp_path: Path) -> None:
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
        (TRAINING, "step", "a", "a whole number from 0"),
        (TRAINING, "loss", None, "a number"),
        (TRAINING, "grad_norm", "x", "a number or null"),
        (PERPLEXITY, "nll", "abc", "a number from 0"),
        (PERPLEXITY, "nll", math.nan, "a number from 0"),
        (PERPLEXITY, "tokens", 0, "a whole number from 1"),
        (PERPLEXITY, "window", "x", "a whole number from 1"),
        (PERPLEXITY, "window", True, "a whole number from 1"),
        (PERPLEXITY, "window", 10**400, "a whole number from 1"),
        (PERPLEXITY, "arm", None, "text"),
        (PASSKEY, "hits", [], "lists of one length"),
        (PASSKEY, "hits", [True], "lists of one length"),
        (PASSKEY, "hits", "abc", "a list, each true or false"),
        (PASSKEY, "hits", [1, 0], "a list, each true or false"),
        (PASSKEY, "depths", [0.5, 1.5], "a list, each a number from 0 to 1"),
        (COVERAGE, "probability", [], "lists of one length"),
        (COVERAGE, "distances", "x", "a list, each a whole number from 1"),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_named(path: Path, record, field, value, rule) -> None:
    append_record(path, TRAINING)
    append_record(path, record)
    first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(second), field: value})}\n", encoding="utf-8")
    with pytest.raises(RunError, match=rf"results\.jsonl, line 2: .*{field}.* must be {rule}"):
        read_records(path)


def test_a_file_that_the_system_withholds_is_explained(tmp_path, monkeypatch) -> None:
    def fail(*args):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "results.jsonl"
    append_record(path, TrainingRecord("pose", 10, 2.5, 1e-5, None, 81920, 12345.6))
    with open(path, "a") as file:
        file.write('{"schema": 1, "kin')
    monkeypatch.setattr(os, "truncate", fail)
    with pytest.raises(RunError, match=r"results cannot be written to .*Permission denied"):
        append_record(path, TrainingRecord("pose", 11, 2.5, 1e-5, None, 81920, 12345.6))
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(RunError, match=r"cannot be read: .*Permission denied; mend its permissions"):
        read_records(path)


def test_empty_lists_are_named(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(
        json.dumps(
            {
                "schema": 1,
                "kind": "coverage",
                "label": "x",
                "train_length": 1,
                "target_length": 2,
                "distances": [],
                "probability": [],
                "standard_error": [],
            }
        )
        + "\n"
    )
    with pytest.raises(RunError, match="must be lists of one length"):
        read_records(path)

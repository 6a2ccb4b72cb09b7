import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.errors import RunError
from skipwise.results import (
    SCHEMA,
    CoverageRecord,
    PasskeyRecord,
    PerplexityRecord,
    TrainingRecord,
    append_record,
    read_records,
)

TRAINING = TrainingRecord("pose", 10, 2.5, 1e-5, None, 81920, 12345.6)
PERPLEXITY = PerplexityRecord("pose", 2048, 128, 8, 1000, 2000.0, "float32", 1.5, "stdlib, held out")
PASSKEY = PasskeyRecord("original", 512, 0, [0.0, 1.0], [505, 507], [True, False], 0.5, ["12345", "99999"])
COVERAGE = CoverageRecord("2 chunks", 2048, 16384, [1, 2048], [1.0, 0.1428], [0.0, 0.0])
EVERY_KIND = [TRAINING, PERPLEXITY, PASSKEY, COVERAGE]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_records_come_back_equal_and_in_order(path: Path) -> None:
    for record in EVERY_KIND:
        append_record(path, record)
    assert read_records(path) == EVERY_KIND


def test_a_line_is_an_object_with_schema_and_kind(path: Path) -> None:
    append_record(path, PERPLEXITY)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert (written["schema"], written["kind"], written["window"]) == (SCHEMA, "perplexity", 2048)


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

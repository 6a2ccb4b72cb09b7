"""An evaluation that goes on: what a kill cut off is said with its file, and measured again."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from skipwise.errors import RunError
from skipwise.evaluation.evaluate import _other_batches, evaluate, merge
from skipwise.evaluation.models import EvaluatedModel, find_models
from skipwise.evaluation.specification import Specification
from skipwise.results.records import read_records
from skipwise.results.run_folder import RunFolder
from tests.tiny import checkpoint


def test_a_record_that_a_kill_cut_off_is_said_and_measured_again(tmp_path) -> None:
    models = find_models([str(checkpoint(tmp_path / "m", window=512))], base="")
    asked = Specification(documents=0, windows=(512,), stride=256, tasks=("passkey",), prompt_lengths=(420,), trials=2)
    console = Console(file=io.StringIO())
    results = evaluate(models, asked, out=tmp_path / "e", console=console).results
    whole = {record.key for record in read_records(results)}
    results.write_bytes(results.read_bytes()[:-30])
    evaluate(models, asked, out=tmp_path / "e", console=console)
    assert f"{results}: the last record was cut off by a kill; it is measured again" in console.file.getvalue()
    assert {record.key for record in read_records(results)} == whole


def test_a_base_of_models_with_long_windows_reads_the_text_of_other_kinds_once(tmp_path) -> None:
    base, console = str(checkpoint(tmp_path / "base", window=64)), Console(file=io.StringIO())
    ours = [EvaluatedModel(str(n), base, original=n, target=2 * n, base="b") for n in (2048, 4096)]
    control = EvaluatedModel("b", base, original=64, target=64, control=True)
    batches = _other_batches(control, [*ours, control], Specification(windows=(64,), stride=32), [], console)
    keys = [request.key for batch in batches for request in batch.requests]
    assert len(keys) == len(set(keys)) == 24


def test_merge_names_the_models_that_differ(tmp_path) -> None:
    def begun(name: str, *models: dict) -> Path:
        path = tmp_path / name
        RunFolder(path).begin(evaluation={"models": list(models)}, fingerprints={}, records=1)
        return path

    base, changed, other = ({"label": label, "name": label, "original": 8, "target": 8, "weights": weights}
                            for label, weights in (("m", "a" * 64), ("m", "b" * 64), ("n", "a" * 64)))  # fmt: skip
    first, edited, more = begun("first", base), begun("edited", changed), begun("more", base, other)
    with pytest.raises(RunError, match=r"more and .*first differ in models \(m, n; m\); only shards of the same"):
        merge([first, more], tmp_path / "out")
    with pytest.raises(RunError, match=r"differ in m: weights \('b{64}', 'a{64}'\); only shards of the same"):
        merge([first, edited], tmp_path / "out")

"""An evaluation that goes on: what a kill cut off is said with its file, and measured again."""

import io

from rich.console import Console

from skipwise.evaluation.evaluate import evaluate
from skipwise.evaluation.models import find_models
from skipwise.evaluation.specification import Specification
from skipwise.results.results_file import read_records
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

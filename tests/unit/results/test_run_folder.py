"""The run folder: what cannot be written or read is explained."""

import pytest

from skipwise.errors import RunError
from skipwise.results.run_folder import RunFolder


def test_a_folder_that_cannot_be_written_is_explained(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written: .*; give another --out"):
        RunFolder(tmp_path / "file" / "run").begin(seed=0)


@pytest.mark.parametrize("text", ["{bad", "[1]", "[" * 100_000])
def test_damaged_facts_are_explained(tmp_path, text) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json is damaged \(.*; delete it to go on"):
        RunFolder(tmp_path).read()

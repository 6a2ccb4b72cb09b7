"""The text that a base writes: enough for every window of the run."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console

from skipwise.results.run_folder import RunFolder
from skipwise.training.run import _written
from tests.unit.training.test_prepare import prepared


class _Writer:
    """Stands in for a teacher, whose text does not matter here."""

    vocabulary = 257

    def write(self, starts: np.ndarray, length: int, seed: int, on_tokens: Callable[[int], object]) -> np.ndarray:
        return np.pad(starts, ((0, 0), (0, length - starts.shape[1])))


@pytest.mark.parametrize(("scheme", "window"), [("pose", 64), ("full", 512)])
def test_the_base_writes_enough_for_a_window_of_every_scheme(tmp_path, scheme: str, window: int) -> None:
    """A window of full-length training is longer than the train length, and no window holds a written text twice."""
    teacher = {"weight": 0.0, "written": 1.0, "written_weight": 1.0}
    changes = {"positions.scheme": scheme, "teacher": teacher, "training.max_steps": 1, "training.batch_size": 1}
    made, run = prepared(tmp_path, **changes), RunFolder(tmp_path / "run")
    run.path.mkdir()
    texts = _written(made, _Writer(), run, Console(file=io.StringIO()))
    assert made.dataset(texts)[0]["input_ids"].shape == (window,)

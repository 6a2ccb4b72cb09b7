"""Checkpoints that several tests read."""

from pathlib import Path

import pytest

from tests.engines.cells import TESTED
from tests.engines.matrix import Matrix
from tests.engines.reading import READERS, python_of


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """The environments are there."""
    lost = [
        reader for reader, (_, environment) in READERS.items() if environment and not Path(python_of(reader)).exists()
    ]
    assert not lost, f"no environment for {', '.join(lost)}; make test-engines makes them"


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"), TESTED)

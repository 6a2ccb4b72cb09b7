"""Settings of the whole suite."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure: no example has a deadline, and the same examples are drawn each time.
settings.register_profile("skipwise", deadline=None, derandomize=True)
settings.load_profile("skipwise")


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests write out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKIPWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def frozen_imports() -> Iterator[None]:
    """Accelerate collects garbage at each start of training; spare it the modules: four times faster."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawing of figures, which takes seconds, out where they are not what is tested."""
    monkeypatch.setattr("skipwise.report.page.draw_figures", lambda *_: [])

"""The search on losses of a known form, and the time that it may take."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skipwise.errors import RunError
from skipwise.fit.result import Candidate, Fit
from skipwise.fit.score import Score, Windows
from skipwise.fit.search import _affordable, _search
from skipwise.method.interpolation import Rope, RopeSettings, pair_of
from skipwise.model.extension import Extension

ROPE = Rope(10_000.0, 64, 256)
WINDOWS = Windows(256, 4096, [np.arange(512)] * 2, np.zeros((1, 256), dtype=np.int64), [])


def valley(extension: Extension, best: tuple[float, float, float]) -> float:
    """A loss whose lowest place is at pair ``best[0]``, power ``best[1]`` and k ``best[2]``."""
    if extension.interpolation != "power":
        return {"yarn": 3.2, "theta": 4.0, "ntk": 3.5}.get(extension.interpolation, 9.0)
    given = extension.settings
    pair, power = pair_of(ROPE, given.beta_slow or 0.6), given.power or 2.0
    k = ((given.attention_factor or 1 + 0.07 * math.log(16)) - 1) / math.log(16)
    x = ((pair - best[0]) / 6, math.log(power / best[1]) / 1.2, (k - best[2]) / 0.06)
    return 3.0 + 0.2 * (x[0] ** 2 + x[1] ** 2 + 0.5 * x[0] * x[1] + x[2] ** 2)


def searched(best: tuple[float, float, float], target: int = 4096, dense: int = 512) -> Fit:
    template = Extension(ROPE, target, "none")
    found = Fit("model", "", "", "", 256, target, seed=0, documents=2, dense=dense, base={})

    def measure(role: str, extension: Extension) -> float:
        known = next((one for one in found.candidates if one.extension == extension), None)
        if known is None:
            loss = valley(extension, best)
            known = Candidate(role, extension, Score({}, places=dict.fromkeys(found.edges[1:], loss)))
            found.candidates.append(known)
        return found.total(known)

    _search(template, measure, found, seconds=1e9)
    return found


@settings(max_examples=10)
@given(st.tuples(st.floats(10, 18), st.floats(1.0, 5.0), st.floats(0.03, 0.11)))
def test_the_search_finds_what_a_grid_of_sixty_finds(best: tuple[float, float, float]) -> None:
    found = searched(best)
    grid = itertools.product((9, 11, 13, 15, 17), (1.0, 2.0, 3.0, 5.0), (0.04, 0.07, 0.1))
    slow = [(256 / (2 * math.pi * 10_000 ** (2 * c / 64)), p, 1 + k * math.log(16)) for c, p, k in grid]
    losses = [
        valley(
            replace(Extension(ROPE, 4096, "power"), settings=RopeSettings(beta_slow=s, power=p, attention_factor=a)),
            best,
        )
        for s, p, a in slow
    ]
    assert found.total(found.best) <= min(losses) + 0.01
    assert sum(one.role == "fitted" for one in found.candidates) <= 20
    published = ["YaRN as published", "power, no search", "NTK", "linear", "none"]
    assert [one.role for one in found.candidates[:5]] == published


@pytest.mark.parametrize(("dense", "searches"), [(4096, False), (8192, True)])
def test_a_large_factor_is_searched_in_windows_of_the_target_alone(dense: int, searches: bool) -> None:
    found = searched((13, 2.0, 0.07), target=8192, dense=dense)
    assert any(one.role == "fitted" for one in found.candidates) is searches


def test_less_is_read_where_the_time_is_short() -> None:
    long = replace(WINDOWS, original=4096, target=65536, documents=[np.arange(65536), np.arange(16384)])

    def quadratic(some: Windows) -> float:
        return len(some.documents) * (some.dense / 4096) ** 2

    read = [_affordable(long, quadratic, 12 * each) for each in (32, 16, 8, 4, 2.5, 1.6, 1.0)]
    assert [(len(one.documents), one.dense) for one in read] == [
        (2, 16384), (1, 16384), (2, 8192), (1, 8192), (1, 6144), (1, 5120), (1, 5120)
    ]  # fmt: skip
    assert _affordable(long, quadratic, 29 * 256).dense == 65536  # the target, where all candidates can read it
    assert _affordable(long, quadratic, 28 * 256).dense == 16384
    with pytest.raises(RunError):
        _affordable(long, quadratic, 1.0)

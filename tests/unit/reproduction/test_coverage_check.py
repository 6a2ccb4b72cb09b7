"""Closed forms agree with Monte Carlo, and a wrong one is found out."""

import dataclasses

import numpy as np
import pytest

from reproduction import coverage_check
from reproduction.coverage_check import CLOSED, agreements, check_closed_form, coverage_section, evenness
from skipwise.method.coverage import coverage
from skipwise.method.positions import ChunkRules


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    monkeypatch.setattr(coverage_check, "_SAMPLES", 20_000)


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_every_closed_form_agrees(name: str) -> None:
    check = check_closed_form(32, 256, CLOSED[name])
    assert check.errors < 4
    assert agreements({name: check})[0].holds is True


@pytest.mark.parametrize("shift", [0.02, -0.02])
def test_a_wrong_closed_form_is_found_out(shift, monkeypatch) -> None:
    true = coverage_check.closed_form

    def wrong(*args, **kwargs):
        curve = true(*args, **kwargs)
        return dataclasses.replace(curve, probability=np.clip(curve.probability + shift, 0, 1))

    monkeypatch.setattr(coverage_check, "closed_form", wrong)
    check = check_closed_form(32, 256, ChunkRules())
    assert check.errors > 4
    assert agreements({"x": check})[0].holds is False


def test_a_distance_that_cannot_occur_must_not(monkeypatch) -> None:
    true = coverage_check.closed_form

    def never(*args, **kwargs):
        curve = true(*args, **kwargs)
        curve.probability[100] = 0.0
        return curve

    monkeypatch.setattr(coverage_check, "closed_form", never)
    check = check_closed_form(32, 256, ChunkRules())
    assert check.errors == float("inf")
    assert check.distance == 101


def test_evenness_is_of_end_anchored_skips_alone() -> None:
    assert evenness(coverage(32, 256, ChunkRules(skips="end_anchored"))).holds is True
    assert evenness(coverage(32, 256)).holds is False


def test_the_exhibit_shows_both_sizes_and_draws_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(coverage_check, "SIZES", ((64, 256), (64, 512)))
    text, found = coverage_section(tmp_path / "figures")
    assert len(found) == 8
    assert text.count("closed form within 4 standard errors") == 6
    assert "| RandPos |" in text
    assert "![coverage, 64 to 256](figures/coverage-256.svg)" in text
    assert (tmp_path / "figures" / "coverage-256.svg").read_text().startswith("<svg")

"""Depths, the planned request, and the verdict on an answer."""

from pathlib import Path

import pytest

from skipwise.data.corpus import Document
from skipwise.engines import compare as module
from skipwise.engines.compare import TOLERANCE, Comparison, _differences, compare, depths_of, plan_request
from skipwise.engines.request import Engine, Request
from skipwise.errors import EngineError
from tests.tiny import byte_tokenizer

ENGINE = Engine("vllm", "python", "1.0")


class Answering(Engine):
    """An engine with one answer; none: it fails."""

    told: dict | None = None

    def answer(self, request: Request) -> dict:
        if self.told is None:
            raise EngineError("it cannot")
        return self.told


def answering(told: dict | None) -> Answering:
    engine = Answering("vllm", "python", "1.0")
    object.__setattr__(engine, "told", told)
    return engine


@pytest.mark.parametrize(
    ("original", "target", "depths"),
    [
        (256, 2048, [128, 1152, 2047]),  # inside, in the middle of what is beyond, at the end
        (256, 256, [128, 192, 255]),  # not extended
        (64, 65, [32, 64, 64]),
    ],
)
def test_depths(original: int, target: int, depths: list[int]) -> None:
    assert depths_of(original, target) == depths


def test_a_request_asks_eight_places_up_to_each_depth_of_the_standard_library() -> None:
    tokenizer = byte_tokenizer()
    request = plan_request("DIR", tokenizer, 256, 2048)
    assert request.model == "DIR"
    assert request.max_length == 2048
    assert len(request.ids) == 2047
    assert request.ids == tokenizer(tokenizer.decode(request.ids)).input_ids[:2047]
    assert request.places == [*range(121, 129), *range(1145, 1153), *range(2040, 2048)]
    assert request.greedy_from + request.greedy == 2047
    assert plan_request("DIR", tokenizer, 256, 2048) == request


def test_a_text_too_short_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def read(self, begin: object) -> list:
            return [(Document("short", "x" * 5000), (0, 1))]

    monkeypatch.setattr(module, "open_corpus", lambda data: Short())
    with pytest.raises(EngineError, match=r"tokens, and 8,191 are to be read; lower --length"):
        plan_request("DIR", byte_tokenizer(), 2048, 8192)


def test_a_token_that_is_not_told_counts_as_likely_as_the_least_that_is() -> None:
    ours = [(7, -1.0), (8, -2.0), (9, -6.0)]
    theirs = [(8, -2.5), (7, -1.0), (3, -4.0)]
    assert list(_differences(ours, theirs)) == [0.0, 0.5, 2.0]


def places(*values: float) -> list[list[tuple[int, float]]]:
    """One token told at each of 24 places, with a log-probability for each depth."""
    return [[(5, value)] for value in values for _ in range(8)]


REQUEST = Request("DIR", [1] * 2047, [*range(121, 129), *range(1145, 1153), *range(2040, 2048)], 2031, 2048)


def test_differences_by_depth() -> None:
    theirs = places(-1.0, -1.25, -1.5)
    theirs[8] = [(5, -2.0)]
    ours = {"places": places(-1.0, -1.0, -1.0), "greedy": [1, 2]}
    made = compare(ours, answering({"places": theirs, "greedy": [1, 3]}), REQUEST, TOLERANCE)
    assert made.depths == {128: (0.0, 0.0), 1152: (1.0, (7 * 0.25 + 1.0) / 8), 2047: (0.5, 0.5)}
    assert not made.same_greedy
    assert not made.agrees


def test_an_engine_that_fails_agrees_with_nothing() -> None:
    made = compare({"places": places(0.0, 0.0, 0.0), "greedy": []}, answering(None), REQUEST, TOLERANCE)
    assert made.problem == "it cannot"
    assert not made.agrees


@pytest.mark.parametrize(("mean", "agrees"), [(TOLERANCE, True), (TOLERANCE * 1.001, False), (float("nan"), False)])
def test_agreement_ends_at_the_bound_of_the_mean_of_any_depth(mean: float, agrees: bool) -> None:
    made = Comparison(ENGINE, {128: (0.0, 0.0), 1152: (1.0, mean), 2047: (0.0, 0.0)}, True, TOLERANCE)
    assert made.agrees is agrees


def test_other_greedy_tokens_alone_are_no_disagreement() -> None:
    """Two tokens may be equally likely but for rounding."""
    assert Comparison(ENGINE, {128: (0.0, 0.0)}, False, TOLERANCE).agrees


def test_the_scripts_import_nothing_of_skipwise() -> None:
    scripts = sorted(Path(module.__file__).parent.glob("read_with_*.py"))
    assert len(scripts) == 3
    for script in scripts:
        assert "skipwise" not in script.read_text().split('"""', 2)[2].lower()

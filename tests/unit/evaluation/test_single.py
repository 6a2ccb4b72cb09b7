"""Perplexity and retrieval as commands of their own: how to read, by name or number, and what is refused before any work."""

import io

import pytest
from rich.console import Console

from skipwise.errors import RecipeError, RunError
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.single import (
    PAPER_SETTINGS,
    PerplexitySettings,
    measure_perplexity,
    measure_retrieval,
    perplexity_settings,
)
from skipwise.evaluation.specification import Specification
from skipwise.recipes.schema import Data
from skipwise.results.run_folder import RunFolder
from skipwise.results.statistics import difference, loss
from tests.tiny import checkpoint, corpus

MODEL = EvaluatedModel("m", "nowhere", 256, 2048)
QUIET = Console(file=io.StringIO(), width=500)


def how(settings: str | None = None, model: EvaluatedModel = MODEL, **changes) -> PerplexitySettings:
    given = dict.fromkeys(("mode", "stride", "documents", "tokens_per_document")) | {"windows": []}
    given |= {"precision": "float32", "text": Data(source="x")} | changes
    return perplexity_settings(settings, model, **given)


def test_the_records_of_an_evaluation_take_no_others(tmp_path) -> None:
    """Its page would show them as its own: they have the names of its models."""
    (folder := RunFolder(tmp_path / "e")).path.mkdir()
    folder.record(evaluation={})
    (tmp_path / "link").symlink_to(folder.results)
    for out in (folder.results, tmp_path / "link"):
        with pytest.raises(RunError, match=r"holds the records of a run or an evaluation, .* another --out"):
            measure_perplexity(MODEL, how(), out, QUIET)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": 0}, "documents 0 must be at least 1"),
        ({"stride": 1000, "windows": [32]}, "stride 1000 .*window"),
        ({"mode": "slide"}, r"mode 'slide' is unknown \(did you mean sliding\?\)"),
        ({"mode": "truncated", "stride": 8}, "--stride belongs to sliding windows"),
        ({"mode": "by-position", "tokens_per_document": 8}, "--tokens-per-document belongs to sliding"),
        ({"mode": "truncated", "windows": [1, 8]}, "window 1 must be at least 2 tokens"),
        ({"settings": "papr"}, r"settings 'papr' is unknown \(did you mean paper\?\)"),
    ],
)
def test_settings_that_break_their_rule_are_refused(given, message) -> None:
    with pytest.raises(RecipeError, match=message):
        how(given.pop("settings", None), **given)


def test_the_default_is_the_models_own_lengths_and_whole_documents() -> None:
    rule = how().specification
    assert (how().mode, rule.windows, rule.documents) == ("sliding", (256, 512, 1024, 2048), 8)
    assert rule.stride is None
    assert rule.tokens_per_document is None
    assert rule.windows_per_document is None
    assert how(tokens_per_document=4096).specification.tokens_per_document == 4096
    assert how(mode="truncated").specification.windows_per_document == 1


def test_the_papers_settings_have_names_and_can_be_changed() -> None:
    paper = how("paper").specification
    assert (how("paper").mode, paper.windows) == ("sliding", (2048, 4096, 8192, 16384, 32768))
    assert (paper.stride, paper.documents) == (1024, 50)
    assert how("paper-far").specification.stride == 16384
    truncated = how("paper-truncated")
    assert (truncated.mode, truncated.specification.windows) == ("truncated", tuple(1024 * n for n in range(1, 17)))
    assert how("paper", documents=3).specification.documents == 3
    assert how("paper", mode="truncated").specification.stride is None
    assert all(windows == tuple(sorted(windows)) for _, windows, _, _ in PAPER_SETTINGS.values())


def test_a_foreign_out_file_is_refused_before_a_model_is_sought(tmp_path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    asked = Specification(tasks=("passkey",), prompt_lengths=(400,), trials=1)
    with pytest.raises(RunError, match=r"notes\.md"):
        measure_retrieval(MODEL, asked, notes, QUIET)
    with pytest.raises(RunError, match=r"notes\.md"):
        measure_perplexity(MODEL, how(), notes, QUIET)
    assert notes.read_text() == "mine"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    corpus(folder / "text", documents=3, words=80)
    return checkpoint(folder / "model", window=64), Data(source=str(folder / "text"), cache=str(folder / "cache"))


def test_each_mode_reads_as_much_as_it_says(files) -> None:
    name, text = files
    model = EvaluatedModel("m", str(name), 64, 256)
    readings, ends = measure_perplexity(model, how(model=model, text=text), None, QUIET)
    assert ends == [64, 128, 256]
    assert {r.window for r in readings} == {64, 128, 256}
    by_name = {r.document: r.tokens + 1 for r in readings}
    assert len(set(by_name.values())) == 3  # whole documents, of three lengths
    assert min(by_name.values()) > 256

    readings, _ = measure_perplexity(model, how(model=model, text=text, mode="truncated"), None, QUIET)
    assert {(r.window, r.tokens) for r in readings} == {(256, 255)}  # one pass over the first tokens
    first = loss(readings, 0, 128).mean

    readings, _ = measure_perplexity(model, how(model=model, text=text, mode="by-position"), None, QUIET)
    assert {(r.window, r.tokens) for r in readings} == {(64, 255), (256, 255)}
    whole, short = ([r for r in readings if r.window == window] for window in (256, 64))
    assert loss(whole, 0, 128).mean == pytest.approx(first)
    assert difference(short, whole, 0, 64).mean == pytest.approx(0, abs=1e-5)
    assert difference(short, whole, 64, 256).mean != 0


@pytest.mark.parametrize(("length", "warned"), [(400, False), (420, True)])
def test_a_length_beyond_the_models_own_is_warned_of(files, length, warned) -> None:
    name, text = files
    model = EvaluatedModel("m", str(name), 64, 400)
    asked = Specification(tasks=("passkey",), prompt_lengths=(length,), trials=1)
    consoles = [Console(file=io.StringIO(), width=500) for _ in range(2)]
    measure_perplexity(model, how(model=model, text=text, windows=[64, length], documents=1), None, consoles[0])
    measure_retrieval(model, asked, None, consoles[1])
    for console in consoles:
        assert ("m was made for 400 tokens and is expected to fail beyond" in console.file.getvalue()) is warned

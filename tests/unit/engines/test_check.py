"""``skipwise check``: requests, engines in separate processes, verdicts."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from skipwise.engines import check as module
from skipwise.engines.check import (
    TOLERANCE,
    Comparison,
    Engine,
    Request,
    compare,
    find_engines,
    lengths_of,
    model_folder,
    plan_request,
)
from skipwise.errors import EngineError, ModelError, RecipeError
from skipwise.model.config import Origin
from skipwise.recipes.schema import Data
from tests.command_line import run
from tests.tiny import byte_tokenizer, checkpoint

PLACES = [*range(121, 129), *range(1145, 1153), *range(2040, 2048)]
REQUEST = Request("DIR", [1] * 2047, PLACES, 2048)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("tiny") / "demo", window=128)


def scripted(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, name: str = "vllm") -> Engine:
    """An engine with this script, run by this Python."""
    monkeypatch.setattr(module, "READER", folder / "script.py")
    module.READER.write_text("import json, os, sys\n" + script)
    return Engine(name, sys.executable, "1.0")


@pytest.mark.parametrize(
    ("original", "target", "depths"), [(256, 2048, [128, 1152, 2047]), (256, 256, [128, 192, 255])]
)
def test_a_request_has_eight_places_at_each_depth(original: int, target: int, depths: list[int]) -> None:
    tokenizer = byte_tokenizer()
    request = plan_request("DIR", tokenizer, original, target)
    assert request.places == [place for depth in depths for place in range(depth - 7, depth + 1)]
    assert request.ids == tokenizer(tokenizer.decode(request.ids)).input_ids[: target - 1]
    assert request.tokens == [tokenizer(text).input_ids for text in request.texts]


@pytest.mark.parametrize(
    "script", ["raise ValueError('1 error\\n  of type strange')", "import signal; os.kill(os.getpid(), signal.SIGABRT)"]
)
def test_an_engine_that_fails_is_an_error(script: str, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(EngineError):
        scripted(monkeypatch, tmp_path, script + "\n").answer(REQUEST)
    with pytest.raises(EngineError):
        find_engines([], ["/bin/false"])


def test_engines_are_found_in_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    ours = Engine("transformers", sys.executable, transformers.__version__)
    assert ours in find_engines()
    installed = {sys.executable: {"transformers": "5.24.0"}, "other": {"transformers": "4.57.6", "vllm": "0.32.0"}}
    monkeypatch.setattr(module, "_versions", installed.__getitem__)
    theirs = [Engine("transformers", "other", "4.57.6"), Engine("vllm", "other", "0.32.0")]
    assert find_engines([], ["other"])[1:] == theirs
    assert find_engines(["vllm"], ["other"]) == theirs[1:]
    for name, error in (("vllm", EngineError), ("vlm", RecipeError)):
        with pytest.raises(error):
            find_engines([name])


def test_an_adapter_and_code_of_the_hub_are_refused(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_implementation": "someone/kernel"}))
    with pytest.raises(ModelError):
        model_folder(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"skipwise_base": "base"}))
    with pytest.raises(ModelError):
        model_folder(str(tmp_path))
    shutil.copytree(model, tmp_path / "run" / "model")
    assert model_folder(str(tmp_path / "run")) == str(tmp_path / "run" / "model")


def test_no_more_than_length_and_the_target_is_read(model: Path) -> None:
    assert lengths_of(str(model), None) == lengths_of(str(model), 4096) == (128, 128)
    assert lengths_of(str(model), 96) == (96, 96)


def compared(answer: dict, request: Request = REQUEST) -> Comparison:
    engine, ours = SimpleNamespace(answer=lambda request: answer), {"places": places(-1.0, -1.0, -1.0)}
    return compare(ours, engine, request, TOLERANCE)


def places(*values: float) -> list[list[tuple[int, float]]]:
    """One token at each of 24 places, with a log-probability for each depth."""
    return [[(5, value)] for value in values for _ in range(8)]


def test_differences_by_depth() -> None:
    theirs = places(-1.0, -1.25, -1.5)
    theirs[8] = [(5, -2.0)]
    made = compared({"places": theirs})
    assert made.depths == {128: (0.0, 0.0), 1152: (1.0, (7 * 0.25 + 1.0) / 8), 2047: (0.5, 0.5)}
    assert not made.agrees
    for value, agrees in ((TOLERANCE, True), (float("nan"), False)):
        assert compared({"places": places(-1.0, -1.0, -1.0 - 0.999 * value)}).agrees is agrees


def test_other_tokens_on_prose_and_code_are_a_problem_and_on_the_hard_text_none() -> None:
    request = Request("DIR", [1] * 2047, PLACES, 2048, ("a", "b", "c"), [[1, 2], [3], [4, 5]])
    same = places(-1.0, -1.0, -1.0)
    assert compared({"places": same, "tokens": [[1, 2], [3], [4, 6]]}, request).agrees
    assert not compared({"places": same, "tokens": [[1, 2, 2], [3], [4, 5]]}, request).agrees


@pytest.mark.parametrize("far", [0.0, 0.5, "vllm 1.0 cannot read it"])
def test_the_command_ends_with_status_1_if_an_engine_differs(
    far: float | str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def answer(self: Engine, request: Request) -> dict:
        if self.name == "vllm" and isinstance(far, str):
            raise EngineError(far)
        by = 0.0 if self.name == "transformers" else far
        return {"places": [[(token, -1.0 - token - by) for token in range(20)] for _ in request.places]}

    monkeypatch.setattr(module, "_versions", lambda python: dict.fromkeys(("transformers", "vllm"), "1.0"))
    monkeypatch.setattr(Engine, "answer", answer)
    status = 0
    try:
        run(monkeypatch, "check", model, "--engine", "vllm", "--length", "96")
    except SystemExit as end:
        status = end.code
    assert status == (far != 0.0)
    assert (far if isinstance(far, str) else " 95 tokens") in capsys.readouterr().out
    with pytest.raises(EngineError):  # transformers alone is nothing to compare
        module.check(str(model), find_engines(["transformers"]), None)


@pytest.mark.parametrize(("on_base", "agrees"), [(1.9e-3, True), (1e-3, False), (1.0, False)])
def test_an_engine_may_differ_as_much_as_on_the_base(model: Path, tmp_path: Path, monkeypatch, on_base, agrees) -> None:
    """By 2e-3 nats here, ten times the limit; but not on the ground of a base that it reads wrongly, if 2e-2 are found."""
    extended = checkpoint(tmp_path / "extended", window=512)
    Origin(str(model), 128, Data(source="none"), target_length=512).write(extended)
    differs = {str(extended): 2e-2 if on_base == 1.0 else 2e-3, str(model): on_base}

    def answer(engine: Engine, request: Request) -> dict:
        shift = 0.0 if engine.version == "here" else differs[request.model]
        return {"places": [[(token, -1.0 - shift) for token in range(20)] for _ in request.places]}

    ours, theirs = Engine("transformers", "", "here"), Engine("vllm", "", "there")
    monkeypatch.setattr(Engine, "answer", answer)
    monkeypatch.setattr(module, "engine_here", lambda name: ours)
    [comparison] = module.check(str(extended), [ours, theirs], Console(quiet=True))
    assert comparison.agrees is agrees

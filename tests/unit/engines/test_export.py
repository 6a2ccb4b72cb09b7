"""``skipwise export`` without the packages of llama.cpp: additions to its converter, and the steps of an export."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from skipwise.engines import check, export
from skipwise.engines.check import GGUF_TOLERANCES, Engine, Request
from skipwise.engines.export import TYPES, _plain_rope, convert_gguf, write_gguf
from skipwise.errors import EngineError, RecipeError, RunError
from skipwise.method.interpolation import Rope, RopeSettings, rope_parameters
from skipwise.model import convert
from tests import tiny
from tests.command_line import run

CONSOLE = Console(quiet=True)
ROPE = Rope(10_000.0, 8, 256)


def settings(name: str, given: RopeSettings | None = None, **more: object) -> dict[str, Any]:
    rope = {**more, **rope_parameters(name, ROPE, 8.0, given or RopeSettings())}
    return {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "rope_parameters": rope}


@pytest.mark.parametrize("name", ["linear", "yarn", "theta"])
def test_other_ropes_are_not_changed(name: str) -> None:
    given = RopeSettings(rope_theta=1e5) if name == "theta" else None
    config = settings(name, given)
    assert _plain_rope(config) == (None, 1.0)
    assert config == settings(name, given)


def test_revised_yarn_becomes_factors_by_frequency() -> None:
    config = settings("yarn-revised", partial_rotary_factor=0.5)
    written = dict(config["rope_parameters"])
    config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": {}}
    config["rope_scaling"] = dict(written)
    factors, attention = _plain_rope(config)
    assert factors == written["long_factor"]
    assert (factors[0], factors[-1], attention) == (1.0, 8.0, written["attention_factor"])
    assert config["rope_parameters"]["full_attention"] == {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
    }
    assert "rope_scaling" not in config  # the converter would read it


@pytest.mark.parametrize(("family", "changed"), [("qwen2", {}), ("llama", {"short_factor": [2.0] * 4})])
def test_factors_that_llama_cpp_does_not_read_are_refused(family: str, changed: dict) -> None:
    config = settings("yarn-revised") | {"model_type": family}
    config["rope_parameters"] |= changed
    with pytest.raises(EngineError):
        _plain_rope(config)


@pytest.mark.parametrize("attention", [0.9, 1.5])
def test_a_stated_attention_factor_is_a_multiple_of_llama_cpps(attention: float) -> None:
    factors, times = _plain_rope(settings("yarn", RopeSettings(attention_factor=attention)))
    assert factors is None
    assert times * rope_parameters("yarn", ROPE, 8.0)["attention_factor"] == pytest.approx(attention)
    config = settings("factors", RopeSettings(factors=(1.0, 2.0, 4.0, 3.0), attention_factor=attention))
    assert _plain_rope(config) == ([1.0, 2.0, 4.0, 3.0], attention)  # llama.cpp divides by a list of factors


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types that a converter writes, which is made up."""
    steps: list[str] = []

    def convert(model: Path, out: Path, kind: str, *rest: object) -> None:
        steps.append(kind)
        out.write_bytes(b"GGUF")

    monkeypatch.setattr(export, "find_spec", lambda name: object())
    monkeypatch.setattr(export, "_convert", convert)
    monkeypatch.setattr(export, "_quantise", lambda source, out, kind: convert(source, out, kind))
    return steps


@pytest.mark.parametrize("kind", TYPES)
def test_coarse_weights_are_proved_in_float16_first(kind: str, steps: list[str], tmp_path: Path) -> None:
    write_gguf(tmp_path, tmp_path / "m.gguf", kind, CONSOLE, lambda file, tolerance: steps.append(str(tolerance)))
    own = [kind, str(GGUF_TOLERANCES[kind])]
    assert steps == (own if kind in ("f32", "f16") else ["f16", str(GGUF_TOLERANCES["f16"]), *own])
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    steps.clear()
    write_gguf(tmp_path, tmp_path / "m.gguf", kind, CONSOLE)
    assert steps == (["f16", kind] if kind.endswith("_k") else [kind])


def test_a_conversion_that_fails_leaves_no_file(steps: list[str], tmp_path: Path, monkeypatch) -> None:
    def fail(model: Path, out: Path, *rest: object) -> None:
        out.write_bytes(b"GGUF")
        raise AssertionError("a bug")

    monkeypatch.setattr(export, "_convert", fail)
    with pytest.raises(EngineError):
        write_gguf(tmp_path, tmp_path / "m.gguf", "f16", CONSOLE)
    monkeypatch.setattr(export, "find_spec", lambda name: None)  # the converter is not installed
    with pytest.raises(EngineError):
        write_gguf(tmp_path, tmp_path / "m.gguf", "f16", CONSOLE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "name", "error"), [("f16", "m.gguf", RunError), ("q8", "n.gguf", RecipeError)])
def test_no_file_is_overwritten_and_name_and_type_are_known(kind, name, error, tmp_path: Path) -> None:
    (tmp_path / "m.Modelfile").touch()
    with pytest.raises(error):
        export.export("nano", kind=kind, out=tmp_path / name, checked=False, length=None, console=CONSOLE)


@pytest.fixture
def engines(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Engines that are made up: log-probabilities ``far`` from transformers', in nats, and ``tokens``."""
    answers: dict[str, Any] = {"far": 0.0, "tokens": None}

    def answer(self: Engine, request: Request) -> dict[str, Any]:
        by = answers["far"] if self.name == "llama.cpp" else 0.0
        values = [[(token, -1.0 - token - by) for token in range(20)] for _ in request.places]
        return {"places": values, "tokens": answers["tokens"] or request.tokens}

    monkeypatch.setattr(check, "_versions", lambda python: dict.fromkeys(("transformers", "xllamacpp"), "1.0"))
    monkeypatch.setattr(Engine, "answer", answer)
    return answers


@pytest.mark.parametrize("chat", [None, "{{ messages }}"])
def test_a_file_that_llama_cpp_reads_right(
    chat: str | None, engines: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.checkpoint(tmp_path / "demo", window=128)
    tokenizer = tiny.byte_tokenizer()
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "export", model)
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "demo-f16.gguf", "demo-f16.Modelfile"}
    plain = 'TEMPLATE "{{ .Prompt }}"\n' if chat is None else ""
    assert Path("demo-f16.Modelfile").read_text() == f"FROM ./demo-f16.gguf\nPARAMETER num_ctx 128\n{plain}"


@pytest.mark.parametrize("wrong", [{"far": 0.5}, {"tokens": [[1], [1], [1]]}])
def test_a_file_that_llama_cpp_reads_wrong_is_not_kept(wrong: dict, engines: dict, tmp_path: Path) -> None:
    engines |= wrong
    model = tiny.checkpoint(tmp_path / "demo", window=128)
    with pytest.raises(EngineError):
        export.export(str(model), kind="q4_k", out=tmp_path / "m.gguf", checked=True, length=None, console=CONSOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    export.export(str(model), kind="q4_k", out=tmp_path / "m.gguf", checked=False, length=None, console=CONSOLE)
    assert (tmp_path / "m.gguf").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(convert, "find_spec", lambda name: None)
    with pytest.raises(RunError):  # an existing folder is not overwritten
        convert_gguf(Path("m.gguf"), tmp_path, Console(quiet=True))
    with pytest.raises(EngineError):
        convert_gguf(Path("m.gguf"), tmp_path / "out", Console(quiet=True))
    assert not list(tmp_path.iterdir())

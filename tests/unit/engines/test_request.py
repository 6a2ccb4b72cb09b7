"""Engines are found, asked in processes of their own, and their ends are explained."""

import json
import sys
from pathlib import Path

import pytest

from skipwise.engines import request as module
from skipwise.engines.request import Engine, Request, find_engines
from skipwise.errors import EngineError, ModelError, RecipeError, pip_install
from tests.tiny import checkpoint

REQUEST = Request("DIR", [1, 2, 3], [2], 1, 64)


def installed(monkeypatch: pytest.MonkeyPatch, **by_python: dict[str, str]) -> None:
    """Environments and what is installed in each; ``here`` is this one."""
    found = {sys.executable if name == "here" else name: engines for name, engines in by_python.items()}
    monkeypatch.setattr(module, "_installed", lambda python: found[python])


def scripted(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, name: str = "vllm") -> Engine:
    """An engine whose script this is, run by this Python."""
    (folder / "script.py").write_text("import json, os, sys\n" + script)
    monkeypatch.setattr(module, "_HERE", folder)
    monkeypatch.setitem(module.ENGINES, name, (name, "script.py"))
    return Engine(name, sys.executable, "1.0")


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        RecipeError, match=r"'vlm' is unknown \(did you mean vllm\?\); choose one of transformers, vllm"
    ):
        find_engines(["vlm"], [])


def test_without_names_all_that_are_installed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, here={"transformers": "5.23.0"}, other={"transformers": "4.57.6", "vllm": "0.32.0"})
    ours = Engine("transformers", sys.executable, "5.23.0")
    theirs = [Engine("transformers", "other", "4.57.6"), Engine("vllm", "other", "0.32.0")]
    assert find_engines([], ["other", "other"]) == [ours, *theirs]
    assert find_engines(["vllm"], ["other"]) == theirs[1:]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("vllm", "give it an environment of its own (docs/engines.md"),
        ("llama.cpp", f"llama.cpp is not installed (package xllamacpp): {pip_install('gguf')}"),
    ],
)
def test_an_absent_engine_is_said_with_its_installation(
    name: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, here={"transformers": "5.23.0"})
    with pytest.raises(EngineError) as refusal:
        find_engines([name], [])
    assert way_out in str(refusal.value)


def test_this_environment_has_transformers() -> None:
    import transformers

    assert Engine("transformers", sys.executable, transformers.__version__) in find_engines([], [])


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/nowhere/bin/python", "No such file or directory"),
        ("/bin/echo", "Expecting value"),  # what it prints is not the answer
        ("/bin/false", "it ended with status 1"),
    ],
)
def test_a_python_that_does_not_run_is_said(python: str, why: str) -> None:
    with pytest.raises(EngineError) as refusal:
        find_engines([], [python])
    message = str(refusal.value)
    assert message.startswith(f"--python {python!r} does not run as a Python (")
    assert why in message
    assert message.endswith("; give the path of bin/python")
    assert len(message) < 250


def test_an_engine_is_asked_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = "json.dump({'places': json.load(open(sys.argv[1]))['places']}, open(sys.argv[2], 'w'))\n"
    assert scripted(monkeypatch, tmp_path, copy).answer(REQUEST) == {"places": [2]}


def test_code_of_the_hub_reaches_no_process_that_would_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkpoint(tmp_path / "model", window=64) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"attn_implementation": "someone/kernel"}))
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(ModelError, match="'someone/kernel', a kernel on the hub"):
        Engine("transformers", sys.executable, "5.23.0").answer(REQUEST.of(tmp_path / "model"))


@pytest.mark.parametrize(("name", "devices"), [("llama.cpp", ""), ("vllm", "0")])
def test_an_engine_works_without_network_and_only_vllm_sees_accelerators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, devices: str
) -> None:
    """A build of vLLM for GPUs refuses to run without one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    names = ["HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "GGML_NO_BACKTRACE"]
    tell = f"json.dump({{name: os.environ.get(name) for name in {names}}}, open(sys.argv[2], 'w'))\n"
    seen = scripted(monkeypatch, tmp_path, tell, name).answer(REQUEST)
    assert seen == dict(zip(names, ["1", devices, "1"], strict=True))


def test_a_file_beside_a_script_hides_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the scripts is gguf.py, and vLLM imports a package of this name."""
    (tmp_path / "gguf.py").write_text("raise SystemExit('imported by mistake')\n")
    script = "try:\n    import gguf\nexcept ImportError:\n    pass\njson.dump({}, open(sys.argv[2], 'w'))\n"
    assert scripted(monkeypatch, tmp_path, script).answer(REQUEST) == {}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("raise ValueError('no such model')", "ValueError: no such model"),
        # pydantic's, as vLLM raises it: the reason is in the middle
        (
            "raise ValueError('1 error\\n  of type strange\\n    For further information visit a page')",
            "ValueError: 1 error of type strange For further information visit a page",
        ),
        ("print('a warning', file=sys.stderr); raise SystemExit(3)", "a warning"),
        ("raise SystemExit(3)", "it ended with status 3"),
        ("pass", "it ended with status 0"),  # and wrote no answer
        ("import signal; os.kill(os.getpid(), signal.SIGABRT)", "its process was ended by signal 6"),
    ],
)
def test_how_an_engine_ended_is_said(script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError) as refusal:
        scripted(monkeypatch, tmp_path, script + "\n").answer(REQUEST)
    assert str(refusal.value) == f"vllm 1.0 cannot read DIR: {why}"


def test_a_request_is_json_and_goes_to_another_file() -> None:
    other = REQUEST.of(Path("model.gguf"))
    assert json.loads(json.dumps(vars(other))) == {**vars(REQUEST), "model": "model.gguf", "texts": []}


def test_one_environment_under_two_names_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed", lambda python: {"transformers": "5.23.0"})
    own = Path(sys.executable)
    (tmp_path / "other").mkdir()
    found = find_engines(["transformers"], [str(own.with_name("python3")), str(tmp_path / "other" / "python")])
    assert [engine.python for engine in found] == [sys.executable, str(tmp_path / "other" / "python")]

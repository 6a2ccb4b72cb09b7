"""Nothing that comes from a stranger is executed: payloads in models, runs, text, recipes and the working folder.

Whatever runs a payload makes a folder, the canary, which fails the test. A command then ends in a message without a
traceback, or does its work and lets the payload lie.
"""

import importlib.util
import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
import yaml
from transformers import GPTJConfig

from skipwise.data.store import FILES
from skipwise.data.tokenising import build_token_store
from skipwise.engines import export
from skipwise.errors import RunError
from skipwise.model import lora
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.recipes.schema import Lora
from skipwise.results.files import seal, write_json
from skipwise.training import checkpoints
from skipwise.training.processes import ENGINE
from tests.command_line import run
from tests.faults import payloads
from tests.faults.payloads import ADAPTERS, DATA, HARMLESS, REFUSED, Bomb
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports")

TEXT = ("--data", "text", "--documents", 1, "--tokens-per-document", 64)
PERPLEXITY = ("evaluate", "model", "--only", "perplexity", *TEXT, "--lengths", 64)
SET = {
    "method": "null",
    "target": 256,
    "data.held_out": 0.5,
    "training.max_steps": 2,
    "training.save_steps": 1,
    "training.batch_size": 1,
    "training.precision": "float32",
    "evaluation.arms": "[trained]",
    "evaluation.windows": "[64]",
    "evaluation.documents": 1,
    "evaluation.prompt_trials": 0,
    "evaluation.segments": 1,
}
EXTEND = ("extend", "model", "--data", "text", *(word for item in SET.items() for word in ("--set", "=".join(map(str, item)))))  # fmt: skip
COMMANDS = {
    "plan": ("plan", "model", "--target", 256),
    "extend, dry": (*EXTEND, "--dry-run"),
    "extend": (*EXTEND, "--out", "run"),
    "evaluate": ("evaluate", "model", "--base", "none", *TEXT, "--tasks", "none", "--lengths", 64, "--out", "e"),
    "passkey": ("evaluate", "model", "--only", "prompts", "--tasks", "passkey", "--lengths", 256, "--trials", 1),
    "convert": ("convert", "model", "out"),
    "check": ("check", "model", "--engine", "transformers"),
    "export": ("export", "model", "--type", "f32", "--no-check", "--out", "m.gguf"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A model, text, and a run with two checkpoints."""
    folder = tmp_path_factory.mktemp("made")
    checkpoint(folder / "model", window=64)
    corpus(folder / "text", documents=6, words=70)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SKIPWISE_CACHE", str(folder / "cache"))
        patch.setattr("skipwise.report.page.draw_figures", lambda *_: [])
        run(patch, *EXTEND, "--out", "run")
    return folder


@pytest.fixture(autouse=True)
def canary(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> Path:
    """The canary's place outside the working folder, which holds copies of what was made."""
    (tmp_path / "here").mkdir()
    for name in ("model", "text"):
        shutil.copytree(made / name, tmp_path / "here" / name)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(export, "find_pre_tokenizer", lambda *_: "gpt-2")  # it tries sixteen, in llama.cpp
    return tmp_path / "canary"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], canary: Path) -> Callable[..., str]:
    """Run a command, require that it ran no payload and printed nothing raw, and return its message or nothing."""

    def ended(*words: object) -> str:
        capsys.readouterr()
        status = 0
        try:
            run(monkeypatch, *words)
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        message = " ".join(printed.err.partition("skipwise: ")[2].split())
        assert not canary.exists()
        assert "Traceback" not in printed.err
        assert (status, bool(message)) in ((0, False), (1, True)), printed.err
        return message

    return ended


def _run_module(path: Path, canary: Path) -> None:
    path.write_text(payloads.code(canary))
    spec = importlib.util.spec_from_file_location("evil", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


UNSAFE: dict[str, Callable[[Path], object]] = {
    "pickle": lambda canary: pickle.loads(pickle.dumps(Bomb(canary))),
    "torch": lambda canary: (torch.save([Bomb(canary)], "evil.pt"), torch.load("evil.pt", weights_only=False)),
    "numpy": lambda canary: np.load(io.BytesIO(payloads.objects(canary)), allow_pickle=True),
    "yaml": lambda canary: yaml.unsafe_load(payloads.yaml_texts(canary)["apply"]),
    "jinja": lambda canary: jinja2.Environment().from_string(payloads.template(canary)).render(),
    "import": lambda canary: _run_module(Path("evil.py"), canary),
}


@pytest.mark.parametrize("way", UNSAFE)
def test_a_payload_works_where_it_is_run(canary: Path, way: str) -> None:
    UNSAFE[way](canary)
    assert canary.exists()


@pytest.mark.parametrize("name", HARMLESS)
def test_code_beside_a_model_is_let_lie(ended, canary: Path, name: str) -> None:
    HARMLESS[name](Path("model"), canary)
    assert ended(*PERPLEXITY) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_needs_code_is_refused(ended, canary: Path, name: str) -> None:
    REFUSED[name](Path("model"), canary)
    message = ended(*PERPLEXITY)
    assert message
    assert not any(advice in message for advice in ("trust_remote_code", "weights_only"))


@pytest.mark.parametrize("plant", [payloads.pickle_as, payloads.torch_file_as])
def test_weights_that_are_converted_run_nothing(ended, canary: Path, plant) -> None:
    GPTJConfig(vocab_size=97, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8).save_pretrained("model")
    plant("pytorch_model.bin", without="*.safetensors")(Path("model"), canary)
    assert "model/pytorch_model.bin" in ended("convert", "model", "out")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_lies_beside_a_model(ended, canary: Path, command: str) -> None:
    if command == "export":
        pytest.importorskip("conversion")
    for name, plant in HARMLESS.items():
        if "tokenizer." not in name and "quantizer" not in name:  # what other readers refuse
            plant(Path("model"), canary)
    message = ended(*COMMANDS[command])
    assert bool(message) == (command in ("convert", "check")), message  # no conversion for it; nothing to compare with


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_cannot_choose_what_is_imported(ended, canary: Path, monkeypatch, name: str) -> None:
    for module in ("evil_of_peft.py", "evil/tokenizer.py"):
        payloads.code_as(module)(Path.cwd(), canary)
    payloads.settings("tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenizer.A", None]})(Path("evil"), canary)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    adapter = Path("adapter")
    shutil.copytree("model", adapter)
    (adapter / "model.safetensors").unlink()
    lora.save_adapter(lora.adapt(load_model("model"), Lora(rank=2)), adapter, "model", None)
    assert ended("evaluate", adapter, *PERPLEXITY[2:]) == ""
    ADAPTERS[name](adapter, canary)
    refused = name not in ("auto_mapping", "Megatron's module")
    assert bool(ended("evaluate", adapter, *PERPLEXITY[2:], "--out", "again")) == refused


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "model.pkl"])
@pytest.mark.parametrize("plant", [payloads.pickle_as, payloads.torch_file_as])
def test_a_forged_checkpoint_runs_nothing(made: Path, ended, canary: Path, name: str, plant) -> None:
    newest = _interrupted(made)
    plant(name)(newest, canary)
    checkpoints.mark_complete(newest)
    message = ended(*EXTEND, "--out", "run", "--resume")
    read = name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")
    assert ("is not executed" in message) if read else not message


def _interrupted(made: Path) -> Path:
    """A copy of the run as a kill after its first step leaves it; its newest checkpoint."""
    shutil.copytree(made / "run", "run")
    shutil.rmtree("run/model")
    shutil.rmtree("run/checkpoints/checkpoint-2")
    return Path("run/checkpoints/checkpoint-1")


@pytest.mark.parametrize("engine", ["ddp", "zero3"])
def test_an_engine_that_asks_for_any_pickle_gets_plain_values(canary: Path, monkeypatch, engine: str) -> None:
    """DeepSpeed does; a forged checkpoint of ZeRO-3 would run at its resume."""
    monkeypatch.setenv(ENGINE, engine)
    monkeypatch.setenv("WORLD_SIZE", "2")
    states = {"plain": {"step": 3, "moments": torch.ones(2)}}
    if engine == "zero3":
        loss_scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
        stage = pytest.importorskip("deepspeed.runtime.zero.config").ZeroStageEnum.weights
        states["of DeepSpeed"] = {"loss_scaler": loss_scaler.LossScaler(1.0), "zero_stage": stage}
    for name, state in {**states, "evil": Bomb(canary)}.items():
        torch.save(state, name)
    with checkpoints.weights_only(Path("checkpoint-1")):
        for name, state in states.items():
            assert torch.load(name, weights_only=False).keys() == state.keys()
    with pytest.raises(RunError, match="is not executed"), checkpoints.weights_only(Path("checkpoint-1")):
        torch.load("evil", weights_only=False)
    assert not canary.exists()


@pytest.mark.parametrize("name", FILES)
def test_a_forged_token_store_runs_nothing(ended, canary: Path, name: str) -> None:
    store = build_token_store("text", load_tokenizer("model"))
    (store.path / name).write_bytes(payloads.objects(canary))
    about = json.loads((store.path / "store.json").read_text())
    write_json(store.path / "store.json", about | {"seal": seal(store.path, FILES)})
    ended(*PERPLEXITY)


@pytest.mark.parametrize("way", payloads.yaml_texts(Path("c")))
def test_a_tag_in_a_recipe_builds_no_object(made: Path, ended, canary: Path, way: str) -> None:
    text = payloads.yaml_texts(canary)[way]
    Path("evil.yaml").write_text(f"model: {text}\n")
    Path("like.yaml").write_text("like: evil.yaml\n")
    Path("names.yaml").write_text(f"like: {text}\n")
    for recipe in ("evil.yaml", "like.yaml", "names.yaml"):
        assert ended("extend", "--recipe", recipe, "--dry-run")
        assert ended("plan", "--recipe", recipe)
    assert ended("extend", "--dry-run", "--set", f"seed={text}")
    shutil.copytree(made / "run", "run")
    with open("run/recipe.yaml", "a") as recipe_of_run:
        recipe_of_run.write(f"more: {text}\n")
    assert ended("extend", "--out", "run", "--resume")
    ended("report", "run")


@pytest.mark.parametrize("name", DATA)
def test_text_is_only_read(ended, canary: Path, name: str) -> None:
    Path("data").mkdir()
    DATA[name](Path("data"), canary)
    ended(*PERPLEXITY[:4], "--data", "data", *PERPLEXITY[6:])


def test_a_gguf_file_is_data(ended, canary: Path) -> None:
    pytest.importorskip("conversion")
    tokenizer = json.loads(Path("model/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["ab"] = vocabulary.pop("ÿ")  # transformers reads no GGUF tokenizer without merges
    tokenizer["model"]["merges"] = [["a", "b"]]
    Path("model/tokenizer.json").write_text(json.dumps(tokenizer))
    payloads.templates(Path("model"), canary)
    assert ended("export", "model", "--type", "f32", "--no-check", "--out", "m.gguf") == ""
    assert payloads.template(canary).encode() in Path("m.gguf").read_bytes()
    assert ended("convert", "m.gguf", "back", "--no-check") == ""
    assert ended("evaluate", "back", *PERPLEXITY[2:]) == ""

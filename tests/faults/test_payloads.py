"""Nothing that comes from a stranger is executed: payloads in models, runs, text, recipes and the working folder.

Whatever runs a payload makes a folder, the canary, which fails the test. A command then ends in a message without a
traceback, or does its work and lets the payload lie.
"""

import importlib.util
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import unittest.mock
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
from skipwise.engines.check import find_engines
from skipwise.errors import RunError, printable
from skipwise.model import lora
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.recipes.schema import Lora
from skipwise.report.model_card import write_card
from skipwise.report.page import write_page
from skipwise.results.files import seal, write_json
from skipwise.training import checkpoints
from skipwise.training.processes import ENGINE, launch
from tests.command_line import run
from tests.faults import payloads
from tests.faults.payloads import ADAPTERS, DATA, HARMLESS, NAMES, REFUSED, Bomb, Page
from tests.measured import WINDOWS, evaluation_folder, readings, run_folder, trials
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports")

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BAR = re.compile(r"\r[A-Z][\w ()/]*: +\d+%[^\r\n]*")  # another library's progress
TEXT = ("--data", "text", "--documents", 1, "--tokens-per-document", 64)
PERPLEXITY = ("perplexity", "model", *TEXT, "--windows", 64)
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
    "passkey": ("passkey", "model", "--lengths", 256, "--trials", 1),
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
        assert not RAW.search(_BAR.sub("", printed.err) + printed.out)
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
        if "tokenizer." not in name:  # what another reader of tokenizers refuses
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
    assert ended("perplexity", adapter, *PERPLEXITY[2:]) == ""
    ADAPTERS[name](adapter, canary)
    assert bool(ended("perplexity", adapter, *PERPLEXITY[2:])) == (name != "auto_mapping")


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
    ended("perplexity", "model", "--data", "data", *PERPLEXITY[4:])


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
    assert ended("perplexity", "back", *PERPLEXITY[2:]) == ""


@pytest.mark.parametrize("architecture", ["evil", "../../evil", "os.mkdir", "\x1b]0;evil\x07"])
def test_a_gguf_file_of_an_odd_architecture_is_refused(ended, canary: Path, architecture: str) -> None:
    writer = pytest.importorskip("gguf").GGUFWriter("m.gguf", architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", payloads.template(canary)])
    writer.add_chat_template(payloads.template(canary))
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype="float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert ended("convert", "m.gguf", "back", "--no-check")


MODULES = ("json.py", "csv.py", "typing.py", "yaml.py", "torch.py", "numpy.py", "skipwise.py", "conftest.py",
           "sitecustomize.py", "usercustomize.py", "email.py", "zipfile.py", "types.py")  # fmt: skip


@pytest.fixture
def hostile(canary: Path) -> None:
    """A working folder with modules of common names, and with files that programs read settings from."""
    payloads.code_as(*MODULES, "bin/latex.py")(Path.cwd(), canary)
    for name in (".env", ".deepspeed_env"):
        Path(name).write_text(f"PYTHONSTARTUP={Path.cwd()}/json.py\nPYTHONPATH={Path.cwd()}\n")
    Path("hostfile").write_text("`python json.py` slots=1\n")
    Path("matplotlibrc").write_text("text.usetex: True\nbackend: module://json\n")
    Path("bin/latex").write_text(f"#!/bin/sh\nmkdir {canary}\n")
    Path("bin/latex").chmod(0o700)


@pytest.mark.usefixtures("hostile")
def test_engines_are_looked_for_without_the_working_folder(canary: Path) -> None:
    assert "transformers" in [engine.name for engine in find_engines([], [])]
    assert not canary.exists()


@pytest.mark.usefixtures("hostile")
def test_processes_are_started_without_the_working_folder(canary: Path, capfd) -> None:
    with unittest.mock.patch.dict(os.environ):
        launch("ddp", 2, ["--version"])
    assert capfd.readouterr().out.count("skipwise ") == 2
    assert not canary.exists()


@pytest.mark.usefixtures("hostile")
def test_a_command_reads_no_settings_of_the_working_folder(canary: Path) -> None:
    """Not even Matplotlib, whose matplotlibrc could have LaTeX run on names of ours."""
    run_folder(Path("measured"), [*readings("original", 256, 15), *readings("pose", 512, 15)])
    program = Path(sys.executable).with_name("skipwise")
    environment = {**os.environ, "PATH": f"{Path.cwd() / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([program, "report", "measured"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, f"report: {Path.cwd()}/measured/report.html\n"), done.stderr
    assert not canary.exists()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> list[str]:
    """The pages of a run and of an evaluation, with every payload wherever a name can stand, and their figures."""
    at = tmp_path_factory.mktemp("pages")
    measured = [record for name in ("original", *NAMES) for record in readings(name, 256, 15, f"text {name}")]
    measured += [*trials(NAMES[0], 256, 5, 10, NAMES[1]), *trials(NAMES[-1], 256, 5, 10, NAMES[2])]
    model = {**dict.fromkeys(NAMES, NAMES), "name": NAMES[0], "original_length": 256, "target_length": 2048}
    info = {"model": model, "data": {"source": NAMES[3], NAMES[4]: NAMES}}
    info |= {"command": " ".join(NAMES), "created": NAMES[1], "versions": dict.fromkeys(NAMES, "1")}
    folder = run_folder(at / NAMES[2].replace("/", ""), measured, info, "\n".join(NAMES))
    own = [record for window in WINDOWS for record in readings("m", window, 15.0)]
    asked = evaluation_folder(at / NAMES[3], own, base=NAMES[4], **info)
    written = [write_page([folder]), write_page([asked]), write_page([folder, folder.parent / "x"][:1], at / "out")]
    figures = [path for path in at.rglob("*") if path.suffix in (".svg", ".csv")]
    assert len(figures) > 5
    return [path.read_text() for path in [*written, *figures]]


def test_a_page_holds_names_as_text(pages: list[str]) -> None:
    assert Page("<script>a</script><a href='javascript:b'>c</a><p onload=d>").active  # it can fail
    for text in pages:
        assert not RAW.search(text.replace("\r", ""))
    page, *_ = map(Page, pages)
    assert [one for text in pages if text.lstrip().startswith("<") for one in Page(text).active] == []
    for name in NAMES:
        assert printable(name) in page.text


@pytest.mark.parametrize("name", NAMES)
def test_a_model_card_holds_names_as_text(name: str) -> None:
    write_card(Path("model"), title=name, headline="a", facts={"text": name}, table="", figure=None)
    lines = Path("model/README.md").read_text().split("\n")
    shown = [line for line in lines if line.startswith(("# ", "- text: "))]
    assert len(shown) == 2
    for line in shown:
        assert not RAW.search(line)
        assert not re.search(r"<|\[[^]]*\]\(", line)


@pytest.mark.parametrize("name", [name.replace("/", "") for name in (NAMES[0], *NAMES[-5:])])
def test_a_name_cannot_command_the_terminal(ended, name: str) -> None:
    shutil.copytree("model", name)
    assert ended("plan", name, "--target", 256) == ""
    Path("more").mkdir()
    Path("more", f"{name}.txt").write_bytes(b"\xff")
    assert ended("perplexity", name, "--data", "more", *PERPLEXITY[4:])
    payloads.in_config(model_type=name)(Path("model"), Path("c"))
    assert ended(*PERPLEXITY)
    assert ended("extend", "--set", f"{name}=1")
    assert ended("extend", "--recipe", name)

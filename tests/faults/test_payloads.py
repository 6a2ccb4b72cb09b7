"""Nothing in data, models or configs is executed.

Whatever runs a payload makes a folder, the canary, which fails the test. A command then refuses the file, or does its
work and lets the payload lie.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from transformers import GPTJConfig

from skipwise.errors import RunError
from skipwise.model import lora
from skipwise.model.loading import load_model
from skipwise.recipes.schema import Lora
from skipwise.training import checkpoints
from skipwise.training.processes import ENGINE
from tests.command_line import run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports")

TEXT = ("--documents", 1, "--set", "evaluation.tokens_per_document=64", "--lengths", 64, "--precision", "float32")
PERPLEXITY = ("evaluate", "model", "--only", "perplexity", "--data", "text", *TEXT)
SET = {
    "target": 256,
    "data.held_out": 0.5,
    "training.max_steps": 2,
    "training.save_steps": 1,
    "training.global_batch_size": 1,
    "training.precision": "float32",
    "evaluation.models": "[trained]",
    "evaluation.windows": "[64]",
    "evaluation.documents": 1,
    "evaluation.num_prompts": 0,
    "evaluation.other_texts": "false",
}
EXTEND = ["extend", "model", "--data", "text", "--out", "run"]
EXTEND += [word for key, value in SET.items() for word in ("--set", f"{key}={value}")]


@dataclass(frozen=True)
class Bomb:
    """Makes the canary where it is unpickled."""

    canary: Path

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return os.mkdir, (str(self.canary),)


def code(*files: Path, canary: Path) -> None:
    """Python that makes the canary where it is imported; then it serves as any class that is looked for."""
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"import os\nos.makedirs({str(canary)!r}, exist_ok=True)\n__getattr__ = lambda name: dict\n")


def change(path: Path, **settings: object) -> None:
    """Change settings of a JSON file."""
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))


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
        run(patch, *EXTEND)
    return folder


@pytest.fixture(autouse=True)
def canary(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> Path:
    """The canary's place outside the working folder, which holds copies of what was made."""
    (tmp_path / "here").mkdir()
    for name in ("model", "text"):
        shutil.copytree(made / name, tmp_path / "here" / name)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "canary"


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch, capsys, canary: Path) -> Callable[..., bool]:
    """Run a command, and require that it ran no payload; say whether it ended in a refusal."""

    def refuses(*words: object) -> bool:
        try:
            run(monkeypatch, *words)
            refused = False
        except SystemExit as end:
            refused = end.code == 1
        printed = capsys.readouterr().err
        assert refused == ("skipwise: " in printed)
        assert "Traceback" not in printed
        assert not canary.exists()
        return refused

    return refuses


def test_payloads_work_where_they_are_run(canary: Path, monkeypatch) -> None:
    torch.save([Bomb(canary)], "evil.pt")
    code(Path("evil_module.py"), canary=canary)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    for way in (
        lambda: torch.load("evil.pt", weights_only=False),
        lambda: yaml.unsafe_load(f"!!python/object/apply:os.mkdir [{str(canary)!r}]"),
        lambda: __import__("evil_module"),
    ):
        way()
        canary.rmdir()


@pytest.mark.parametrize("words", [PERPLEXITY, EXTEND], ids=["evaluate", "extend"])
def test_what_lies_beside_a_model_is_let_lie(refuses, canary: Path, words) -> None:
    model, classes = Path("model"), {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "adapter_model.bin"):
        torch.save({"weight": torch.zeros(2), "more": Bomb(canary)}, model / name)
    change(model / "config.json", auto_map=classes, trust_remote_code=True, custom_generate=".")
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.A", "evil.A"]}, trust_remote_code=True)
    change(model / "generation_config.json", custom_generate=".", trust_remote_code=True)
    code(model / "evil.py", model / "custom_generate/generate.py", model / "torch.py", canary=canary)
    assert not refuses(*words)


TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "os.mkdir", "_data": {"path": "../canary"}}}}


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}},
        {"attn_implementation": "evil/kernel"},
        {"quantization_config": TORCHAO},
    ],
    ids=["a class of its code", "a kernel of the hub", "a quantizer of classes"],
)
def test_a_model_that_needs_code_is_refused(refuses, canary: Path, settings: dict) -> None:
    change(Path("model/config.json"), **settings)
    code(Path("model/evil.py"), canary=canary)
    assert refuses(*PERPLEXITY)


@pytest.mark.parametrize(
    ("words", "lost", "name"),
    [
        (PERPLEXITY, "model.safetensors", "pytorch_model.bin"),
        (("convert", "model", "out"), "model.safetensors", "pytorch_model.bin"),
        (PERPLEXITY, "tokenizer.json", "tokenizer.model"),
    ],
)
def test_pickles_are_refused(refuses, canary: Path, words, lost: str, name: str) -> None:
    if "convert" in words:
        GPTJConfig(vocab_size=97, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8).save_pretrained("model")
    Path("model", lost).unlink()
    torch.save({"weight": torch.zeros(2), "more": Bomb(canary)}, Path("model", name))
    assert refuses(*words)


def test_an_adapter_cannot_choose_what_is_imported(refuses, canary: Path, monkeypatch) -> None:
    code(Path("evil_of_peft.py"), canary=canary)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    adapter = Path("adapter")
    shutil.copytree("model", adapter)
    (adapter / "model.safetensors").unlink()
    lora.save_adapter(lora.adapt(load_model("model"), Lora(r=2)), adapter, "model", None)
    change(
        adapter / "adapter_config.json",
        auto_mapping={"base_model_class": "mkdir", "parent_library": "evil_of_peft"},
        megatron_config={"a": 1},
        megatron_core="evil_of_peft",
    )
    assert not refuses("evaluate", adapter, *PERPLEXITY[2:])
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"weight": torch.zeros(2), "more": Bomb(canary)}, adapter / "adapter_model.bin")
    assert refuses("evaluate", adapter, *PERPLEXITY[2:], "--out", "again")


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_a_forged_checkpoint_is_refused(made: Path, refuses, canary: Path, name: str) -> None:
    shutil.copytree(made / "run", "run")
    shutil.rmtree("run/model")
    shutil.rmtree("run/checkpoints/checkpoint-2")
    newest = Path("run/checkpoints/checkpoint-1")
    torch.save([Bomb(canary)], newest / name)
    checkpoints.mark_complete(newest)
    assert refuses(*EXTEND, "--resume")


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
    with pytest.raises(RunError), checkpoints.weights_only(Path("checkpoint-1")):
        torch.load("evil", weights_only=False)
    assert not canary.exists()


def test_a_tag_in_a_recipe_builds_no_object(refuses, canary: Path) -> None:
    tag = f"!!python/object/apply:os.mkdir [{str(canary)!r}]"
    Path("evil.yaml").write_text(f"model: {tag}\n")
    assert refuses("extend", "--recipe", "evil.yaml", "--dry-run")
    assert refuses("extend", "--dry-run", "--set", f"seed={tag}")


def test_text_is_only_read(refuses, canary: Path) -> None:
    for name in ("a.pkl", "a.pt", "a.npy"):
        Path("text", name).write_bytes(pickle.dumps(Bomb(canary)))
    code(*(Path("text", f"{name}.py") for name in ("text", "conftest", "sitecustomize", "json")), canary=canary)
    assert not refuses(*PERPLEXITY)


def test_a_chat_template_cannot_leave_jinja(refuses, canary: Path) -> None:
    turns = [{"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "word " * 40}]
    Path("chat.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 4)
    make = f"os.makedirs({str(canary)!r}, exist_ok=True)"
    change(Path("model/tokenizer_config.json"), chat_template=f"{{{{ cycler.__init__.__globals__.{make} }}}}")
    assert refuses("evaluate", "model", "--only", "perplexity", "--data", "chat.jsonl", *TEXT)

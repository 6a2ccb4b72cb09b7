"""What a recipe comes to before training: every setting arrives, and what cannot be is refused."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.text import is_held_out
from skipwise.errors import DataError, RecipeError, RunError, TrainingError
from skipwise.model.config import Origin
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data
from skipwise.training import prepare as preparing, run as shared_run
from skipwise.training.prepare import PreparedRun, prepare
from tests.tiny import checkpoint, corpus


def prepared(folder: Path, model: Path | None = None, **changes) -> PreparedRun:
    settings = {
        "model": str(model or checkpoint(folder / "model", window=64)),
        "target": 512,
        "data.source": str(corpus(folder / "text", documents=24, words=200)),
        "data.held_out": 0.3,
        "training.max_steps": 2,
        "training.global_batch_size": 3,
        "training.precision": "float32",
    }
    return prepare(load_recipe(None, {**settings, **changes}), Console(file=io.StringIO()))


def test_every_setting_reaches_the_prepared_run(tmp_path) -> None:
    run = prepared(tmp_path, **{"seed": 7, "data.train_chunk_starts": True, "interpolation": "linear"})
    data = run.dataset
    assert (data.seed, data.rules.train_chunk_starts, len(data)) == (7, True, 6)
    assert run.extension.interpolation == "linear"
    assert data.rules.target_length == 512
    held = [is_held_out(name, 0.3) for name in run.store.names]
    assert run.split.held_out.tolist() == np.flatnonzero(held).tolist()
    assert not set(run.split.train) & set(run.split.held_out)
    full = prepared(tmp_path, tmp_path / "model", **{"target": 1100, "positions.scheme": "full_length"})
    assert full.split.shortest == full.window == 1100 <= full.store.lengths[full.split.train].min()


def test_the_documents_trained_on_are_those_of_the_base_too(tmp_path) -> None:
    run = prepared(tmp_path)
    own = set(run.store.digests[run.split.train].tolist())
    assert set(run.origin.documents.tolist()) == own
    Origin("older", 32, Data(), np.array([3, 5], dtype="<u8")).write(tmp_path / "model")
    again = prepared(tmp_path, tmp_path / "model").origin
    assert set(again.documents.tolist()) == own | {3, 5}
    assert (again.base, again.original_length, again.data.held_out) == (str(tmp_path / "model"), 32, 0.3)
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(RunError, match=r"tokenizer_config\.json"):  # before a dry run, which loads no weights
        prepared(tmp_path, tmp_path / "model")


def test_a_plan_refuses_what_a_launch_would(tmp_path: Path, monkeypatch) -> None:
    recipe, console = prepared(tmp_path, **{"evaluation.eval_steps": [1]}).recipe, Console(quiet=True)
    prepare(recipe, console, "ddp")
    for launch in ("fsdp", "zero3-offload"):
        with pytest.raises(RecipeError, match=launch.partition("-")[0]):
            prepare(recipe, console, launch)
    monkeypatch.setattr("skipwise.training.processes.launched", lambda: 3)
    monkeypatch.setattr("skipwise.training.prepare.training_arguments", lambda *args: None)  # would see one process
    monkeypatch.setattr("skipwise.training.processes.engine", lambda: "zero3")
    with pytest.raises(RecipeError, match="zero3"):
        prepare(recipe, console)


def test_conversations_are_not_packed_for_layers_that_may_read_across_them(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", window=64)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] + '</s>' }}{% endfor %}")
    rows = [
        [{"role": "user", "content": f"{n} ask"}, {"role": "assistant", "content": "say " * words}]
        for n, words in enumerate([90] * 10 + [1] * 2)
    ]
    chat = tmp_path / "chat.jsonl"
    chat.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    settings = {"data.source": str(chat), "data.held_out": 0.0}
    assert len(prepared(tmp_path, model, **settings).split.train) == 12
    with pytest.raises(RecipeError, match="flash_attention_2"):
        prepared(tmp_path, model, **settings, attn_implementation="flash_attention_2")
    config = json.loads((model / "config.json").read_text())
    kinds = ["chunked_attention"] + ["full_attention"] * (config["num_hidden_layers"] - 1)
    (model / "config.json").write_text(json.dumps(config | {"layer_types": kinds}))
    with pytest.raises(DataError, match=r"chunked_attention.*data\.min_tokens=64"):
        prepared(tmp_path, model, **settings)
    assert len(prepared(tmp_path, model, **settings, **{"data.min_tokens": 64}).split.train) == 10


def unread(*_: object, **__: object) -> None:
    raise AssertionError("the text was read")


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"training.learnig_rate": 1.0}, "learning_rate"),
        ({"lora.load_in_4bit": True}, "4bit"),
        ({"train_length": 600}, "600"),  # above the target
    ],
)
def test_settings_are_refused_before_the_text_is_read(tmp_path, monkeypatch, changes, setting) -> None:
    monkeypatch.setattr(preparing, "tokenise", unread)
    model, text = checkpoint(tmp_path / "base"), corpus(tmp_path / "text")
    recipe = load_recipe(None, {"model": str(model), "data.source": str(text), "target": 256, **changes})
    with pytest.raises(RecipeError, match=setting):
        prepare(recipe, Console(file=io.StringIO()), "zero3")


def test_a_folder_of_another_run_is_refused_before_the_text_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shared_run, "prepare", unread)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 1\n")
    with pytest.raises(RunError, match=str(tmp_path / "run")):
        shared_run.prepare_together(load_recipe(None), tmp_path / "run", False, Console(file=io.StringIO()))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shared_run.processes, "is_first", lambda: False)  # the others get its error before they read
    monkeypatch.setattr(shared_run.processes, "gather_object", lambda own: ["holds another run", ""])
    with pytest.raises(TrainingError, match="process 0"):
        shared_run.prepare_together(load_recipe(None), tmp_path / "run", False, Console(file=io.StringIO()))

"""What a recipe comes to before training: every setting arrives, and what cannot be is refused."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.text import is_held_out
from skipwise.errors import DataError, ModelError, RecipeError, RunError, TrainingError
from skipwise.model.origin import Origin
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data
from skipwise.training import prepare as preparing
from skipwise.training import run as shared_run
from skipwise.training.plan import print_plan
from skipwise.training.prepare import PreparedRun, prepare
from tests.tiny import checkpoint, corpus


def prepared(folder: Path, model: Path | None = None, **changes) -> PreparedRun:
    settings = {
        "model": str(model or checkpoint(folder / "model", window=64)),
        "target": 512,
        "method": None,
        "data.source": str(corpus(folder / "text", documents=24, words=200)),
        "data.cache": str(folder / "cache"),
        "data.held_out": 0.3,
        "training.max_steps": 2,
        "training.batch_size": 3,
        "training.precision": "float32",
    }
    return prepare(load_recipe(None, {**settings, **changes}), Console(file=io.StringIO()))


def test_every_setting_reaches_the_prepared_run(tmp_path) -> None:
    run = prepared(tmp_path, **{"seed": 7, "data.train_jumps": True, "interpolation": "linear"})
    data = run.dataset()
    assert (data.seed, data.rules.train_jumps, len(data)) == (7, True, 6)
    assert run.extension.interpolation == "linear"
    assert (tmp_path / "cache").is_dir()
    assert data.rules.target_length == run.extension.reach == 512
    held = [is_held_out(name, 0.3) for name in run.store.names]
    assert run.split.held_out.tolist() == np.flatnonzero(held).tolist()
    assert not set(run.split.train) & set(run.split.held_out)


def test_the_methods_weights_reach_the_examples(tmp_path) -> None:
    run = prepared(tmp_path, **{"method": "skipwise", "train_length": 300, "training.batch_size": 50})
    data = run.dataset(np.ones((30, 64), dtype=np.int64))
    examples = data.__getitems__(range(100))
    prompts, written = (
        [example[name].max() > most for example in examples]
        for name, most in (("label_weights", 1), ("teacher_weights", 0))
    )
    assert {*np.concatenate([example["label_weights"] for example in examples])} == {1, 4, 32}
    assert {*np.concatenate([example["teacher_weights"] for example in examples])} == {0, 16}
    assert 5 < sum(prompts) < 30
    assert 5 < sum(written) < 30


def test_positions_are_drawn_to_the_end_of_the_margin(tmp_path) -> None:
    run = prepared(tmp_path, **{"positions.margin": 0.5, "training.max_steps": 200})
    assert run.extension.reach == 768
    farthest = run.dataset().plans(np.arange(600)).position_ids().max()
    assert 740 < farthest < 768


def test_the_documents_trained_on_are_those_of_the_base_too(tmp_path) -> None:
    run = prepared(tmp_path)
    own = set(run.store.digests[run.split.train].tolist())
    assert set(run.origin.documents.tolist()) == own
    Origin("older", 32, Data(), np.array([3, 5], dtype="<u8")).write(tmp_path / "model")
    again = prepared(tmp_path, tmp_path / "model").origin
    assert set(again.documents.tolist()) == own | {3, 5}
    assert (again.base, again.original_length, again.text.held_out) == (str(tmp_path / "model"), 32, 0.3)


def test_a_sealed_base_that_was_changed_is_refused_before_anything_is_read(tmp_path) -> None:
    """A dry run loads no weights, and would plan for a model that is not there."""
    model = checkpoint(tmp_path / "model", window=64)
    Origin("older", 32, Data()).write(model)
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(RunError, match=r"tokenizer_config\.json"):
        prepared(tmp_path, model)


def test_the_full_scheme_takes_documents_of_the_target_length(tmp_path) -> None:
    run = prepared(tmp_path, **{"target": 1100, "positions.scheme": "full"})
    assert run.split.shortest == 1100
    assert run.store.lengths[run.split.train].min() >= 1100
    assert run.split.dropped > 0


@pytest.mark.parametrize(
    ("documents", "changes", "message"),
    [
        (1, {}, r"data\.held_out = 0\.9999"),
        (3, {"data.held_out": 0.5, "data.min_tokens": 961}, r"-1\.txt \(960\).*data\.min_tokens"),
    ],
)
def test_a_text_that_leaves_nothing_to_train_on_is_explained(tmp_path, documents, changes, message) -> None:
    text = corpus(tmp_path / "few", documents=documents, words=200)
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, **{"data.source": str(text), "data.held_out": 0.9999, **changes})


def test_a_train_length_above_the_target_is_refused(tmp_path) -> None:
    with pytest.raises(RecipeError, match=r"600 .* 512"):
        prepared(tmp_path, train_length=600)


def test_a_scaled_model_is_replaced_from_the_length_given(tmp_path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    model = checkpoint(tmp_path / "model", window=64, rope_parameters=rope)
    with pytest.raises(ModelError, match="already linear x2"):
        prepared(tmp_path, model)
    run = prepared(tmp_path, model, existing_rope="replace", original_length=64)
    assert run.extension.rope.original_length == 64


@pytest.mark.parametrize(
    ("rope", "told", "replaced"),
    [
        ({"rope_type": "default"}, "64 -> 512 tokens", False),
        ({"rope_type": "linear", "factor": 2.0}, "64 -> 512 tokens", True),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}, "64 -> 512 tokens", True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, "256 -> 512 tokens", True),
    ],
)
def test_the_plan_says_what_the_model_reads_now_and_which_scaling_is_replaced(
    tmp_path, rope: dict, told: str, replaced: bool
) -> None:
    model = checkpoint(tmp_path / "model", window=64, rope_parameters={"rope_theta": 1e4, **rope})
    run = prepared(tmp_path, model, existing_rope="replace", target=512, train_length=32)
    console = Console(file=io.StringIO(), width=200)
    print_plan(run, console)
    printed, original = console.file.getvalue(), run.extension.rope.original_length
    assert f"{told} (x{512 // original}, " in printed
    line = f"starts from the original length, {original} tokens"
    assert (line in printed) is replaced is ("is replaced: " in printed)


def planned(run: PreparedRun) -> str:
    console = Console(file=io.StringIO(), width=300)
    print_plan(run, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_plan_says_the_rate_how_often_the_text_is_read_and_what_a_large_factor_may_do(tmp_path) -> None:
    few = {"training.max_steps": 1, "training.batch_size": 1, "training.warmup_steps": 0, "train_length": 64}
    model = checkpoint(tmp_path / "model", window=64)
    told = planned(prepared(tmp_path, model, **few))
    assert "learning rate 2e-05 after a warm-up of 0 steps, adamw_torch; 1 window in a pass" in told
    assert "times the original window" not in told
    many = {"training.max_steps": 2000, "training.learning_rate": 1e-3, "training.warmup_steps": 0.25, "target": "1k"}
    many["interpolation"] = "yarn"
    run = prepared(tmp_path, model, **few | many)
    told, tokens = planned(run), int(run.store.lengths[run.split.train].sum())
    assert "learning rate 0.001 after a warm-up of 25% of the steps" in told
    assert f"({2000 * 64 / tokens:.1f} epochs)" in told
    assert "note: 16 times the original window" in told
    assert "times the original window" not in planned(
        prepared(tmp_path, model, **few, target="1k", interpolation="ntk")
    )


def test_a_sharded_model_cannot_be_measured_during_training(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("skipwise.training.processes.launched", lambda: 3)
    monkeypatch.setattr("skipwise.training.prepare.training_arguments", lambda *args: None)  # would see one process
    monkeypatch.setattr("skipwise.training.processes.engine", lambda: "zero3")
    with pytest.raises(RecipeError, match="zero3"):
        prepared(tmp_path, **{"evaluation.keep": "best", "evaluation.steps": [1]})


@pytest.mark.parametrize("launch", ["fsdp", "zero3", "zero3-offload"])
def test_a_plan_refuses_what_a_launch_would(tmp_path: Path, launch: str) -> None:
    recipe = prepared(tmp_path, **{"evaluation.steps": [1]}).recipe
    console = Console(quiet=True)
    prepare(recipe, console, "ddp")
    with pytest.raises(RecipeError, match=launch.partition("-")[0]):
        prepare(recipe, console, launch)


def test_conversations_are_not_packed_for_layers_that_may_read_across_them(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", window=64)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] + '</s>' }}{% endfor %}")
    words = ["ask " * 9, "say " * 9] * 3
    rows = [
        [{"role": ("user", "assistant")[i % 2], "content": f"{n} {word}"} for i, word in enumerate(words)]
        for n in range(9)
    ]
    rows += [row[:2] for row in rows[:1]] + [
        [{**row[0], "content": "Hi"}, {**row[1], "content": "Hello"}] for row in rows[:2]
    ]
    chat = tmp_path / "chat.jsonl"
    chat.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    settings = {"data.source": str(chat), "data.held_out": 0.0}
    assert len(prepared(tmp_path, model, **settings).split.train) == 12
    config = json.loads((model / "config.json").read_text())
    kinds = ["chunked_attention"] + ["full_attention"] * (config["num_hidden_layers"] - 1)
    (model / "config.json").write_text(json.dumps(config | {"layer_types": kinds}))
    with pytest.raises(DataError, match=r"2 documents .*chunked_attention.*data.min_tokens=64"):
        prepared(tmp_path, model, **settings)
    assert len(prepared(tmp_path, model, **settings, **{"data.min_tokens": 64}).split.train) == 10


def unread(*_: object, **__: object) -> None:
    raise AssertionError("the text was read")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"training.learnig_rate": 1.0}, "learning_rate"), ({"lora.base": "4bit"}, "cannot be sharded")],
)
def test_settings_are_refused_before_the_text_is_read(tmp_path, monkeypatch, changes, message) -> None:
    monkeypatch.setattr(preparing, "tokenise", unread)
    model, text = checkpoint(tmp_path / "base"), corpus(tmp_path / "text")
    recipe = load_recipe(None, {"model": str(model), "data.source": str(text), "target": 256, **changes})
    with pytest.raises(RecipeError, match=message):
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

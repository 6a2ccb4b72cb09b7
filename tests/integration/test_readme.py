"""What the README shows runs: its Python block on a tiny model, and every command it names exists."""

import re
from pathlib import Path

from typer.main import get_command

from skipwise.cli import app
from skipwise.recipes.schema import load_recipe, parse_changes
from tests.tiny import checkpoint, corpus

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


def test_the_python_example_trains(tmp_path, monkeypatch, capsys) -> None:
    (source,) = blocks("python")
    model = checkpoint(tmp_path / "base", window=64)
    text = corpus(tmp_path / "text", words=200)
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    source = source.replace("meta-llama/Llama-2-7b-hf", str(model)).replace("my_corpus/", str(text))
    source = source.replace('"4k"', "64").replace('"32k"', "512")
    source = source.replace("max_steps=1000", "max_steps=2, use_cpu=True, report_to='none'")
    exec(compile(source, str(README), "exec"), {})


def test_every_command_line_parses() -> None:
    lines = [line.split("#")[0] for block in blocks("sh") for line in block.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("skipwise ")]
    assert len(commands) >= 5
    group = get_command(app)
    for name, *words in commands:
        words = [w for w in words if w != "..."]
        group.commands[name].make_context(name, words or ["x"], resilient_parsing=False)


def test_the_recipe_and_the_change_that_it_shows_are_valid() -> None:
    recipe = load_recipe("recipes/llama-7b-16k-linear.yaml", parse_changes(["training.learning_rate=1e-5"]))
    assert recipe.training.learning_rate == 1e-5

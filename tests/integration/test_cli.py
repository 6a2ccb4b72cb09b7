"""The other commands, and how quickly they start."""

from pathlib import Path

import pytest

from skipwise.recipes.loading import dump_recipe, load_recipe
from tests.command_line import refused, run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_run_that_the_machine_cannot_hold_is_refused_before_work_and_planned_all_the_same(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    model, text = checkpoint(tmp_path / "base", window=64), corpus(tmp_path / "text", documents=8, words=1500)
    settings = ["--set", "data.held_out=0.4", "--set", "evaluation.num_prompts=0"]
    words = ["extend", model, "--target", "128", "--data", text, *settings, "--out", tmp_path / "run"]
    for part in ("training.plan", "evaluation.evaluate"):
        with monkeypatch.context() as small:
            small.setattr(f"skipwise.{part}.machine_memory", lambda device: 1000)
            refused(small, capsys, *words)
            run(small, *words, "--dry-run")
            assert "not on this machine" in " ".join(capsys.readouterr().out.split())
        assert not (tmp_path / "run").exists()


def test_what_is_missing_is_refused_by_name(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unsaved").mkdir()
    dump_recipe(load_recipe("nano", {}), tmp_path / "unsaved" / "recipe.yaml")
    for words, named in (
        (["extend", "--recipe", "llama-7b-16", "--dry-run"], "llama-7b-16k"),
        (["extend", "--resume"], "--resume"),
        (["report", "nowhere"], "nowhere"),
        (["evaluate", "nope"], "nope"),
        (["extend", "./unsave"], "unsaved"),
        (["evaluate", "unsaved"], "--resume"),
    ):
        assert named in refused(monkeypatch, capsys, *words)

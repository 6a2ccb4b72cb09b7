"""The other commands, and how quickly they start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_extend import refused, run
from tests.tiny import checkpoint, corpus

HEAVY = ("torch", "transformers", "matplotlib", "datasets", "pandas")


@pytest.mark.parametrize("words", [["--help"], ["extend", "--help"], ["coverage", "--chunks", "2"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys\nfrom skipwise.cli import main\nsys.argv = ['skipwise', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"found = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_coverage_prints_the_papers_plateau(monkeypatch, capsys, tmp_path: Path) -> None:
    run(monkeypatch, "coverage", "--original", "2k", "--target", "16k", "--chunks", "2")
    printed = capsys.readouterr().out
    assert "closed form" in printed
    assert f"{2047 / 14337:.4f}" in printed
    run(monkeypatch, "coverage", "--chunks", "3", "--samples", "300", "--figure", tmp_path / "c.svg")
    assert "Monte Carlo" in capsys.readouterr().out
    assert (tmp_path / "c.svg").stat().st_size > 1000


def test_perplexity_and_passkey_are_commands_of_their_own(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    model = checkpoint(tmp_path / "base", window=64)
    text = corpus(tmp_path / "text", documents=4)
    words = ["--windows", "64,128", "--stride", "32", "--documents", "2", "--out", tmp_path / "r.jsonl"]
    run(monkeypatch, "perplexity", model, "--data", text, *words)
    run(monkeypatch, "passkey", model, "--lengths", "512", "--trials", "2", "--out", tmp_path / "r.jsonl")
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 3
    message = refused(monkeypatch, capsys, "passkey", model, "--lengths", "64", "--trials", "1")
    assert "64" in message
    assert "'2x' is not a length" in refused(monkeypatch, capsys, "passkey", model, "--lengths", "2x")


def test_missing_runs_and_recipes_are_explained(monkeypatch, capsys, tmp_path: Path) -> None:
    message = refused(monkeypatch, capsys, "extend", "--recipe", "llama-7b-16k-linea", "--dry-run")
    assert "did you mean llama-7b-16k-linear?" in message
    assert "nowhere" in refused(monkeypatch, capsys, "report", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    assert "no run of this recipe" in refused(monkeypatch, capsys, "extend", "--resume")

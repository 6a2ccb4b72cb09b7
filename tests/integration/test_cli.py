"""The other commands, and how quickly they start."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import skipwise
from skipwise.cli.terminal import prepare_process
from skipwise.data.text import is_held_out
from skipwise.recipes.loading import dump_recipe, load_recipe
from skipwise.results.records import read_records
from skipwise.results.run_folder import RunFolder
from tests.command_line import refused, run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("undrawn")
HEAVY = ("torch", "transformers", "matplotlib", "datasets", "pandas")


@pytest.mark.parametrize("words", [["--help"], ["extend", "--help"], ["evaluate", "--help"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys\nfrom skipwise.cli import main\nsys.argv = ['skipwise', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"found = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["extend"], ["plan"], ["evaluate"], ["check"], ["export"]])
def test_a_mistyped_model_folder_is_refused_before_anything_heavy_is_imported(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({HEAVY}))\n"  # an import of one of them fails
        "from skipwise.cli import main\nsys.argv = ['skipwise', *sys.argv[1:]]\nmain()\n"
    )
    words = [sys.executable, "-c", script, *words, str(tmp_path / "lama")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"skipwise: there is no folder {tmp_path / 'lama'} (did you mean {tmp_path / 'llama'}?)"
    )


def test_of_the_standard_library_only_held_out_modules_are_read(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    files = [(path.name, path) for path in corpus(tmp_path / "text", documents=30).iterdir()]
    monkeypatch.setattr("skipwise.data.text._stdlib_files", lambda: files)  # stands for hundreds of modules
    model = checkpoint(tmp_path / "base", window=64)
    run(monkeypatch, "evaluate", model, "--only", "perplexity", "--out", tmp_path / "e")
    held_out = {name for name, _ in files if is_held_out(name, 0.1)}
    assert {r.document for r in read_records(tmp_path / "e" / "results.jsonl")} == held_out != set()


def test_of_deepspeed_only_what_is_of_use_is_shown() -> None:
    new_names = ("Setting accelerator to CPU. If you have GPU ...", "optimizer state is not found")
    prepare_process()
    records = [logging.LogRecord("DeepSpeed", logging.WARNING, "", 0, text, None, None) for text in new_names]
    assert [bool(logging.getLogger("DeepSpeed").filter(record)) for record in records] == [False, True]


def test_missing_runs_and_recipes_are_explained(monkeypatch, capsys, tmp_path: Path) -> None:
    message = refused(monkeypatch, capsys, "extend", "--recipe", "llama-7b-16", "--dry-run")
    assert "did you mean llama-7b-16k?" in message
    assert "nowhere" in refused(monkeypatch, capsys, "report", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    assert "no run of this recipe" in refused(monkeypatch, capsys, "extend", "--resume")


def test_a_run_that_the_machine_cannot_hold_is_refused_before_work_and_planned_all_the_same(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    model, text = checkpoint(tmp_path / "base", window=64), corpus(tmp_path / "text", documents=8, words=1500)
    settings = ["--set", "method=null", "--set", "data.held_out=0.4", "--set", "evaluation.prompt_trials=0"]
    words = ["extend", model, "--target", "128", "--data", text, *settings, "--out", tmp_path / "run"]
    has = {"training": 10**12, "measuring": 10**12}
    monkeypatch.setattr("skipwise.training.cost.machine_memory", lambda device: has["training"])
    monkeypatch.setattr("skipwise.evaluation.measure.machine_memory", lambda device: has["measuring"])
    for lacking, said in (("training", "1.0 kB are there; choose --lora"), ("measuring", "windows of 128 tokens take")):
        has |= {"training": 10**12, "measuring": 10**12, lacking: 1000}
        assert said in refused(monkeypatch, capsys, *words)
        assert not (tmp_path / "run").exists()
        run(monkeypatch, *words, "--dry-run")
        printed = " ".join(capsys.readouterr().out.split())
        assert "not on this machine: " in printed
        assert said in printed
        assert "example 0: positions" in printed
    has |= {"training": 1000, "measuring": 10**12}
    run(monkeypatch, *words, "--dry-run", "--launch", "ddp", "--processes", "2")
    assert "not on this machine" not in capsys.readouterr().out  # of several processes nothing is certain


def test_names_in_brackets_are_printed_as_they_are(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "m[" / "x]", window=64)
    corpus(tmp_path / "text[b]", documents=2)
    folder = tmp_path / "r[v2]:smile:"
    words = ["--lengths", "64", "--tasks", "none", "--out", folder]
    run(monkeypatch, "evaluate", "m[/x]", "--data", "text[b]", *words)
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    run(monkeypatch, "report", folder)
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out


def test_a_missing_model_is_said_to_be_missing(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    assert "model 'nope' is neither nano nor smollm2, nor a folder" in refused(monkeypatch, capsys, "evaluate", "nope")


def test_a_run_folder_stands_for_its_model(monkeypatch, capsys, tmp_path: Path) -> None:
    wide = str(checkpoint(tmp_path / "run" / "model"))
    for name in (tmp_path / "run", wide):  # the same command: the second goes on with the first's folder
        run(monkeypatch, "evaluate", name, "--base", "none", "--tasks", "passkey", "--documents", "0",
            "--lengths", "512", "--trials", "1", "--out", tmp_path / "evaluation")  # fmt: skip
    assert RunFolder(tmp_path / "evaluation").read()["evaluation"]["models"][0]["label"] == "run"


def test_a_run_that_has_saved_no_model_is_said(monkeypatch, capsys, tmp_path: Path) -> None:
    dump_recipe(load_recipe("nano", {}), tmp_path / "recipe.yaml")
    message = refused(monkeypatch, capsys, "evaluate", tmp_path)
    assert str(tmp_path) in message
    assert "--resume" in message


def test_a_second_text_is_refused(monkeypatch, capsys) -> None:
    message = " ".join(refused(monkeypatch, capsys, "extend", "--data", "a", "--data", "b", "--dry-run").split())
    assert "--data is given 2 times (a, b), and a run reads one source: put the files" in message


def test_a_resumed_run_takes_its_own_recipe_and_the_changes(monkeypatch, tmp_path: Path) -> None:
    run_recipe = load_recipe("nano", {"target": "1k", "seed": 7})
    dump_recipe(run_recipe, tmp_path / "recipe.yaml")
    seen = []
    monkeypatch.setattr("skipwise.extend.extend", lambda recipe, **_: seen.append(recipe))
    run(monkeypatch, "extend", "--resume", "--out", tmp_path, "--set", "evaluation.windows=[256, 512]")
    changed = run_recipe.evaluation.model_copy(update={"windows": [256, 512]})
    assert seen == [run_recipe.model_copy(update={"evaluation": changed})]


def test_ctrl_c_is_told_what_goes_on(monkeypatch, capsys) -> None:
    def stop(*args, **kwargs) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skipwise.extend.extend", stop)
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "extend")
    assert end.value.code == 130
    assert "--resume goes on" in capsys.readouterr().err


def test_the_version_is_printed(monkeypatch, capsys) -> None:
    run(monkeypatch, "--version")
    assert capsys.readouterr().out == f"skipwise {skipwise.__version__}\n"

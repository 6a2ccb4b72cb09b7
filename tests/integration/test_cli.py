"""The other commands, and how quickly they start."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import skipwise
from skipwise.cli.terminal import prepare_process
from skipwise.data.text import is_held_out
from skipwise.model.config import load_config
from skipwise.model.memory import parameters_of, token_bytes
from skipwise.recipes.loading import dump_recipe, load_recipe
from skipwise.results.records import read_records
from skipwise.results.run_folder import RunFolder
from tests.command_line import refused, run
from tests.measured import ORIGINAL, POSE, run_folder
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("undrawn")
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


@pytest.mark.parametrize("words", [["extend"], ["plan"], ["evaluate"], ["perplexity"], ["check"], ["export"]])
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
    passkeys = ["passkey", model, "--lengths", "512", "--trials", "2", "--out", tmp_path / "r.jsonl"]
    run(monkeypatch, "perplexity", model, "--data", text, *words)
    run(monkeypatch, *passkeys)
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2 * 2 + 2
    first = capsys.readouterr().out
    monkeypatch.setattr("skipwise.evaluation.models.EvaluatedModel.load", None)  # what is there is not measured again
    run(monkeypatch, "perplexity", model, "--data", text, *words)
    assert capsys.readouterr().out.split("95% interval")[1].strip() in first
    run(monkeypatch, *passkeys)
    (tmp_path / "parts").mkdir()
    (tmp_path / "r.jsonl").replace(tmp_path / "parts" / "results.jsonl")
    assert "skipwise evaluate makes a page" in refused(monkeypatch, capsys, "report", tmp_path / "parts")
    monkeypatch.undo()
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    message = refused(monkeypatch, capsys, "passkey", model, "--lengths", "64", "--trials", "1")
    assert "64" in message
    assert "'2x' is not a length" in refused(monkeypatch, capsys, "passkey", model, "--lengths", "2x")


def test_perplexity_reads_whole_documents_unless_it_is_told_how_much(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    model = checkpoint(tmp_path / "base", window=64)
    text = corpus(tmp_path / "text", documents=2)
    lengths = sorted(len((text / f"document-{i}.txt").read_bytes()) for i in range(2))  # a token a byte
    run(monkeypatch, "perplexity", model, "--data", text, "--out", tmp_path / "whole.jsonl")
    whole = read_records(tmp_path / "whole.jsonl")
    assert {r.window for r in whole} == {64}  # the model's own length
    read = sorted(r.tokens for r in whole)
    assert [tokens - length for tokens, length in zip(read, lengths, strict=True)] in ([0, 0], [-1, -1])
    words = ["--tokens-per-document", "100", "--out", tmp_path / "cut.jsonl"]
    run(monkeypatch, "perplexity", model, "--data", text, *words)
    assert {r.tokens for r in read_records(tmp_path / "cut.jsonl")} == {99}


def test_of_the_standard_library_only_held_out_modules_are_read(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    files = [(path.name, path) for path in corpus(tmp_path / "text", documents=30).iterdir()]
    monkeypatch.setattr("skipwise.data.text._stdlib_files", lambda: files)  # stands for hundreds of modules
    run(monkeypatch, "perplexity", checkpoint(tmp_path / "base", window=64), "--out", tmp_path / "r.jsonl")
    assert "documents are read to measure; the others are for training, by their text" in " ".join(
        capsys.readouterr().out.split()
    )
    held_out = {name for name, _ in files if is_held_out(name, 0.1)}
    assert {r.document for r in read_records(tmp_path / "r.jsonl")} == held_out != set()


def test_a_record_that_was_cut_off_is_said_once_in_one_sentence(monkeypatch, capsys, tmp_path: Path) -> None:
    results = run_folder(tmp_path / "run", [*ORIGINAL, *POSE]) / "results.jsonl"
    with results.open("a") as file:
        file.write('{"kind": "tri')
    run(monkeypatch, "report", tmp_path / "run")
    printed = capsys.readouterr()
    assert " ".join(printed.out.split()).count(f"{results}: the last line was cut off by a kill and is left out") == 1
    assert "warn" not in printed.err


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
    monkeypatch.setattr("skipwise.evaluation.runner.machine_memory", lambda device: has["measuring"])
    for lacking, said in (
        ("training", "1.0 kB are there; choose --lora"),
        ("measuring", "windows of 128 tokens do not fit"),
    ):
        has |= {"training": 10**12, "measuring": 10**12, lacking: 1000}
        assert said in refused(monkeypatch, capsys, *words)
        assert not (tmp_path / "run").exists()
        run(monkeypatch, *words, "--dry-run")
        printed = " ".join(capsys.readouterr().out.split())
        assert "not on this machine: " in printed
        assert said in printed
        assert "example 0: positions" in printed
    # Prompts are not asked, windows fit, and one segment does not: its setting is named, and no window.
    each = token_bytes(load_config(str(model)), 4, cached=False)
    has |= {"training": 10**12, "measuring": 4 * parameters_of(load_config(str(model))) + 200 * each}
    segments = ["--set", "evaluation.segment_lengths=[64, 256]", "--set", "training.precision=float32"]
    assert "segments of 256 tokens do not fit" in (told := refused(monkeypatch, capsys, *words, *segments))
    assert "--set 'evaluation.segment_lengths=[64]'" in told
    has |= {"training": 1000, "measuring": 10**12}
    run(monkeypatch, *words, "--dry-run", "--launch", "ddp", "--processes", "2")
    assert "not on this machine" not in capsys.readouterr().out  # of several processes nothing is certain


def test_coverage_says_how_it_was_computed_and_what_it_cannot_draw(monkeypatch, capsys, tmp_path: Path) -> None:
    run(monkeypatch, "coverage", "--chunks", "3", "--samples", "1")
    assert "Monte Carlo" in capsys.readouterr().out
    for words, rule in (
        (["--scheme", "foo"], "choose one of pose, randpos"),
        (["--lengths", "foo"], "choose one of paper, released"),
        (["--lengths", "released", "--chunks", "1"], "needs 2 chunks, not 1"),
        (["--skips", "end_anchored", "--chunks", "1"], "needs 2 chunks, not 1"),
        (["--target", "1000000000"], "1,000,000,000"),
        (["--figure", tmp_path / "c.jpg"], "must end in .svg or .png"),
        (["--figure", Path(__file__) / "c.svg"], "cannot be written"),
    ):
        assert rule in refused(monkeypatch, capsys, "coverage", *words)


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
    for command in ("perplexity", "passkey"):
        assert "model 'nope' is neither nano nor smollm2, nor a folder" in refused(monkeypatch, capsys, command, "nope")


def test_a_run_folder_stands_for_its_model(monkeypatch, capsys, tmp_path: Path) -> None:
    wide = str(checkpoint(tmp_path / "run" / "model"))
    for name in (tmp_path / "run", wide):  # the same command: the second goes on with the first's folder
        run(monkeypatch, "evaluate", name, "--base", "none", "--tasks", "passkey", "--documents", "0",
            "--lengths", "512", "--trials", "1", "--out", tmp_path / "evaluation")  # fmt: skip
    assert RunFolder(tmp_path / "evaluation").read()["evaluation"]["models"][0]["label"] == "run"
    assert "one is named twice" in refused(monkeypatch, capsys, "evaluate", wide, tmp_path / "run")


def test_a_run_that_has_saved_no_model_is_said(monkeypatch, capsys, tmp_path: Path) -> None:
    dump_recipe(load_recipe("nano", {}), tmp_path / "recipe.yaml")
    message = refused(monkeypatch, capsys, "perplexity", tmp_path)
    assert f"{tmp_path} is a run folder without a model yet: finish the run with skipwise extend --resume" in message


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
    monkeypatch.setattr("skipwise.method.coverage.coverage", stop)
    for words, said in ((["extend"], "--resume goes on"), (["coverage"], "stopped")):
        with pytest.raises(SystemExit) as end:
            run(monkeypatch, *words)
        assert end.value.code == 130
        printed = capsys.readouterr().err
        assert said in printed
        assert ("--resume" in printed) == (words == ["extend"])


def test_thousands_separators_in_lists_are_refused(monkeypatch, capsys) -> None:
    message = refused(monkeypatch, capsys, "perplexity", "nano", "--windows", "2,048,4,096")
    assert "'2,048,4,096' is no list of lengths: write them without separators" in message


def test_the_version_is_printed(monkeypatch, capsys) -> None:
    run(monkeypatch, "--version")
    assert capsys.readouterr().out == f"skipwise {skipwise.__version__}\n"

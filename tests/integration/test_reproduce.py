"""``python -m reproduction`` as users run it: each arm is trained once, pages come from records, a killed run goes on."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from reproduction.__main__ import main
from reproduction.exhibits import EXHIBITS
from skipwise.data.text import is_held_out
from skipwise.results.records import read_records
from tests import command_line
from tests.tiny import checkpoint, corpus

SMALL = {
    "method": "null",
    "data.held_out": 0.3,
    "data.passkey": 0,
    "training.max_steps": 2,
    "training.batch_size": 8,
    "training.per_device_train_batch_size": 4,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[256, 512]",
    "evaluation.segment_lengths": "[512]",
    "evaluation.prompt_trials": 0,
}


pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
run = partial(command_line.run, program=str(Path(__file__).parents[2] / "reproduction" / "__main__.py"), main=main)
refused = partial(command_line.refused, program="reproduction", main=main)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    settings = {
        **SMALL,
        "model": checkpoint(tmp_path / "base", window=256),
        "data.source": corpus(tmp_path / "text", documents=16, words=500),
        "data.min_tokens": 300,
        "evaluation.source": tmp_path / "text",
    }
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["--out", str(tmp_path / "out"), *changes]


def test_arms_are_trained_once_and_shared(words, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "content", "--dry-run", *words)
    assert capsys.readouterr().out.count("missing, 1 min") == 3
    run(monkeypatch, "content", *words)
    printed = capsys.readouterr().out
    assert "1 of 3: linear, 8x, v uniform, seed 0" in printed
    assert "🌆" not in printed  # which rich prints for a figure
    assert "1 min left at most" in printed
    table = (tmp_path / "out" / "content.md").read_text()
    assert "| v = 0 |" in table
    assert "| perplexity at positions, " in table
    assert "- v = u at most 1.03 x v uniform, at every length: holds" in table
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "| v = u at most 1.03 x v uniform, at every length | linear, 8x | – | [content](content.md) |" in page
    assert "3 models trained in" in page
    arms = sorted((tmp_path / "out" / "arms").iterdir())
    assert len(arms) == 3
    assert not any((arm / "checkpoints").exists() for arm in arms)
    facts = json.loads((arms[0] / "run.json").read_text())
    assert facts["command"].startswith("python -m reproduction content ")
    measured = facts["evaluation"]["documents"]
    assert measured
    assert all(is_held_out(name, 0.3) for names in measured.values() for name in names)
    before = [(arm / "results.jsonl").read_bytes() for arm in arms]
    run(monkeypatch, "content", *words)
    assert [(arm / "results.jsonl").read_bytes() for arm in arms] == before
    run(monkeypatch, "content", "--dry-run", *words)
    assert capsys.readouterr().out.count("trained  ") == 3
    kinds = {record.kind for record in read_records(arms[0] / "results.jsonl")}
    assert kinds == {"training", "reading", "coverage"}


def test_what_is_measured_needs_its_model_no_more(words, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "content", *words)
    arms = sorted((tmp_path / "out" / "arms").iterdir())
    before = [(arm / "results.jsonl").read_bytes() for arm in arms]
    for arm in arms:
        shutil.rmtree(arm / "model")
    table = (tmp_path / "out" / "content.md").read_bytes()
    capsys.readouterr()
    run(monkeypatch, "content", "--dry-run", *words)
    assert "missing" not in capsys.readouterr().out
    run(monkeypatch, "content", *words)
    assert [(arm / "results.jsonl").read_bytes() for arm in arms] == before
    assert not any((arm / "model").exists() for arm in arms)
    assert (tmp_path / "out" / "content.md").read_bytes() == table


def test_a_stopped_reproduction_goes_on(words, monkeypatch, capsys, tmp_path) -> None:
    from reproduction import measured, reproduce

    calls = []

    def stop_at_the_second(made, *rest):
        calls.append(made)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured.make(made, *rest)

    monkeypatch.setattr(reproduce, "make", stop_at_the_second)
    with pytest.raises(SystemExit):
        run(monkeypatch, "content", *words)
    assert "what is done is not done again" in capsys.readouterr().err
    (first,) = (tmp_path / "out" / "arms").iterdir()
    before = (first / "results.jsonl").read_bytes()
    monkeypatch.setattr(reproduce, "make", measured.make)
    run(monkeypatch, "content", *words)
    assert (first / "results.jsonl").read_bytes() == before
    assert len(list((tmp_path / "out" / "arms").iterdir())) == 3


def test_perplexity_by_step_comes_from_training_itself(words, monkeypatch, tmp_path) -> None:
    from reproduction import costs

    monkeypatch.setattr(costs, "FACTORS", (2,))
    monkeypatch.setattr(costs, "_ROUNDS", {"pose": 1, "full": 1})
    monkeypatch.setattr(costs, "in_own_process", lambda function, *args: function(*args))
    run(monkeypatch, "efficiency", *words, "--set", "evaluation.steps=[1, 2]")
    text = (tmp_path / "out" / "efficiency.md").read_text()
    assert "| perplexity after steps | 1 | 2 | paper 10 |" in text
    assert "| seconds a step, target | 512 |" in text
    for arm in (tmp_path / "out" / "arms").iterdir():
        records = read_records(arm / "results.jsonl")
        readings = [r for r in records if r.kind == "reading" and r.mode == "sliding" and r.window == 512]
        (last,) = [r for r in readings if r.step == 2]
        (final,) = [r for r in readings if r.step is None]
        assert last.nll == pytest.approx(final.nll, rel=1e-6)
        assert (last.tokens, last.document) == (final.tokens, final.document)
    assert (tmp_path / "out" / "figures" / "efficiency-time.svg").exists()


def test_notes_stand_under_their_exhibit(words, monkeypatch, capsys, tmp_path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("Of the whole.\n\n## coverage\n\nOf coverage.\n")
    out = tmp_path / "out"
    run(monkeypatch, "coverage", "--out", str(out), "--notes", str(notes))
    page = (out / "reproduction.md").read_text()
    assert page.startswith("# The paper's tables, run here\n\nOf the whole.\n\n## What holds")
    assert "| [coverage](coverage.md) | Which relative distances one example trains | Figure 5 | 8 of 8 |" in page
    text = (out / "coverage.md").read_text()
    assert "example trains\n\nOf coverage.\n\nThe paper's Figure 5." in text
    assert "- end-anchored: the same chance from 256 to 2,047, to 2%: holds" in text
    notes.write_text("## coverag\n")
    assert "'coverag' is no section; there are main, " in refused(
        monkeypatch, capsys, "coverage", "--notes", str(notes)
    )
    assert "notes missing.md cannot be read" in refused(monkeypatch, capsys, "coverage", "--notes", "missing.md")


def test_what_cannot_be_reproduced_is_explained(words, monkeypatch, capsys) -> None:
    assert "exhibit 'contnet' is unknown (did you mean content?)" in refused(monkeypatch, capsys, "contnet", *words)
    assert "scale 'papre' is unknown (did you mean paper?); choose one of nano, paper" in refused(
        monkeypatch, capsys, "main", "--scale", "papre"
    )


def test_no_seed_is_refused(words, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "content", "--seeds", "0", *words)
    assert end.value.code == 2
    assert "--seeds" in capsys.readouterr().err


def test_the_list_names_every_exhibit_and_its_time(monkeypatch, capsys) -> None:
    monkeypatch.setattr("reproduction.reproduce.total_seconds", lambda runs, model: 100.0)
    monkeypatch.setenv("COLUMNS", "80")
    run(monkeypatch)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 2 * len(EXHIBITS)  # few rows take more than one line
    for name in EXHIBITS:
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{name} ")]
        assert line.rstrip().endswith((" min", " h"))


def test_the_papers_scale_is_planned_without_its_models(monkeypatch, capsys) -> None:
    run(monkeypatch, "main", "coverage", "--scale", "paper", "--dry-run")
    printed = capsys.readouterr().out
    assert "main: llama-7b; trained on monology/pile-uncopyrighted, documents of 2,048 tokens or more" in printed
    assert "linear, 8x, pose" in printed
    assert "coverage: nothing is trained" in printed


def test_arms_and_settings_are_chosen_by_name(words, monkeypatch, capsys) -> None:
    run(monkeypatch, "main", "content", "--arm", "pose", "--setting", "linear, 16x", "--dry-run", *words)
    assert "linear, 16x, pose, seed 0" in capsys.readouterr().out
    run(monkeypatch, "families", "--setting", "GPT-J", "--dry-run", *words)  # whose base is not trained yet
    assert "GPT-J, linear, seed 0" in capsys.readouterr().out
    asked = ("main", "--dry-run", *words)
    assert "arm 'posse' is in none of these exhibits (did you mean pose?); there are 'original'" in refused(
        monkeypatch, capsys, *asked, "--arm", "posse"
    )
    assert "setting 'linear, 9x' is in none of these exhibits (did you mean linear, 8x?)" in refused(
        monkeypatch, capsys, *asked, "--setting", "linear, 9x"
    )


def test_text_too_short_is_said_before_any_training(words, monkeypatch, capsys, tmp_path) -> None:
    text = corpus(tmp_path / "long", documents=6, words=500)
    asked = [
        *words,
        "--set",
        f"data.source={text}",
        "--set",
        f"evaluation.source={text}",
        "--set",
        "data.held_out=0.2",
        "--set",
        "training.batch_size=16",
    ]
    told = refused(monkeypatch, capsys, "main", "content", *asked, "--set", "data.min_tokens=300")
    assert (
        "main, linear, 16x: of 6 documents none of 4,096 tokens or more is left to train on after holding out 1; the longest are document-"
        in told
    )
    assert told.rstrip().endswith("This text is long enough for: main --setting 'linear, 8x'; content")
    assert not (tmp_path / "out").exists()


def test_a_base_of_another_window_is_measured_at_its_own_multiples(words, monkeypatch, capsys, tmp_path) -> None:
    other = ["--set", f"model={checkpoint(tmp_path / 'other', window=128)}"]
    run(monkeypatch, "content", "--dry-run", *words)
    assert "are written for" not in capsys.readouterr().out
    run(monkeypatch, "content", "--dry-run", *words, *other)
    said = " ".join(capsys.readouterr().out.split())
    assert "has a window of 128 tokens, and the exhibits are written for 256" in said
    assert "8x is 1,024" in said


def test_the_page_is_made_of_what_is_there(words, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "content", "--page-only", *words)
    assert (tmp_path / "out" / "reproduction.md").read_text().startswith("# The paper's tables, run here")
    assert not (tmp_path / "out" / "arms").exists()


def test_changed_text_is_refused_and_not_mixed(words, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "content", *words)
    for file in (tmp_path / "text").iterdir():
        file.write_text(file.read_text().swapcase())
    assert "has changed since" in refused(monkeypatch, capsys, "content", *words)


def test_changed_training_text_is_refused_where_the_arm_is_finished(words, monkeypatch, capsys, tmp_path) -> None:
    other = ["--set", f"evaluation.source={corpus(tmp_path / 'other', documents=3, words=501)}"]
    command = ["content", "--arm", "v = 0", *words, *other]
    run(monkeypatch, *command)
    (tmp_path / "text" / "more.txt").write_text("the sky is blue " * 200)
    assert "the training text has changed since" in refused(monkeypatch, capsys, *command)


def test_the_page_shows_what_earlier_commands_made_and_leaves_out_what_is_in_part(words, monkeypatch, tmp_path) -> None:
    run(monkeypatch, "content", *words)
    run(monkeypatch, "coverage", *words)
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "[content](content.md)" in page
    assert "[coverage](coverage.md)" in page
    cut = next((tmp_path / "out" / "arms").iterdir()) / "results.jsonl"
    lines = cut.read_text().splitlines(keepends=True)
    cut.write_text("".join(line for line in lines if '"mode": "segment"' not in line))
    run(monkeypatch, "content", "--page-only", *words)
    assert "not measured" in (tmp_path / "out" / "content.md").read_text()


def test_the_published_pages_take_no_other_option(monkeypatch, capsys) -> None:
    told = refused(monkeypatch, capsys, "all", "--page-only", "--seeds", "2")
    assert "--seeds does not apply to the published pages" in told
    assert "--arm needs the name of an exhibit, or all" in refused(monkeypatch, capsys, "--arm", "pose")


def test_pages_of_published_records_are_written_beside_them(monkeypatch, tmp_path) -> None:
    from reproduction import reproduce
    from skipwise.cli.terminal import new_console

    reproduce.publish_pages(["content"], new_console(), tmp_path)
    page = (tmp_path / "reproduction.md").read_text()
    assert "[content](reproduction/content.md)" in page
    assert (tmp_path / "reproduction" / "figures" / "content-linear-8x-perplexity.svg").exists()
    assert not list((tmp_path / "reproduction" / "figures").glob("*.png"))


def test_the_module_runs_from_a_checkout() -> None:
    told = subprocess.run([sys.executable, "-m", "reproduction", "--help"], capture_output=True, text=True, check=True)
    assert "--page-only" in told.stdout

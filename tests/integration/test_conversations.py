"""Short conversations, by the real command: packed, trained, measured on other text."""

import json
from pathlib import Path

import pytest

from skipwise.data.tokenising import build_token_store
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data
from skipwise.results.records import ReadingRecord, TrainingRecord, read_records
from tests.command_line import refused, run
from tests.integration.test_extend import command
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    with open(tmp_path / "chat.jsonl", "w") as file:
        for number in range(40):
            turns = [("user", f"What is {number} and {number}?"), ("assistant", f"It is {2 * number}.")] * (
                1 + number % 4
            )
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
    return tmp_path / "chat.jsonl"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = checkpoint(tmp_path / "base", window=400)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def test_short_conversations_are_packed_and_trained(
    tmp_path: Path, base: Path, chat: Path, monkeypatch, capsys
) -> None:
    text, out = corpus(tmp_path / "text", documents=24, words=200), tmp_path / "out"
    store = build_token_store(Data(source=str(chat), cache=str(tmp_path / "cache")), load_tokenizer(str(base)))
    assert store.lengths.max() < 400
    changes = {"evaluation.source": f"[{text}]", "data.assistant_only": True, "data.passkey": 0.0}
    run(monkeypatch, *command(base, chat, out, **changes))
    printed = " ".join(capsys.readouterr().out.split())
    assert "under 400 tokens" in printed
    assert "positions could skip" not in printed
    records = list(read_records(out / "results.jsonl"))
    assert [record.step for record in records if isinstance(record, TrainingRecord)] == [1, 2, 3, 4]
    assert any(isinstance(record, ReadingRecord) for record in records)


def test_conversations_of_one_turn_are_said_to_train_no_far_position(
    tmp_path: Path, base: Path, monkeypatch, capsys
) -> None:
    text, chat = corpus(tmp_path / "text", documents=24, words=200), tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "What is one and one?"}, {"role": "assistant", "content": "It is two."}]
    chat.write_text(f"{json.dumps({'messages': turns})}\n" * 40)
    changes = {"evaluation.source": f"[{text}]", "data.assistant_only": True, "data.passkey": 0.0}
    run(monkeypatch, *command(base, chat, tmp_path / "out", "--dry-run", **changes))
    printed = " ".join(capsys.readouterr().out.split())
    assert "None of them has a turn of the assistant before its last, where positions could skip" in printed


def test_long_conversations_train_their_short_answers(tmp_path: Path, base: Path, monkeypatch, capsys) -> None:
    text, out, chat = corpus(tmp_path / "text", documents=24, words=200), tmp_path / "out", tmp_path / "chat.jsonl"
    with open(chat, "w") as file:
        for number in range(12):
            turns = [("user", f"The ferry of day {number} leaves at nine. " * 80 + "When?"), ("assistant", "At nine.")]
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
        silent = [{"role": "user", "content": "word " * 400}, {"role": "assistant", "content": ""}]
        file.write(json.dumps({"messages": silent}) + "\n")
    changes = {"evaluation.source": f"[{text}]", "data.assistant_only": True, "data.passkey": 0.0, "train_length": 64}
    run(monkeypatch, *command(base, chat, out, **changes, **{"training.max_steps": 8}))
    assert "left out 1 document" in " ".join(capsys.readouterr().out.split())
    records = [record for record in read_records(out / "results.jsonl") if isinstance(record, TrainingRecord)]
    assert [record.step for record in records] == list(range(1, 9))
    assert all(record.loss > 0 for record in records)


def test_a_scheme_that_cannot_pack_says_what_to_set(
    tmp_path: Path, base: Path, chat: Path, monkeypatch, capsys
) -> None:
    message = refused(
        monkeypatch,
        capsys,
        *command(base, chat, tmp_path / "out", **{"positions.scheme": "cream", "evaluation.arms": "[trained]"}),
    )
    assert "can be packed under pose and short, not under cream; set data.min_tokens=400 to leave them out" in message

"""Short conversations, by the real command: packed, trained, measured on other text."""

import json
import re
from pathlib import Path

import pytest

from skipwise.data.store import build_token_store
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data
from skipwise.results.records import ReadingRecord, TrainingRecord, read_records
from tests.command_line import run
from tests.integration.test_extend import command
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")


def conversations(folder: Path, number: int, question: str, answer: str, turns: int = 1) -> Path:
    with open(folder / "chat.jsonl", "w") as file:
        for item in range(number):
            said = [("user", question.replace("#", str(item))), ("assistant", answer.replace("#", str(item)))] * turns
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")
    return folder / "chat.jsonl"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = checkpoint(tmp_path / "base", window=400)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def changes(tmp_path: Path) -> dict[str, object]:
    text = corpus(tmp_path / "text", documents=24, words=200)
    only = {"evaluation.models": "[trained]", "evaluation.num_prompts": 0, "evaluation.other_texts": "false"}
    return {"evaluation.source": f"[{text}]", "data.assistant_only_loss": True, **only}


def trained(out: Path) -> dict[int, float]:
    """The loss of each step."""
    records = read_records(out / "results.jsonl")
    return {record.step: record.loss for record in records if isinstance(record, TrainingRecord)}


def test_short_conversations_are_packed_and_trained(tmp_path: Path, base: Path, changes, monkeypatch) -> None:
    chat = conversations(tmp_path, 40, "What is # and #?", "It is # twice.", turns=3)
    store = build_token_store(Data(source=str(chat)), load_tokenizer(str(base)))
    assert store.lengths.max() < 400
    run(monkeypatch, *command(base, chat, tmp_path / "out", **changes))
    assert list(trained(tmp_path / "out")) == [1, 2, 3, 4]
    assert any(isinstance(record, ReadingRecord) for record in read_records(tmp_path / "out" / "results.jsonl"))


def test_long_conversations_train_their_short_answers(tmp_path: Path, base: Path, changes, monkeypatch, capsys) -> None:
    chat = conversations(tmp_path, 12, "The ferry of day # leaves at nine. " * 20 + "When?", "At nine.")
    silent = [{"role": "user", "content": "word " * 400}, {"role": "assistant", "content": ""}]
    with open(chat, "a") as file:
        file.write(json.dumps({"messages": silent}) + "\n")
    run(monkeypatch, *command(base, chat, tmp_path / "out", **changes, train_length=64))
    printed = " ".join(capsys.readouterr().out.split())
    assert "left out 1 document" in printed
    assert 0 < int(re.search(r"(\d+) of [\d,]+ tokens are trained", printed)[1]) <= 12 * len("At nine.\n")
    assert list(trained(tmp_path / "out")) == [1, 2, 3, 4]
    assert all(loss > 0 for loss in trained(tmp_path / "out").values())

"""``skipwise reproduce`` by the real command: each arm once, tables from the records, going on after a kill."""

from pathlib import Path

import pytest

from skipwise.results import read_records
from tests.integration.test_extend import refused, run
from tests.tiny import checkpoint, corpus

SMALL = {
    "data.held_out": 0.3,
    "data.passkey": 0,
    "training.max_steps": 2,
    "training.batch_size": 8,
    "training.per_device_train_batch_size": 4,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[256, 512]",
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    settings = {
        **SMALL,
        "model": checkpoint(tmp_path / "base", window=256),
        "data.source": corpus(tmp_path / "text", documents=16, words=500),
    }
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["--out", str(tmp_path / "out"), *changes]


def test_arms_are_trained_once_and_shared(words, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "reproduce", "content", "--dry-run", *words)
    assert capsys.readouterr().out.count("missing") == 3
    run(monkeypatch, "reproduce", "content", *words)
    printed = capsys.readouterr().out
    assert "1 of 3: yarn, 8x, v uniform, seed 0" in printed
    table = (tmp_path / "out" / "content.md").read_text()
    assert "| v = 0 |" in table
    assert "- v = u at most 1.03 x v uniform, at every length: holds" in table
    arms = sorted((tmp_path / "out" / "arms").iterdir())
    assert len(arms) == 3
    before = [(arm / "results.jsonl").read_bytes() for arm in arms]
    run(monkeypatch, "reproduce", "content", *words)
    assert [(arm / "results.jsonl").read_bytes() for arm in arms] == before
    run(monkeypatch, "reproduce", "content", "--dry-run", *words)
    assert capsys.readouterr().out.count("there") == 3
    assert all(
        record.kind in ("training", "perplexity", "coverage")
        for record in read_records(arms[0] / "results.jsonl")
    )


def test_what_cannot_be_reproduced_is_explained(words, monkeypatch, capsys) -> None:
    assert "exhibit 'contnet' is unknown (did you mean content?)" in refused(
        monkeypatch, capsys, "reproduce", "contnet", *words
    )


def test_no_seed_is_refused(words, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "reproduce", "content", "--seeds", "0", *words)
    assert end.value.code == 2
    assert "--seeds" in capsys.readouterr().err


def test_the_list_names_every_exhibit(monkeypatch, capsys) -> None:
    run(monkeypatch, "reproduce")
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("main", "interpolation", "passkey", "content", "chunks"))

"""Prompts through a server: the records of the local model, and errors."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from skipwise.errors import EvaluationError, RecipeError
from skipwise.evaluation.evaluate import evaluate
from skipwise.evaluation.server import connect
from skipwise.evaluation.specification import Specification, find_models
from skipwise.results.records import read_records
from tests.completions import serving
from tests.tiny import byte_tokenizer, checkpoint, llama

QUIET = Console(quiet=True)
WINDOW = 2048
ASKED = Specification(
    documents=0,
    windows=[WINDOW],
    stride=256,
    tasks=["passkey", "keys", "ruler:niah_single_1", "ruler:fwe"],
    prompt_lengths=[WINDOW],
    num_prompts=2,
)
PASSKEYS = ASKED.model_copy(update={"tasks": ["passkey"], "prompt_lengths": [500], "num_prompts": 6})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("model") / "m", window=WINDOW, tie_word_embeddings=False)


@pytest.fixture
def model(folder):
    return find_models([str(folder)], base="")[0]


@pytest.fixture
def served():
    with serving(llama(WINDOW, tie_word_embeddings=False), byte_tokenizer()) as one:
        yield one


@pytest.fixture(autouse=True)
def _without_key_or_delay(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)  # seconds before a repeated request


def measured(model, served, out: Path, specification: Specification = PASSKEYS, **how) -> Path:
    """Measure through the server; return the file of results."""
    server = connect(served.url, **how)
    rule = specification.model_copy(update={"server": server.engine})
    return evaluate([model], rule, server=server, out=out, console=QUIET).results


def answers(path: Path) -> dict:
    """Return the records by prompt, without time and engine."""
    return {(r.kind, r.task, r.length, r.trial): replace(r, seconds=0.0, precision="") for r in read_records(path)}


@pytest.mark.parametrize("ids", [True, False])
def test_a_server_gives_the_records_of_the_local_model(model, served, tmp_path, ids) -> None:
    served.tells_ids, served.window = ids, None if ids else WINDOW
    local = answers(evaluate([model], ASKED, out=tmp_path / "local", console=QUIET).results)
    results = measured(model, served, tmp_path / "remote", ASKED)
    remote, sent = answers(results), len(served.asked)
    assert answers(measured(model, served, tmp_path / "remote", ASKED)) == remote
    assert len(served.asked) == sent  # once
    assert len(local) == 8
    if ids:
        assert remote == local
    else:  # texts may go on
        for key in local:
            score = "hit" if key[0] == "trial" else "score"
            assert getattr(remote[key], score) == getattr(local[key], score)
    assert {r.precision for r in read_records(results)} == {"chosen by vllm 0.32.0"}


def test_the_key_is_sent_and_not_printed(model, served, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    served.disturb = lambda number: (401, b"Incorrect API key sk-hidden") if number else None
    with pytest.raises(EvaluationError) as refusal:
        measured(model, served, tmp_path)
    assert set(served.keys) == {"Bearer sk-hidden"}
    assert "hidden" not in str(refusal.value)


def test_addresses_and_protocols(served, monkeypatch) -> None:
    assert connect(f"{served.url}/v1/").url == connect(served.url).url == served.url
    for url in ("localhost:8000", "", "http://me:secret@localhost:8000"):
        with pytest.raises(RecipeError) as refusal:
            connect(url)
        assert "secret" not in str(refusal.value)
    for answer in ((200, b"<html>Welcome</html>"), (404, b"no page"), (200, b'{"data": []}')):  # another protocol
        served.get = lambda path, answer=answer: answer
        with pytest.raises(EvaluationError):
            connect(served.url)
    served.get = lambda path: (200, b'{"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]}')
    assert (connect(served.url).window, connect(served.url).engine) == (512, "llamacpp")
    monkeypatch.setattr("skipwise.evaluation.server.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="openai"):
        connect(served.url)


@pytest.mark.parametrize(
    "answer", [(400, b"too long"), (503, b"loading"), (200, b'{"choices": []}'), (200, b"\xff\xfe")]
)
def test_a_failing_server_keeps_finished_answers(model, served, tmp_path, answer) -> None:
    served.disturb = lambda number: answer if number >= 2 else None
    with pytest.raises(EvaluationError):
        measured(model, served, tmp_path, at_once=1)
    assert len(read_records(tmp_path / "results.jsonl")) == 2
    assert len(served.asked) == (5 if answer[0] == 503 else 3)
    gc.collect()  # the lock of the folder
    served.disturb = lambda number: (503, b"busy") if number in (5, 6) else None
    assert len({r.key for r in read_records(measured(model, served, tmp_path, at_once=1))}) == 6

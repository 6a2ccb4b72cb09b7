"""Prompts through a server: the records of the local model, and errors."""

import gc
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from skipwise.errors import EvaluationError, RecipeError
from skipwise.evaluation import server as server_module
from skipwise.evaluation.evaluate import evaluate
from skipwise.evaluation.retrieval import Question, Reader, as_far_as_needed
from skipwise.evaluation.retrieval import answers as answers_of
from skipwise.evaluation.server import connect
from skipwise.evaluation.specification import Specification, find_models
from skipwise.results.records import read_records
from tests.command_line import refused, run
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
    prompt_trials=2,
)
PASSKEYS = ASKED.model_copy(update={"tasks": ["passkey"], "prompt_lengths": [500], "prompt_trials": 6})


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
def _at_once(monkeypatch):
    monkeypatch.setattr(server_module, "_WAITS", (0.0, 0.0))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def measured(model, served, out: Path, specification: Specification = PASSKEYS, **how) -> Path:
    """Measure through the server; return the file of results."""
    server = connect(served.url, **how)
    rule = specification.model_copy(update={"server": server.engine})
    return evaluate([model], rule, server=server, out=out, console=QUIET).results


def answers(path: Path) -> dict:
    """Return the records by prompt, without time and engine."""
    return {(r.kind, r.task, r.length, r.trial): replace(r, seconds=0.0, precision="") for r in read_records(path)}


def settled(draft: list[int], characters: int) -> Question:
    """Make a question with a full score at so many characters."""
    return Question(list(range(70, 110)), draft, 24, lambda text: float(len(text) >= characters), settled=True)


@pytest.mark.parametrize("agreed", [0, 2, 9])
@pytest.mark.parametrize("full", [1, 4, 12])
def test_answers_are_cut_where_local_decoding_stops(agreed, full) -> None:
    model, tokenizer = llama(WINDOW, tie_word_embeddings=False), byte_tokenizer()
    prompt = settled([], 99).ids
    with torch.inference_mode():
        ids = Reader(model).go_on(prompt, Reader(model).begin(prompt, []), lambda written: len(written) == 24)
    question = settled([*ids[:agreed], 1], full)
    [ours] = answers_of(model, tokenizer, [question])
    kept = as_far_as_needed(0, question, ids, tokenizer, 0.0)
    assert kept == replace(ours, seconds=0.0)
    assert full <= len(kept.text) < len(tokenizer.decode(ids).strip())


@pytest.mark.parametrize(("window", "most"), [(None, 6), (46, 6), (45, 5), (41, 1)])
def test_answers_fit_the_window(served, window, most) -> None:
    served.window = window
    question = Question(list(range(40, 80)), [], 6, lambda text: 0.0)
    assert len(list(connect(served.url).answers(served.tokenizer, [question]))) == 1
    assert served.asked[0]["max_tokens"] == most


@pytest.mark.parametrize("ids", [True, False])
def test_a_server_gives_the_records_of_the_local_model(model, served, tmp_path, ids) -> None:
    served.tells_ids = ids
    local = answers(evaluate([model], ASKED, out=tmp_path / "local", console=QUIET).results)
    results = measured(model, served, tmp_path / "remote", ASKED)
    remote = answers(results)
    assert len(local) == 8
    if ids:
        assert remote == local
    else:  # texts may go on
        score = {key: "hit" if key[0] == "trial" else "score" for key in local}
        assert {key: getattr(remote[key], score[key]) for key in remote} == {
            key: getattr(local[key], score[key]) for key in local
        }
    assert {r.precision for r in read_records(results)} == {"chosen by vllm 0.32.0"}


def test_prompts_alone_need_no_local_weights_and_are_sent_once(model, served, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(type(model), "load", lambda *_: pytest.fail("loaded"))
    for _ in range(2):
        assert len(read_records(measured(model, served, tmp_path, at_once=3))) == 6
        assert len(served.asked) == 6


def test_at_most_so_many_requests_at_a_time(model, served, tmp_path) -> None:
    under_way, most, lock = 0, 0, threading.Lock()
    completed = served.post

    def counted(body):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        try:
            return completed(body)
        finally:
            with lock:
                under_way -= 1

    served.post = counted
    measured(model, served, tmp_path, at_once=2)
    assert most == 2


def test_the_key_is_sent_and_not_printed(model, served, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    served.disturb = lambda number: (401, b"Incorrect API key sk-hidden") if number else None
    with pytest.raises(EvaluationError, match="HTTP 401") as refusal:
        measured(model, served, tmp_path)
    assert set(served.keys) == {"Bearer sk-hidden"}
    assert "hidden" not in str(refusal.value)


def test_addresses(served) -> None:
    assert connect(f"{served.url}/v1/").url == connect(served.url).url == served.url
    for url in ("localhost:8000", "ftp://localhost", "http://", "", "http://me:secret@localhost:8000"):
        with pytest.raises(RecipeError) as refusal:
            connect(url)
        assert "secret" not in str(refusal.value)
    with serving(llama(), byte_tokenizer()) as gone:
        url = gone.url
    with pytest.raises(EvaluationError):
        connect(url)


@pytest.mark.parametrize(
    "answer", [(200, b"<html>Welcome</html>"), (404, b"no page"), (200, b'{"data": []}'), (200, b"[]")]
)
def test_another_protocol_is_refused(served, answer) -> None:
    served.get = lambda path: answer
    with pytest.raises(EvaluationError):
        connect(served.url)


def test_engine_and_window(served) -> None:
    served.get = lambda path: (200, b'{"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]}')
    assert (connect(served.url).window, connect(served.url).engine) == (512, "llamacpp")
    served.get = lambda path: (200, b'{"data": [{"id": "m", "meta": null}]}')
    assert (connect(served.url).window, connect(served.url).engine) == (None, "a server")


@pytest.mark.parametrize(
    "answer",
    [(400, b"too long"), (500, b""), (503, b"loading"), (200, b"{"), (200, b'{"choices": []}'), (200, b"\xff\xfe")],
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


def test_a_slow_server_is_refused(model, served, tmp_path) -> None:
    over = threading.Event()
    served.disturb = lambda number: (200, b"") if over.wait() else None
    try:
        with pytest.raises(EvaluationError, match="--server-timeout"):
            measured(model, served, tmp_path, timeout=0.2)
    finally:
        over.set()


def test_the_command_measures_here_only_what_is_given(folder, served, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--lengths", "500,600", "--trials", "1", "--tasks", "passkey", "--precision", "float32"]
    words += ["--server", served.url]
    run(monkeypatch, "evaluate", folder, *words)
    assert {r.kind for r in read_records(tmp_path / "evaluations" / "m" / "results.jsonl")} == {"trial"}
    base = checkpoint(tmp_path / "base", window=512)
    (tmp_path / "text.txt").write_text("What the model reads again until it ends here. " * 40)
    more = ["--documents", "1", "--data", "text.txt", "--base", base, "--original", "512", "--out", "e"]
    run(monkeypatch, "evaluate", folder, *words, *more)
    made = {(r.kind, r.arm, r.precision) for r in read_records(tmp_path / "e" / "results.jsonl")}
    assert made == {
        ("reading", "m", "float32"),
        ("reading", "base (base)", "float32"),
        ("trial", "m", "chosen by vllm 0.32.0"),
        ("trial", "base (base)", "float32"),
    }
    assert json.loads((tmp_path / "e" / "run.json").read_text())["evaluation"]["server"] == "vllm 0.32.0"
    for wrong in (["evaluate", folder, "nano", *words], ["evaluate", folder, *words, "--tasks", "none"]):
        assert "--server" in refused(monkeypatch, capsys, *wrong)

"""Prompts through a server: the records of the local model, and what is said where a server fails."""

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from skipwise.errors import EvaluationError, RecipeError, RunError
from skipwise.evaluation import server as server_module
from skipwise.evaluation.decoding import Reader
from skipwise.evaluation.evaluate import evaluate
from skipwise.evaluation.models import find_models
from skipwise.evaluation.retrieval import Question, as_far_as_needed
from skipwise.evaluation.retrieval import answers as answers_of
from skipwise.evaluation.same_model import require_served
from skipwise.evaluation.server import connect
from skipwise.evaluation.single import measure_retrieval
from skipwise.evaluation.specification import Specification
from skipwise.results.records import read_records
from tests.command_line import refused, run
from tests.completions import Served, serving
from tests.tiny import byte_tokenizer, checkpoint, llama

QUIET = Console(file=io.StringIO())
WINDOW = 2048
ASKED = Specification(
    documents=0,
    windows=(WINDOW,),
    stride=256,
    tasks=("passkey", "keys", "ruler:niah_single_1", "ruler:fwe"),
    prompt_lengths=(WINDOW,),
    trials=2,
)
PASSKEYS = replace(ASKED, tasks=("passkey",), prompt_lengths=(500,), trials=6)


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
def at_once(monkeypatch):
    monkeypatch.setattr(server_module, "_WAITS", (0.0, 0.0))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def through(served: Served, specification: Specification, **how) -> dict:
    one = connect(served.url, **how)
    return {"server": one, "specification": replace(specification, server=one.engine)}


def answers(path: Path) -> dict:
    """What was answered by prompt, without the time it took and who answered."""
    return {
        (r.kind, r.task, r.length, r.trial): replace(r, seconds=0.0, precision="") for r in read_records(path) if r.task
    }


def settled(draft: list[int], signs: int) -> Question:
    """A question whose answer is full as soon as so many signs stand in it."""
    return Question(list(range(70, 110)), draft, 24, lambda text: float(len(text) >= signs), settled=True)


@pytest.mark.parametrize("agreed", [0, 2, 9])
@pytest.mark.parametrize("full", [1, 4, 12])
def test_as_much_is_kept_as_the_local_model_would_have_written(agreed, full) -> None:
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
def test_no_more_tokens_are_asked_for_than_the_window_takes(served, window, most) -> None:
    served.window = window
    question = Question(list(range(40, 80)), [], 6, lambda text: 0.0)
    assert len(list(connect(served.url).answers(served.tokenizer, [question]))) == 1
    assert served.asked[0]["max_tokens"] == most


@pytest.mark.parametrize("window", [4096, WINDOW, None])
def test_a_server_gives_the_records_of_the_local_model(model, served, tmp_path, window) -> None:
    local = evaluate([model], ASKED, out=tmp_path / "local", console=QUIET).results
    served.window = window
    remote = evaluate([model], **through(served, ASKED), out=tmp_path / "remote", console=QUIET).results
    assert answers(remote) == answers(local)
    assert len(answers(local)) == 8
    assert {r.precision for r in read_records(remote)} == {"chosen by vllm 0.32.0"}
    assert not {r.key for r in read_records(remote)} & {r.key for r in read_records(local)}
    assert json.loads((tmp_path / "remote" / "run.json").read_text())["evaluation"]["server"] == "vllm 0.32.0"
    if window:
        assert all(len(body["prompt"]) + body["max_tokens"] <= window for body in served.asked)


def test_a_server_that_tells_text_alone_is_scored_by_it(model, served, tmp_path) -> None:
    served.tells_ids = served.tells_logprobs = False
    local = answers(evaluate([model], ASKED, out=tmp_path / "local", console=QUIET).results)
    remote = answers(evaluate([model], **through(served, ASKED), out=tmp_path / "remote", console=QUIET).results)
    assert local.keys() == remote.keys()
    for key, ours in local.items():
        same = "hit" if key[0] == "trial" else "score"
        assert getattr(ours, same) == getattr(remote[key], same)


def test_prompts_alone_need_no_local_weights(model, served, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(type(model), "load", lambda *_: pytest.fail("loaded"))
    how = through(served, PASSKEYS, trusted=True, at_once=3)
    assert len(measure_retrieval(model, how["specification"], tmp_path / "r.jsonl", QUIET, how["server"])) == 6
    assert len(served.asked) == 6
    measure_retrieval(model, how["specification"], tmp_path / "r.jsonl", QUIET, how["server"])
    assert len(served.asked) == 6


def test_no_more_requests_at_once_than_asked_for(model, served) -> None:
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
    how = through(served, PASSKEYS, trusted=True, at_once=2)
    measure_retrieval(model, how["specification"], None, QUIET, how["server"])
    assert most == 2


def test_the_key_is_sent_and_not_said(model, served, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    how = through(served, PASSKEYS, trusted=True)
    measure_retrieval(model, how["specification"], None, QUIET, how["server"])
    assert set(served.keys) == {"Bearer sk-hidden"}
    served.disturb = lambda number: (401, b'{"error":{"message":"Incorrect API key sk-hidden"}}')
    with pytest.raises(EvaluationError, match=r"HTTP 401.*Incorrect API key.*OPENAI_API_KEY") as refusal:
        measure_retrieval(model, how["specification"], None, QUIET, how["server"])
    assert "hidden" not in str(refusal.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\u00fc")
    with pytest.raises(RecipeError, match="OPENAI_API_KEY holds signs"):
        connect(served.url)


def no_server() -> str:
    with serving(llama(), byte_tokenizer()) as gone:
        return gone.url


@pytest.mark.parametrize("port", [0, 80000])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(RecipeError, match=f"localhost:{port}': a port is a number from 1 to 65,535"):
        connect(f"http://localhost:{port}")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "", "http://[::1", "http://x:y"])
def test_what_is_no_address_is_refused(url) -> None:
    with pytest.raises(RecipeError, match=r"is no address.*give one as http://localhost:8000"):
        connect(url)


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"commands are recorded.*OPENAI_API_KEY") as refusal:
        connect("http://me:secret@localhost:8000")
    assert "secret" not in str(refusal.value)


def test_the_address_may_end_in_v1(served) -> None:
    assert connect(f"{served.url}/v1/").url == connect(served.url).url == served.url


def test_a_server_that_is_down_is_said() -> None:
    with pytest.raises(EvaluationError, match=r"http://127\S+ cannot be reached: .+\. Start it, or correct --server"):
        connect(no_server())


def test_a_server_of_another_protocol_is_said(served) -> None:
    served.get = lambda path: (200, b"<html>Welcome</html>")
    with pytest.raises(EvaluationError, match=r"something else than OpenAI's.*<html>Welcome.*as vLLM's"):
        connect(served.url)
    served.get = lambda path: (404, b"no such page")
    with pytest.raises(EvaluationError, match=r"HTTP 404: no such page; give the address of a server"):
        connect(served.url)
    served.get = lambda path: (200, b'{"data": []}')
    with pytest.raises(EvaluationError, match=r"something else than OpenAI's.*data: "):
        connect(served.url)


def test_the_window_as_llama_cpp_tells_it(served) -> None:
    served.get = lambda path: (200, b'{"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]}')
    assert connect(served.url).window == 512
    served.get = lambda path: (200, b'{"data": [{"id": "m", "meta": null}]}')
    assert connect(served.url).window is None


def test_which_of_several_models_is_asked(served) -> None:
    served.names = ["one", "two"]
    with pytest.raises(RecipeError, match="serves one, two: choose one by --server-model"):
        connect(served.url)
    with pytest.raises(RecipeError, match="does not serve 'three'; choose one of one, two"):
        connect(served.url, "three")
    assert connect(served.url, "two").name == "two"


def test_an_engine_without_a_version_is_named_by_its_owner(served) -> None:
    served.version, served.engine = None, "llamacpp"
    assert connect(served.url).engine == "llamacpp"
    served.engine = ""
    assert connect(served.url).engine == "a server"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, b'{"error":{"message":"too long"}}'), "refused a prompt of [0-9]+ tokens with HTTP 400: .*too long"),
        ((500, b"Internal Server Error"), "HTTP 500: Internal Server Error; see what it logged"),
        ((500, b""), "HTTP 500: without a word; see what it logged"),
        ((503, b"loading"), "HTTP 503: loading"),
        ((429, b"too many"), "HTTP 429: too many; ask fewer at once \\(--server-requests\\)"),
        ((200, b"{"), "something else than OpenAI's completions protocol has"),
        ((200, b'{"choices": []}'), "something else than OpenAI's.*choices: "),
        ((200, b'{"choices": [{"text": 3}]}'), "something else than OpenAI's.*choices.0.text: "),
        (
            (200, b'{"choices": [{"text": "1", "token_ids": [1000000000000]}]}'),
            "choices.0.token_ids.0: Input should be less",
        ),
        ((200, b'{"choices": [{"text": "1", "token_ids": [-5]}]}'), "choices.0.token_ids.0: Input should be greater"),
        ((200, b"\xff\xfe"), "something else than OpenAI's"),
    ],
    ids=["400", "500", "silent", "503", "429", "cut", "empty", "number", "id", "below", "bytes"],
)
def test_an_answer_that_is_none_is_said_and_what_was_answered_is_kept(model, served, tmp_path, answer, words) -> None:
    how = through(served, PASSKEYS, trusted=True, at_once=1)
    served.disturb = lambda number: answer if number >= 2 else None
    path = tmp_path / "r.jsonl"
    with pytest.raises(EvaluationError, match=words) as refusal:
        measure_retrieval(model, how["specification"], path, QUIET, how["server"])
    assert "what was answered is kept" in str(refusal.value)
    assert len(read_records(path)) == 2
    assert len(served.asked) == (5 if answer[0] in (429, 503) else 3)
    served.disturb = lambda number: None
    measure_retrieval(model, how["specification"], path, QUIET, how["server"])
    assert len({record.key for record in read_records(path)}) == len(read_records(path)) == 6


def test_an_empty_list_of_ids_is_none(model, served) -> None:
    """The text is then scored."""
    how = through(served, PASSKEYS, trusted=True)
    said = json.dumps({"choices": [{"text": " 12345", "token_ids": []}]}).encode()
    served.disturb = lambda number: (200, said)
    records = measure_retrieval(model, how["specification"], None, QUIET, how["server"])
    assert {record.answer for record in records} == {"12345"}


def test_a_busy_server_is_asked_again(model, served) -> None:
    served.disturb = lambda number: (503, b"busy") if number in (0, 1) else None
    how = through(served, PASSKEYS, trusted=True, at_once=1)
    assert len(measure_retrieval(model, how["specification"], None, QUIET, how["server"])) == 6
    assert len(served.asked) == 8


def test_a_slow_server_is_said_with_the_way_out(model, served, tmp_path) -> None:
    over = threading.Event()
    how = through(served, PASSKEYS, trusted=True)
    how["server"] = replace(how["server"], timeout=0.2)
    served.disturb = lambda number: (200, b"") if over.wait() else None
    try:
        with pytest.raises(
            EvaluationError, match=r"did not answer a prompt of [0-9]+ tokens in 0.2 s.*--server-timeout"
        ):
            evaluate([model], **how, out=tmp_path / "e", console=QUIET)
    finally:
        over.set()


def test_a_server_that_does_not_say_what_it_serves_is_not_waited_for(served) -> None:
    over = threading.Event()
    served.get = lambda path: (200, b"") if over.wait() else (404, b"")
    try:
        with pytest.raises(EvaluationError, match=r"did not say in 0.2 s what it serves: wait .* or correct --server"):
            connect(served.url, timeout=0.2)
    finally:
        over.set()


def test_a_server_that_ends_in_the_middle_is_said(model, served, tmp_path, monkeypatch) -> None:
    how = through(served, PASSKEYS, trusted=True)
    how["server"] = replace(how["server"], url=no_server())
    with pytest.raises(EvaluationError, match=r"cannot be reached.*run the command again; what was answered is kept"):
        evaluate([model], **how, out=tmp_path / "e", console=QUIET)


def test_prompts_that_the_window_does_not_take_are_refused_before_work(model, served, tmp_path) -> None:
    served.window = 1024
    with pytest.raises(
        EvaluationError, match=r"2,048 tokens do not fit .*takes 1,024 .*--max-model-len 2048\), or lower --lengths"
    ):
        evaluate([model], **through(served, ASKED), out=tmp_path / "e", console=QUIET)
    assert not (tmp_path / "e").exists()
    assert not served.asked


@pytest.mark.parametrize("tells_ids", [True, False])
def test_a_server_of_other_weights_is_refused_before_work(model, served, tmp_path, tells_ids) -> None:
    torch.manual_seed(1)
    served.model, served.tells_ids = type(served.model)(served.model.config).eval(), tells_ids
    with pytest.raises(EvaluationError, match=r"does not answer as the weights of .*another token.*--no-server-check"):
        evaluate([model], **through(served, PASSKEYS), out=tmp_path / "e", console=QUIET)
    assert not (tmp_path / "e").exists()
    evaluate([model], **through(served, PASSKEYS, trusted=True), out=tmp_path / "e", console=QUIET)


def test_weights_that_choose_the_same_tokens_are_told_apart_by_their_probabilities(model, served) -> None:
    served.model.lm_head.weight.data *= 1.3
    how = through(served, PASSKEYS)
    with pytest.raises(EvaluationError, match=r"differ by [0-9.]+ nats in the mean \(at most 0.1\)"):
        require_served(how["server"], model, how["specification"])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_weights_that_do_not_fit_are_said_with_the_way_out(model, served, monkeypatch, error) -> None:
    def full(*_):
        raise error

    monkeypatch.setattr(type(model), "load", full)
    how = through(served, PASSKEYS)
    with pytest.raises(EvaluationError, match=r"do not fit this machine.*CUDA_VISIBLE_DEVICES=.*--no-server-check"):
        require_served(how["server"], model, how["specification"])


def test_an_evaluation_goes_on_with_the_engine_that_it_was_begun_with(model, served, tmp_path) -> None:
    evaluate([model], **through(served, PASSKEYS), out=tmp_path / "e", console=QUIET)
    served.version = "0.33.0"
    message = (
        r"begun with other settings: server \('vllm 0.33.0', 'vllm 0.32.0'\).*give the same settings.*another --out"
    )
    with pytest.raises(RunError, match=message):
        evaluate([model], **through(served, PASSKEYS), out=tmp_path / "e", console=QUIET)
    with pytest.raises(RunError, match=r"other settings: server \(None, 'vllm 0.32.0'\)"):
        evaluate([model], PASSKEYS, out=tmp_path / "e", console=QUIET)


def test_a_file_of_answers_measures_them_anew_with_another_engine(model, served, tmp_path) -> None:
    for version in ("0.32.0", "0.32.0", "0.33.0"):
        served.version = version
        how = through(served, PASSKEYS)
        measure_retrieval(model, how["specification"], tmp_path / "r.jsonl", QUIET, how["server"])
    assert len(read_records(tmp_path / "r.jsonl")) == 12


def test_the_commands(folder, served, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--lengths", "500", "--trials", "2", "--server", served.url]
    run(monkeypatch, "evaluate", folder, *words, "--tasks", "passkey", "--precision", "float32")
    printed = " ".join(capsys.readouterr().out.split())
    assert "measured here, and only if it is asked for: documents (--documents 16), the base (--base NAME)" in printed
    assert {r.kind for r in read_records(tmp_path / "evaluations" / "m" / "results.jsonl")} == {"trial"}
    page = (tmp_path / "evaluations" / "m" / "report.html").read_text().replace("\u00a0", " ")
    assert "Precision: chosen by vllm 0.32.0." in page
    assert "Not measured: loss by position." in page
    run(monkeypatch, "passkey", folder, *words, "--precision", "float32")
    assert "500" in capsys.readouterr().out

    def said(*more: object) -> str:
        return refused(monkeypatch, capsys, *more)

    assert "--server serves one model" in said("evaluate", folder, "nano", *words)
    assert "--tasks none asks for none" in said("evaluate", folder, *words, "--tasks", "none")
    assert "give its address by --server" in said("passkey", folder, "--server-model", "x")
    assert "cannot be reached" in said("passkey", folder, "--server", no_server())


def test_documents_and_a_base_that_are_asked_for_are_read_here(folder, served, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = checkpoint(tmp_path / "base", window=512)
    words = ["--lengths", "500,600", "--trials", "1", "--tasks", "passkey", "--precision", "float32", "--out", "e"]
    (tmp_path / "text.txt").write_text("What the model reads again until it ends here. " * 40)
    more = ["--documents", "1", "--data", "text.txt", "--base", base, "--original", "512"]
    run(monkeypatch, "evaluate", folder, *words, *more, "--server", served.url)
    made = {(r.kind, r.arm, r.precision) for r in read_records(tmp_path / "e" / "results.jsonl")}
    assert made == {
        ("reading", "m", "float32"),
        ("reading", "base (base)", "float32"),
        ("trial", "m", "chosen by vllm 0.32.0"),
        ("trial", "base (base)", "float32"),
    }

"""What the runner plans, which requests it leaves out, how it answers them, and what it explains."""

import io
import math
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from skipwise.errors import EvaluationError, TooShortError
from skipwise.evaluation.batches import Readings
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.perplexity import fed_tokens, sliding_perplexity
from skipwise.evaluation.questions import _require_room
from skipwise.evaluation.retrieval import tenth_of
from skipwise.evaluation.runner import answered, bucket_edges, measure, missing, plan_prompts, plan_readings
from skipwise.evaluation.specification import Specification
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.extend import _measure_step
from skipwise.recipes.schema import Data
from skipwise.results.records import ReadingRecord, append_record, read_records
from skipwise.training.trainer import _memory_errors
from tests.tiny import byte_tokenizer, llama

QUIET = Console(file=io.StringIO())
MODEL = EvaluatedModel("m", "", 32, 512, weights="w")
READ = Specification(
    texts=(Data(source="x"),), windows=(32, 64), original=32, target=64, stride=16, segment_lengths=(40,)
)
ASKED = Specification(tasks=("passkey",), prompt_lengths=(420,), trials=3)


def text_of(*lengths: int, windows: tuple[int, ...] = (32, 64), source: str = "x") -> EvaluationText:
    """A text of documents of these lengths, and of two segments of 40 tokens."""
    draw = np.random.default_rng(0)
    documents = [Segment(f"d{i}", 0, draw.integers(0, 257, n)) for i, n in enumerate(lengths)]
    segments = {40: [Segment("d0", begin, documents[0].tokens[begin : begin + 40]) for begin in (0, 40)]}
    return EvaluationText(source, documents, list(windows), segments, "fingerprint")


TEXT = text_of(90, 90, 70)


def requests(batches) -> list:
    return list(chain.from_iterable(batch.requests for batch in batches))


def keys(batches) -> list[str]:
    return [request.key for request in requests(batches)]


def broken(error: Exception):
    """A batch whose first answer raises ``error``, at 64 tokens."""

    class Broken(Readings):
        def answers(self, model, on_progress=None):
            raise error
            yield

    [batch, *_] = plan_readings(replace(READ, windows=(64,)), MODEL, [TEXT], [64])
    return Broken(batch.requests, batch.documents)


def test_every_text_is_read_at_every_window_and_its_segments_once() -> None:
    planned = requests(plan_readings(READ, MODEL, [TEXT, text_of(80, source="y")]))
    sliding = [(r.data, r.document, r.window) for r in planned if r.mode == "sliding"]
    expected = [("x", d, w) for w in (32, 64) for d in ("d0", "d1", "d2")] + [("y", "d0", w) for w in (32, 64)]
    assert sliding == expected
    segments = [
        (r.data, r.document, r.begin, r.window, r.stride) for r in planned if r.mode == "segment" and r.data == "x"
    ]
    assert segments == [("x", "d0", 0, 40, 40), ("x", "d0", 40, 40, 40)]
    assert all(r.edges[0] == 1 for r in planned)
    assert {r.edges[-1] for r in planned} == {90, 70, 40, 80}
    assert len(set(keys(plan_readings(READ, MODEL, [TEXT])))) == 8


@pytest.mark.parametrize("changes", [{"weights": "v"}, {"label": "n"}], ids=["other weights", "another label"])
def test_another_model_makes_other_requests(changes) -> None:
    ours, theirs = (
        set(keys([*plan_readings(READ, m, [TEXT]), *plan_prompts(ASKED, m, byte_tokenizer())]))
        for m in (MODEL, replace(MODEL, **changes))
    )
    assert not ours & theirs


def test_another_token_of_a_document_makes_another_request() -> None:
    changed = text_of(90, 90, 70)
    changed.documents[1].tokens[-1] += 1
    ours, theirs = (keys(plan_readings(READ, MODEL, [text])) for text in (TEXT, changed))
    assert [a == b for a, b in zip(ours, theirs, strict=True)].count(False) == 2  # its two windows


@pytest.mark.parametrize("change", [{"stride": 8}, {"precision": "bf16"}])
def test_another_way_of_reading_makes_other_requests(change) -> None:
    ours = {k for k in keys(plan_readings(READ, MODEL, [text_of(90)], [64]))}
    theirs = set(keys(plan_readings(replace(READ, **change), MODEL, [text_of(90)], [64])))
    segments = 2 if "stride" in change else 0  # read in one pass, whatever the stride of the windows
    assert len(ours & theirs) == segments


@pytest.mark.parametrize("change", [{"seed": 1}, {"depths": "random"}, {"precision": "bf16"}, {"tasks": ("lines",)}])
def test_another_way_of_asking_makes_other_requests(change) -> None:
    ours, theirs = (set(keys(plan_prompts(s, MODEL, byte_tokenizer()))) for s in (ASKED, replace(ASKED, **change)))
    assert not ours & theirs
    assert len(ours) == 3


def test_more_trials_leave_the_first_as_they_are() -> None:
    few, many = (keys(plan_prompts(replace(ASKED, trials=n), MODEL, byte_tokenizer())) for n in (3, 5))
    assert many[:3] == few


def test_a_length_too_short_for_a_prompt_is_refused_or_left_out_with_a_word() -> None:
    short = replace(ASKED, prompt_lengths=(64, 420))
    with pytest.raises(TooShortError, match="64"):
        list(plan_prompts(short, MODEL, byte_tokenizer()))
    console = Console(file=io.StringIO(), width=200)
    assert {r.length for r in requests(plan_prompts(short, MODEL, byte_tokenizer(), console))} == {420}
    assert "64 tokens are too few for prompts of passkey (from " in console.file.getvalue()


def test_bucket_edges_hold_positions_windows_and_even_parts() -> None:
    edges = bucket_edges(1000, [128, 512], 128)
    assert {1, 32, 64, 128, 256, 512, 1000} <= set(edges)
    assert {512 * k // 16 for k in range(1, 17)} <= set(edges)
    assert edges == sorted(set(edges))
    assert bucket_edges(20, [16], 16) == [1, *range(2, 17), 20]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 40])
def test_shards_cover_every_request_once_and_evenly(parts) -> None:
    batches = [*plan_readings(READ, MODEL, [text_of(95, 90, 80, 70)]), *plan_prompts(ASKED, MODEL, byte_tokenizer())]
    shards = [keys(missing(batches, set(), (part, parts))) for part in range(1, parts + 1)]
    assert sorted(chain.from_iterable(shards)) == sorted(keys(batches))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_what_is_known_already_stays_with_its_shard() -> None:
    batches = list(plan_readings(READ, MODEL, [TEXT]))
    everything = keys(batches)
    assert missing(batches, set(everything)) == []
    first = keys(missing(batches, set(), (1, 2)))
    assert keys(missing(batches, {first[0]}, (1, 2))) == first[1:]


def test_every_request_is_answered_by_the_record_of_its_key() -> None:
    model = llama(512)
    batches = [*plan_readings(READ, MODEL, [TEXT]), *plan_prompts(ASKED, MODEL, byte_tokenizer())]
    made: list = []
    measure(model, batches, QUIET, made.append)
    assert sorted(r.key for r in made) == sorted(keys(batches))
    for record in (r for r in made if isinstance(r, ReadingRecord)):
        tokens = next(d.tokens for d in TEXT.documents if d.document == record.document)
        tokens = tokens[record.begin :][:40] if record.mode == "segment" else tokens
        whole = sliding_perplexity(model, [tokens], window=record.window, stride=min(record.stride, record.window))
        assert sum(record.nll) == pytest.approx(whole.nll, rel=1e-4)
        assert record.tokens == len(tokens) - 1


def test_progress_reaches_the_total() -> None:
    batches = [*plan_readings(READ, MODEL, [TEXT]), *plan_prompts(ASKED, MODEL, byte_tokenizer())]
    for batch in batches:
        steps: list[int] = []
        list(batch.answers(llama(512), steps.append))
        assert sum(steps) == batch.tokens
    assert batches[0].tokens == fed_tokens([d.tokens for d in TEXT.documents[:2]], 32, 16)


def test_prompts_are_spread_over_the_tenths_and_drawn_by_number() -> None:
    spread = replace(ASKED, prompt_lengths=(900,), trials=10)
    [batch] = plan_prompts(spread, MODEL, byte_tokenizer())
    model = llama(2048)
    some = batch.only({batch.requests[i].key for i in (3, 4, 8)})
    made = {r.trial: r for r in some.answers(model)}
    assert set(made) == {3, 4, 8}
    for trial, record in made.items():
        assert tenth_of(trial) / 10 - 0.03 <= record.depth <= (tenth_of(trial) + 1) / 10 + 0.03
    [again] = batch.only({batch.requests[4].key}).answers(model)
    assert replace(again, seconds=0.0) == replace(made[4], seconds=0.0)
    assert sorted(map(tenth_of, range(10))) == list(range(10))
    assert [tenth_of(trial) for trial in range(4)] == [0, 3, 6, 9]  # a few trials are spread too


def test_what_a_file_answers_is_not_measured_again(tmp_path) -> None:
    path, loads = tmp_path / "results.jsonl", []

    def load():
        loads.append(1)
        return llama(512)

    batches = [*plan_readings(READ, MODEL, [TEXT]), *plan_prompts(ASKED, MODEL, byte_tokenizer())]
    first = answered(load, batches, path, QUIET)
    assert [r.key for r in first] == keys(batches)
    assert answered(load, batches, path, QUIET) == first
    assert loads == [1]
    records = read_records(path)
    path.unlink()
    append_record(path, *records[:4])
    answered(load, batches, path, QUIET)
    assert read_records(path)[:4] == records[:4]
    assert {r.key for r in read_records(path)} == {r.key for r in records}
    assert len(read_records(path)) == len(records)
    assert loads == [1, 1]


def test_without_a_file_records_are_kept_in_memory() -> None:
    batches = list(plan_readings(READ, MODEL, [TEXT]))
    assert [r.key for r in answered(lambda: llama(512), batches, None, QUIET)] == keys(batches)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_lack_of_memory_is_explained(error: Exception) -> None:
    with pytest.raises(EvaluationError, match=r"out of memory measuring m at 64 tokens: .*is kept\. Lower"):
        measure(llama(), [broken(error)], QUIET, print)


def test_a_lack_of_memory_while_a_step_is_measured_is_not_that_of_training(tmp_path) -> None:
    trainer, run = SimpleNamespace(micro_batch=(4, 8)), SimpleNamespace(results=tmp_path / "results.jsonl")
    batch = broken(torch.OutOfMemoryError("CUDA"))
    batch = replace(batch, requests=[replace(request, step=2) for request in batch.requests])
    evaluation = SimpleNamespace(step_batches=lambda step: [batch])
    message = r"out of memory measuring m at 64 tokens.*kept\. Leave out evaluation\.steps"
    with pytest.raises(EvaluationError, match=message), _memory_errors(trainer):
        _measure_step(evaluation, run, llama(), 2)


def test_prompts_that_no_memory_holds_are_refused_before_they_are_drawn(monkeypatch) -> None:
    long = replace(ASKED, prompt_lengths=(420, 2**24))
    batches = list(plan_prompts(long, MODEL, byte_tokenizer()))
    monkeypatch.setattr("skipwise.evaluation.questions.draw_prompt", None)
    monkeypatch.setattr("skipwise.evaluation.runner.machine_memory", lambda device: 2**31)
    with pytest.raises(
        EvaluationError,
        match=r"prompts of 16,777,216 .* takes 19 GB at the .* has 2 GB; those of 420 may.*lengths=\[420\]",
    ):
        measure(llama(), batches, QUIET, print)


def test_windows_that_no_memory_holds_are_refused(monkeypatch) -> None:
    batches = list(plan_readings(READ, MODEL, [TEXT]))
    monkeypatch.setattr("skipwise.evaluation.runner.machine_memory", lambda device: 1000)
    with pytest.raises(
        EvaluationError, match=r"windows of .* this machine has 0 GB; at most 0 may.*evaluation\.windows="
    ):
        measure(llama(512), batches, QUIET, print)
    monkeypatch.setattr("skipwise.evaluation.runner.machine_memory", lambda device: None)  # nothing is known of it
    measure(llama(512), batches, QUIET, lambda record: None)


def test_planning_long_prompts_draws_short_ones(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr("skipwise.evaluation.questions.draw_prompt", lambda *how: drawn.append(how[2]))
    assert len(list(plan_prompts(replace(ASKED, prompt_lengths=(420, 2**24)), MODEL, byte_tokenizer()))) == 2
    assert drawn == [420, 420 * 7 // 8, 2**14]


def test_only_positions_beyond_the_models_own_are_called_so() -> None:
    assertion = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(EvaluationError, match=r"m cannot read 64 tokens: its positions end at 32 \(config"):
        measure(llama(32), [broken(assertion)], QUIET, print)
    with pytest.raises(RuntimeError, match="shapes differ"):
        measure(llama(32), [broken(RuntimeError("shapes differ"))], QUIET, print)
    with pytest.raises(IndexError):
        measure(llama(64), [broken(IndexError("elsewhere"))], QUIET, print)


def test_positions_that_a_model_lacks_are_explained() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=48, n_embd=16, n_layer=1, n_head=2))
    for batches, length in (
        (plan_readings(READ, MODEL, [TEXT], [64]), 64),
        (plan_prompts(ASKED, MODEL, byte_tokenizer()), 420),
    ):
        with pytest.raises(EvaluationError, match=rf"m cannot read {length} tokens: its positions end at 48"):
            measure(gpt2, list(batches), QUIET, print)


def test_logits_that_are_not_numbers_leave_no_record() -> None:
    model = llama(512)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    for batches in (plan_readings(READ, MODEL, [TEXT]), plan_prompts(ASKED, MODEL, byte_tokenizer())):
        made: list = []
        with pytest.raises(EvaluationError, match="m: the model's logits are not finite"):
            measure(model, list(batches), QUIET, made.append)
        assert made == []


def test_no_hook_stays_on_the_model() -> None:
    model = llama(512)
    measure(model, list(plan_prompts(ASKED, MODEL, byte_tokenizer())), QUIET, [].append)
    assert not model.lm_head._forward_hooks


@pytest.mark.parametrize(
    ("length", "alike", "tried"), [(120, True, {0}), (120, False, {0, 1, 2}), (104, True, {0, 1, 2})]
)
def test_where_prompts_hardly_fit_or_differ_all_trials_are_tried(length, alike, tried) -> None:
    seen = set()

    def drawn(tokens: int, trial: int) -> int:
        seen.add(trial)
        if tokens < (needed := 100 + trial):
            raise TooShortError("too short", shortest=needed)
        return trial

    assert _require_room(drawn, length, 3, alike=alike) == 0
    assert seen == tried
    with pytest.raises(TooShortError):  # the first fits, the third does not
        _require_room(drawn, 101, 3)

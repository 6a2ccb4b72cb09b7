"""Which requests are planned, and how their keys differ."""

from dataclasses import replace
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.ruler import read_ruler_data, ruler_prompt
from skipwise.errors import TooShortError
from skipwise.evaluation.perplexity import fed_tokens
from skipwise.evaluation.plan import _require_room, bucket_edges, plan_model, plan_prompts, plan_readings
from skipwise.evaluation.specification import EvaluatedModel, Specification
from skipwise.evaluation.texts import EvaluationText, Segment
from tests.tiny import byte_tokenizer, llama

QUIET = Console(quiet=True)
MODEL = EvaluatedModel("m", "", 32, 4096, weights="w")
READ = Specification(windows=[32, 64], original=32, target=64, stride=16, segment_lengths=[40])
ASKED = Specification(tasks=["passkey"], prompt_lengths=[420], prompt_trials=3)
RULED = Specification(tasks=["ruler:vt"], prompt_lengths=[2048], prompt_trials=3, seed=5)


def text_of(*lengths: int, windows: tuple[int, ...] = (32, 64), source: str = "x") -> EvaluationText:
    """Make a text of documents of these lengths, and of two segments of 40 tokens."""
    draw = np.random.default_rng(0)
    documents = [Segment(f"d{i}", 0, draw.integers(0, 257, n)) for i, n in enumerate(lengths)]
    segments = {40: [Segment("d0", begin, documents[0].tokens[begin : begin + 40]) for begin in (0, 40)]}
    return EvaluationText(source, documents, list(windows), segments, "fingerprint")


TEXT = text_of(90, 90, 70)


def changed(specification: Specification, **changes: object) -> Specification:
    return specification.model_copy(update=changes)


def requests(batches) -> list:
    return list(chain.from_iterable(batch.requests for batch in batches))


def keys(batches) -> list[str]:
    return [request.key for request in requests(batches)]


def prompts(specification: Specification, model: EvaluatedModel = MODEL, console: Console = QUIET, **how) -> list:
    return list(plan_prompts(specification, model, byte_tokenizer(), console, **how))


def test_every_text_is_read_at_every_window_and_its_segments_once() -> None:
    planned = requests(plan_readings(READ, MODEL, [TEXT, text_of(80, source="y")]))
    sliding = [(r.data, r.document, r.window) for r in planned if r.mode == "sliding"]
    expected = [("x", d, w) for w in (32, 64) for d in ("d0", "d1", "d2")] + [("y", "d0", w) for w in (32, 64)]
    assert sliding == expected
    segments = [(r.document, r.begin, r.window, r.stride) for r in planned if r.mode == "segment" and r.data == "x"]
    assert segments == [("d0", 0, 40, 40), ("d0", 40, 40, 40)]
    assert {r.edges[-1] for r in planned} == {90, 70, 40, 80}
    assert len(set(keys(plan_readings(READ, MODEL, [TEXT])))) == 8


def test_a_base_reads_its_own_windows_and_answers_inside_them() -> None:
    rule = changed(READ, tasks=["passkey", "keys", "ruler:vt"], prompt_lengths=[1024, 2048, 4096], prompt_trials=1)
    base = replace(MODEL, original=2048, control=True)
    planned = requests(plan_model(rule, base, byte_tokenizer(), [TEXT], QUIET, more=[48, 2048]))
    assert {r.window for r in planned if r.kind == "reading" and r.mode == "sliding"} == {48, 64}
    assert {(r.task, r.length) for r in planned if r.kind != "reading"} == {
        ("passkey", 2048),
        ("vt", 1024),
        ("vt", 2048),
    }
    own = requests(plan_model(rule, MODEL, byte_tokenizer(), [TEXT], QUIET, more=[48]))
    assert {r.window for r in own if r.kind == "reading" and r.mode == "sliding"} == {32, 48, 64}
    assert len([r for r in own if r.kind != "reading"]) == 9


@pytest.mark.parametrize("changes", [{"weights": "v"}, {"label": "n"}])
def test_another_model_makes_other_requests(changes) -> None:
    ours, theirs = (
        set(keys([*plan_readings(READ, m, [TEXT]), *prompts(ASKED, m)])) for m in (MODEL, replace(MODEL, **changes))
    )
    assert not ours & theirs


@pytest.mark.parametrize("change", [{"stride": 8}, {"precision": "bf16"}])
def test_other_readings_have_other_keys(change) -> None:
    ours = set(keys(plan_readings(READ, MODEL, [text_of(90)], [64])))
    theirs = set(keys(plan_readings(changed(READ, **change), MODEL, [text_of(90)], [64])))
    assert len(ours & theirs) == (2 if "stride" in change else 0)  # segments are read in one pass


@pytest.mark.parametrize("change", [{"seed": 1}, {"depths": "random"}, {"precision": "bf16"}, {"tasks": ["lines"]}])
def test_other_prompts_have_other_keys(change) -> None:
    ours, theirs = (set(keys(prompts(s))) for s in (ASKED, changed(ASKED, **change)))
    assert not ours & theirs
    assert len(ours) == 3


def test_bucket_edges_hold_positions_windows_and_even_parts() -> None:
    edges = bucket_edges(1000, [128, 512], 128)
    assert {1, 32, 64, 128, 256, 512, 1000} | {512 * k // 16 for k in range(1, 17)} <= set(edges)
    assert edges == sorted(set(edges))
    assert bucket_edges(20, [16], 16) == [1, *range(2, 17), 20]


def test_progress_reaches_the_total() -> None:
    batches = [*plan_readings(READ, MODEL, [TEXT]), *prompts(ASKED)]
    for batch in batches:
        steps: list[int] = []
        list(batch.answers(llama(512), steps.append))
        assert sum(steps) == batch.tokens
    assert batches[0].tokens == fed_tokens([d.tokens for d in TEXT.documents[:2]], 32, 16)


def test_lengths_too_short_for_a_task_are_left_out_or_refused() -> None:
    short = changed(ASKED, tasks=["passkey", "ruler:vt"], prompt_lengths=[64, 420])
    console = Console(file=StringIO())
    assert {(r.task, r.length) for r in requests(prompts(short, console=console))} == {("passkey", 420)}
    assert console.file.getvalue()
    assert prompts(short, required=True)
    with pytest.raises(TooShortError):
        prompts(changed(short, prompt_lengths=[64]), required=True)


def test_planning_long_prompts_draws_short_ones(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr("skipwise.evaluation.plan.draw_prompt", lambda *how: drawn.append(how[2]))
    assert len(prompts(changed(ASKED, prompt_lengths=[420, 2**24]))) == 2
    assert drawn == [420, 420 * 7 // 8, 2**14]


@pytest.mark.parametrize(
    ("length", "alike", "tried"), [(120, True, {0}), (120, False, {0, 1, 2}), (104, True, {0, 1, 2})]
)
def test_all_trials_are_tried_if_prompts_hardly_fit_or_differ(length, alike, tried) -> None:
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


def test_keys_of_ruler_depend_on_its_texts(tmp_path: Path) -> None:
    [batch] = prompts(RULED)
    assert [(r.task, r.length, r.seed, r.trial) for r in batch.requests] == [("vt", 2048, 5, n) for n in range(3)]
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "One day. Another day."}')
    [other] = prompts(changed(RULED, ruler_data=tmp_path))
    assert {r.key for r in other.requests}.isdisjoint(r.key for r in batch.requests)


@pytest.mark.parametrize(
    ("written", "score"),
    [("nothing", 0.0), ("it is {0}", 0.2), ("{4} {3} {2} {1} {0}", 1.0), ("{4}{3}{2}{1}{0}, all LOWER", 1.0)],
)
def test_ruler_scores_the_share_of_the_answers(written: str, score: float) -> None:
    [batch] = prompts(RULED)
    question, _ = batch.ask(batch.requests[1])
    drawn = ruler_prompt(byte_tokenizer(), "vt", 2048, 5, 1, read_ruler_data())
    assert question.ids == drawn.ids
    text = written.format(*drawn.answers)
    assert question.score(text.lower() if "LOWER" in written else text) == pytest.approx(score)
    assert (question.most, question.settled) == (30, True)
    assert byte_tokenizer().decode(question.draft).strip() == drawn.answers[0]

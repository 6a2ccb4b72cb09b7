"""Which requests are planned, and how their keys differ."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig

from skipwise.data.ruler import TASKS
from skipwise.errors import EvaluationError, ModelError
from skipwise.evaluation.evaluate import answer, too_long
from skipwise.evaluation.perplexity import sliding_perplexity
from skipwise.evaluation.plan import Subject, Workload, missing, plan_model, plan_prompts, plan_readings, plan_subjects
from skipwise.evaluation.specification import (
    EvaluatedModel,
    EvaluationText,
    Segment,
    Specification,
    assumed_length,
    doubled_windows,
    find_models,
    read_tasks,
    specify,
)
from skipwise.model.config import Origin, load_config
from skipwise.model.cost import meta_model, token_bytes
from skipwise.model.extension import plan_extension
from skipwise.recipes.schema import Data
from skipwise.results.records import ReadingRecord
from tests.tiny import byte_tokenizer, checkpoint, llama

QUIET = Console(quiet=True)
MODEL = EvaluatedModel("m", "", 32, 4096, weights="w")
READ = Specification(windows=[32, 64], original=32, target=64, stride=16, segment_lengths=[40])
ASKED = Specification(tasks=["passkey"], prompt_lengths=[420], num_prompts=3)


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


def prompts(specification: Specification, model: EvaluatedModel = MODEL) -> list:
    return plan_prompts(specification, model, byte_tokenizer())[0]


def test_a_base_reads_its_own_windows_and_answers_inside_them() -> None:
    rule = changed(READ, tasks=["passkey", "keys", "ruler:vt"], prompt_lengths=[1024, 2048, 4096], num_prompts=1)
    base = replace(MODEL, original=2048, control=True)
    planned = requests(plan_model(rule, Subject(base, byte_tokenizer(), [TEXT], {48, 2048}))[0])
    assert {r.window for r in planned if r.kind == "reading" and r.mode == "sliding"} == {48, 64}
    assert {(r.task, r.length) for r in planned if r.kind != "reading"} == {
        ("passkey", 2048),
        ("vt", 1024),
        ("vt", 2048),
    }
    own = requests(plan_model(rule, Subject(MODEL, byte_tokenizer(), [TEXT], {48}))[0])
    assert {r.window for r in own if r.kind == "reading" and r.mode == "sliding"} == {32, 48, 64}
    assert len([r for r in own if r.kind != "reading"]) == 9


def test_lengths_too_short_for_a_task_are_left_out() -> None:
    short = changed(ASKED, tasks=["passkey", "ruler:vt"], prompt_lengths=[64, 420])
    console, subjects = Console(file=StringIO()), [Subject(MODEL, byte_tokenizer(), [])]
    planned = plan_subjects(short, subjects, console).requests
    assert {(r.task, r.length) for r in planned} == {("passkey", 420)}
    assert "64 tokens" in console.file.getvalue()


@pytest.mark.parametrize("change", [{"seed": 1}, {"precision": "bf16"}, {"tasks": ["lines"]}, {"stride": 8}])
def test_other_settings_and_another_model_make_other_requests(change) -> None:
    rule = changed(READ, tasks=["passkey"], prompt_lengths=[420], num_prompts=3)

    def asked(rule: Specification, model: EvaluatedModel = MODEL) -> set[str]:
        return set(keys([*plan_readings(rule, model, [text_of(90)], [64]), *prompts(rule, model)]))

    ours = asked(rule)
    assert ours - asked(changed(rule, **change))
    assert not ours & asked(rule, replace(MODEL, weights="v"))
    assert not ours & asked(rule, replace(MODEL, label="n"))


def batches_of(*texts) -> list:
    return [*plan_readings(READ, MODEL, texts or [TEXT]), *prompts(ASKED)]


def test_every_request_gets_the_record_of_its_key() -> None:
    model, batches = llama(512), batches_of()
    made: list = []
    answer(model, batches, QUIET, made.append)
    assert sorted(r.key for r in made) == sorted(keys(batches))
    shards = [keys(missing(batches, set(), (part, 3))) for part in (1, 2, 3)]
    assert sorted(chain.from_iterable(shards)) == sorted(keys(batches))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert not model.lm_head._forward_hooks
    for record in (r for r in made if isinstance(r, ReadingRecord)):
        tokens = next(d.tokens for d in TEXT.documents if d.document == record.document)
        tokens = tokens[record.begin :][:40] if record.mode == "segment" else tokens
        whole = sliding_perplexity(model, [tokens], window=record.window, stride=min(record.stride, record.window))
        assert sum(record.nll) == pytest.approx(whole.nll, rel=1e-4)
        assert record.tokens == len(tokens) - 1


def test_too_little_memory_is_an_error_of_the_evaluation(monkeypatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA")

    [batch, *_] = plan_readings(READ, MODEL, [TEXT], [64])
    monkeypatch.setattr(type(batch), "answers", full)
    with pytest.raises(EvaluationError):
        answer(llama(), [batch], QUIET, print)


def test_lengths_that_no_memory_holds_are_refused() -> None:
    config = LlamaConfig(num_hidden_layers=1)
    part, weights = Workload("windows", 128, 128), 2 * meta_model(config).num_parameters()
    room = weights + 128 * token_bytes(config, 2, cached=False)
    assert too_long([part], config, "bf16", room) == ""
    assert too_long([part], config, "bf16", room - 1)
    assert too_long([replace(part, scored=False)], config, "bf16", room)  # the KV cache
    inner = config.num_hidden_layers * (4 * config.hidden_size**2 + 3 * config.hidden_size * config.intermediate_size)
    assert too_long([part], config, "bf16", room - 1.47 * inner, four_bits=True) == ""
    assert too_long([part], config, "bf16", room - 1.48 * inner, four_bits=True)
    assert "evaluation.load_in_4bit" in too_long([part], config, "bf16", weights - 1)


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_a_model_is_measured_in_4_bits(tmp_path: Path) -> None:
    model = replace(MODEL, name=str(checkpoint(tmp_path, hidden_size=128, intermediate_size=256)))
    rule = READ.model_copy(update={"load_in_4bit": True})
    [planned] = plan_subjects(rule, [Subject(model, byte_tokenizer(), [TEXT], set(), [])], QUIET).subjects
    assert planned.model.load("float32").is_loaded_in_4bit
    assert planned.model.digest != model.digest  # a resume in 4 bits measures again


def test_lengths_double_from_the_original_to_the_target() -> None:
    assert doubled_windows(256, 2048) == [256, 512, 1024, 2048]
    assert doubled_windows(400, 1000) == [400, 800, 1000]
    assert doubled_windows(256, 256) == [256]
    assert Specification(original=256, target=16384).stride_of(2048) == 1024
    wide = Specification(windows=[512, 1024], original=256, target=1024, stride=300)
    assert (wide.stride_of(1024), wide.stride_of(256)) == (300, 128)
    assert specify(256, 1024, windows=[512, 128, 512]).windows == [128, 512]


def test_names_of_tasks() -> None:
    assert read_tasks(["passkey", "ruler:vt", "niah_multikey_1"]) == ["passkey", "ruler:vt", "ruler:niah_multikey_1"]
    assert read_tasks(["ruler:vt:hops=2", "chains=3", "cwe"]) == ["ruler:vt:hops=2,chains=3", "ruler:cwe"]
    assert read_tasks(["vt", " ruler:vt", "vt:hops=4", "ruler:vt:chains=1"]) == ["ruler:vt"]
    assert read_tasks(["vt:chains=3,hops=2"]) == read_tasks(["vt:hops=2,chains=3"])
    assert read_tasks(["ruler"]) == [f"ruler:{task}" for task in TASKS if not task.startswith("qa_")]


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return checkpoint(tmp_path / "base", window=32)


def made(folder: Path, **changes: object) -> Path:
    return checkpoint(folder, window=128, rope_parameters=changes or YARN)


@pytest.mark.parametrize(("original", "lengths", "warned"), [(None, (32, 128), True), (128, (128, 512), False)])
def test_a_linear_scaling_without_original_length_is_warned_of(base, tmp_path, original, lengths, warned) -> None:
    name = str(made(tmp_path / "m", rope_type="linear", rope_theta=1e4, factor=4.0))
    [one] = find_models([name], "", original)
    assert (one.original, one.target) == lengths
    assert bool(assumed_length(one)) is warned
    assert not assumed_length(find_models([str(made(tmp_path / "yarn"))], "")[0])


def test_what_a_model_was_made_from_says_base_and_lengths(base, tmp_path) -> None:
    model = made(tmp_path / "runs" / "mine" / "model", rope_type="default", rope_theta=4e4)
    Origin("base", 32, Data()).write(model)
    one, behind = find_models(["runs/mine/model/"])
    assert (one.label, one.original, one.base) == ("mine", 32, behind.label)
    assert (behind.label, behind.name, behind.control, behind.base) == ("base (base)", "base", True, "")
    assert [m.control for m in find_models(["runs/mine/model"], "")] == [False]
    shutil.rmtree(base)  # a base that is gone is not one
    assert [m.base for m in find_models(["runs/mine/model"])] == [""]
    (model / "skipwise.json").unlink()
    assert [m.original for m in find_models(["runs/mine/model"])] == [128]
    assert find_models(["runs/mine/model"], None, 64)[0].original == 64


def test_models_of_one_name_are_told_apart_and_none_is_named_twice(base, tmp_path) -> None:
    names = [str(made(tmp_path / folder / "m")) for folder in ("a", "b")]
    assert [m.label for m in find_models(names)] == names
    again = f"{names[1]}/../m"
    assert [m.label for m in find_models(names, again)] == names  # the base is one of them, by another path
    assert len(find_models([*names, again])) == 2
    with pytest.raises(ModelError):
        find_models([str(made(tmp_path / "m", rope_type="dynamic", rope_theta=1e4, factor=4.0))])


def test_other_weights_and_another_interpolation_give_another_digest(base, tmp_path) -> None:
    before = find_models(["base"])[0].digest
    assert len(before) == 16
    checkpoint(tmp_path / "base", window=32, initializer_range=0.3)  # under the same path
    weights = find_models(["base"])[0].digest
    checkpoint(tmp_path / "base", window=128, rope_parameters=YARN, initializer_range=0.3)
    assert len({before, weights, find_models(["base"])[0].digest}) == 3
    one = find_models(["base"])[0]
    extended = replace(one, extension=plan_extension(load_config("base"), target_length=512, interpolation="none"))
    assert extended.digest != one.digest
    assert "0x" not in repr(extended.extension)  # an address would make another digest in every process
    assert replace(one, label="x", control=True).digest == one.digest

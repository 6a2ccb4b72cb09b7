"""``skipwise evaluate --benchmarks`` by the real command, against the harness run by hand; no network."""

import json
from collections.abc import Iterator
from pathlib import Path

import datasets
import lm_eval
import numpy as np
import pytest
import torch
from lm_eval.tasks import TaskManager

from skipwise.model.config import resolve
from skipwise.results.records import BenchmarkRecord, read_records
from tests.command_line import run
from tests.tiny import checkpoint

CHOICE = """
task: tiny_choice
dataset_path: {path}
output_type: multiple_choice
training_split: train
validation_split: validation
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_target: label
doc_to_choice: ["no", "yes, it is"]
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
  - {{metric: brier_score, aggregation: brier_score, higher_is_better: false}}
"""
WORDS = """
task: tiny_words
dataset_path: {path}
output_type: generate_until
validation_split: validation
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{word}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
filter_list:
  - {{name: number, filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
QUESTIONS = [
    {"question": f"is {i} times {i + 1} the number {i * i}?", "label": i % 2, "word": word}
    for i, word in enumerate(["1000000", "1", "3000", "7"])
]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a network, with a cache of its own, and one thread for models this small."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder of two tasks over ``owner/tiny``, whose data are in ``data`` beside it."""
    for split in ("train", "validation"):
        write(tmp_path / "data" / "owner" / "tiny" / f"{split}.jsonl", QUESTIONS)
    return task_files(tmp_path / "tasks", "owner/tiny")


def task_files(folder: Path, path: object) -> Path:
    folder.mkdir()
    for name, text in (("choice", CHOICE), ("words", WORDS)):
        (folder / f"{name}.yaml").write_text(text.format(path=path))
    return folder


def by_hand(tmp_path: Path, task: str, fewshot: int) -> dict[str, float]:
    files = tmp_path / "by-hand"
    if not files.exists():
        task_files(files, tmp_path / "data" / "owner" / "tiny")
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": resolve("nano"), "dtype": "float32", "device": "cpu"},
        tasks=[task],
        num_fewshot=fewshot,
        task_manager=TaskManager(include_path=str(files), include_defaults=False),
    )
    assert results is not None
    return {key: float(value) for key, value in results["results"][task].items() if "," in key and value != "N/A"}


def test_numbers_are_those_of_the_harness_run_by_hand(tasks, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "e" / "results.jsonl"
    words = ["--include-path", tasks, "--data-dir", tmp_path / "data", "--out", out.parent, "--precision", "float32"]
    run(monkeypatch, "evaluate", "nano", "--only", "benchmarks", "--benchmarks", "tiny_choice:1,tiny_words", *words)
    records = [record for record in read_records(out) if isinstance(record, BenchmarkRecord)]
    assert {record.fewshot for record in records if record.task == "tiny_choice"} == {1}
    for task, fewshot in (("tiny_choice", 1), ("tiny_words", 0)):
        theirs = by_hand(tmp_path, task, fewshot)
        ours = [record for record in records if record.task == task]
        assert len(ours) == sum("_stderr" not in key for key in theirs) > 0
        for record in ours:
            metric, _, kind = record.metric.partition(",")
            assert record.value == theirs[f"{metric},{kind or 'none'}"]
            assert record.standard_error == theirs.get(f"{metric}_stderr,{kind or 'none'}")
            assert (record.arm, record.target, record.samples, record.limit) == ("nano", 256, 4, None)
            of_questions = [*map(float, record.scores)]
            assert record.metric == "brier_score" or np.mean(of_questions) == pytest.approx(record.value)
    values = {record.metric: record.value for record in records}
    assert 0 < values["exact_match,number"] < 1  # answers that the model wrote


def test_what_is_measured_is_not_run_again(tasks, tmp_path, monkeypatch) -> None:
    """A task that lacks a metric, as a stop between two records leaves it, is run again; so is one that is asked otherwise."""
    out, model = tmp_path / "e" / "results.jsonl", checkpoint(tmp_path / "model", window=256)

    def metrics(*words: object) -> list[tuple[str, float]]:
        usual = ["--include-path", tasks, "--data-dir", tmp_path / "data", "--out", out.parent, "--limit", "2"]
        run(monkeypatch, "evaluate", model, "--only", "benchmarks", "--benchmarks", "tiny_choice", *usual, *words)
        return [(r.metric, r.value) for r in read_records(out) if isinstance(r, BenchmarkRecord)]

    whole = metrics()
    assert len(whole) == 3
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    assert metrics() == whole
    before = out.read_text()
    assert metrics() == whole
    assert out.read_text() == before
    assert len(metrics("--benchmarks", "tiny_choice:1")) == 6
    assert len(metrics("--limit", "3")) == 9


def test_an_evaluation_has_the_benchmarks_of_model_and_base(tasks, tmp_path, monkeypatch) -> None:
    base, out = checkpoint(tmp_path / "base", window=256), tmp_path / "e"
    model = checkpoint(tmp_path / "mine", window=512)
    words = ["--lengths", "128", "--tasks", "none", "--documents", "0", "--precision", "float32", "--out", out]
    words += ["--benchmarks", "tiny_choice", "--data-dir", tmp_path / "data", "--include-path", tasks, "--limit", "2"]
    run(monkeypatch, "evaluate", model, "--base", base, *words)
    records = [r for r in read_records(out / "results.jsonl") if isinstance(r, BenchmarkRecord)]
    assert {record.arm for record in records} == {"mine", "base (base)"}
    assert all(record.questions for record in records if record.metric == "acc")  # by which the two are paired
    assert "tiny_choice" in (out / "report.html").read_text()

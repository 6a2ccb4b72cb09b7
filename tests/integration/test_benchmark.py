"""``skipwise evaluate --benchmarks`` by the real command, against the harness run by hand; no network."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import datasets
import lm_eval
import numpy as np
import pytest
import torch
from lm_eval.tasks import TaskManager

from skipwise.evaluation import benchmarks
from skipwise.model.config import resolve
from skipwise.report.folder import read_folder
from skipwise.report.numbers import ReportData
from skipwise.report.tables import tables_of
from skipwise.results.records import BenchmarkRecord, read_records
from skipwise.results.scores import PAPER
from tests.command_line import refused, run
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
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
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
    assert 0 < values["brier_score"] < 2  # a number that every log-probability moves
    assert 0 < values["exact_match,number"] < 1  # and answers that the model wrote


def test_a_task_that_lacks_a_metric_is_run_again(tasks, tmp_path, monkeypatch, capsys) -> None:
    """A stop between two records leaves it so, and so does the removal of a damaged line."""
    out = tmp_path / "e" / "results.jsonl"
    words = ["--include-path", tasks, "--data-dir", tmp_path / "data", "--out", out.parent, "--limit", "2"]
    run(
        monkeypatch,
        "evaluate",
        checkpoint(tmp_path / "model", window=256),
        "--only",
        "benchmarks",
        "--benchmarks",
        "tiny_choice",
        *words,
    )
    whole = [record for record in read_records(out) if isinstance(record, BenchmarkRecord)]
    assert {record.metrics for record in whole} == {len(whole)} != {1}
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    run(monkeypatch, "evaluate", tmp_path / "model", "--only", "benchmarks", "--benchmarks", "tiny_choice", *words)
    again = [record for record in read_records(out) if isinstance(record, BenchmarkRecord)]
    assert [(r.metric, r.value) for r in again] == [(r.metric, r.value) for r in whole]


def test_tasks_that_are_measured_are_not_run_again(tasks, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "e" / "results.jsonl"
    model = checkpoint(tmp_path / "model", window=256)
    words = ["--include-path", tasks, "--data-dir", tmp_path / "data", "--out", out.parent, "--limit", "2"]
    run(monkeypatch, "evaluate", model, "--only", "benchmarks", "--benchmarks", "tiny_choice", *words)
    before = out.read_text()
    run(monkeypatch, "evaluate", model, "--only", "benchmarks", "--benchmarks", "tiny_choice,tiny_words", *words)
    assert out.read_text().startswith(before)
    assert len(out.read_text().splitlines()) == len(before.splitlines()) + 1
    for different in (["--benchmarks", "tiny_choice:1"], ["--benchmarks", "tiny_choice", "--limit", "3"]):
        before = out.read_text()
        run(monkeypatch, "evaluate", model, "--only", "benchmarks", *words, *different)
        assert len(out.read_text().splitlines()) == len(before.splitlines()) + 3
    before = out.read_text()
    monkeypatch.setattr("skipwise.evaluation.benchmarks.version", lambda name: "another")
    run(monkeypatch, "evaluate", model, "--only", "benchmarks", "--benchmarks", "tiny_choice", *words)
    assert len(out.read_text().splitlines()) == len(before.splitlines()) + 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "24"], "a request of 44 tokens"),
        (["--data-dir", "elsewhere"], "data set elsewhere/owner/tiny cannot be read"),
        (["--benchmarks", "tiny_choise"], "'tiny_choise' is unknown to lm-eval"),
    ],
)
def test_bad_input_is_refused(tasks, tmp_path, monkeypatch, capsys, words, message) -> None:
    model = checkpoint(tmp_path / "model", window=256)
    usual = ["--only", "benchmarks", "--benchmarks", "tiny_choice", "--include-path", tasks]
    usual += ["--data-dir", tmp_path / "data", "--out", tmp_path / "e"]
    assert message in refused(monkeypatch, capsys, "evaluate", model, *usual, *words)
    assert (tmp_path / "e").exists() == ("--target" in words)


def test_a_task_that_fails_is_named(tasks, tmp_path, monkeypatch, capsys) -> None:
    write(tmp_path / "data" / "owner" / "tiny" / "validation.jsonl", [{"question": "what?", "word": "1"}])
    usual = ["--include-path", tasks, "--data-dir", tmp_path / "data", "--out", tmp_path / "e"]
    model = checkpoint(tmp_path / "model", window=256)
    words = ["--only", "benchmarks", "--benchmarks", "tiny_choice"]
    assert "task tiny_choice fails in lm-eval" in refused(monkeypatch, capsys, "evaluate", model, *words, *usual)


def paper_data(folder: Path) -> Path:
    """Data sets of the paper's six tasks as their repositories on the hub are laid out, made up."""
    boolq = [{"passage": "Rain falls.", "question": "is it wet", "idx": i, "label": i % 2} for i in range(4)]
    write(folder / "aps/super_glue/boolq/train-00000-of-00001.parquet", boolq)
    write(folder / "aps/super_glue/boolq/validation-00000-of-00001.parquet", boolq)
    (folder / "aps/super_glue/README.md").write_text(
        "---\nconfigs:\n- config_name: boolq\n  data_files:\n  - {split: train, path: boolq/train-*}\n"
        "  - {split: validation, path: boolq/validation-*}\n---\n"
    )
    piqa = [{"goal": f"boil {i} eggs", "sol1": "in water", "sol2": "in sand", "label": 0} for i in range(4)]
    winogrande = [
        {"sentence": "The cup is in the box as _ is big.", "option1": "it", "option2": "box", "answer": "2"}
    ] * 4
    endings = ["sits down.", "flies off.", "is blue.", "reads."]
    hellaswag = [
        {"activity_label": "Rest", "ctx_a": f"Man {i} is tired.", "ctx_b": "he", "endings": endings, "label": "0"}
        for i in range(14)
    ]
    for split in ("train", "validation"):
        write(folder / f"baber/piqa/{split}.jsonl", piqa)
        write(folder / f"allenai/winogrande/winogrande_xl/{split}.jsonl", winogrande)
        write(folder / f"Rowan/hellaswag/data/{split}-00000-of-00001.parquet", hellaswag)
    answers = {"choices": ["Nothing.", "Gold.", "A rainbow."], "labels": [1, 0, 1]}
    truthful = [{"question": "What is there?", "mc1_targets": answers, "mc2_targets": answers}] * 3
    write(folder / "truthfulqa/truthful_qa/multiple_choice/validation-00000-of-00001.parquet", truthful)
    choices = {"text": ["ice", "iron", "wood"], "label": ["A", "B", "C"]}
    arc = [{"question": f"What melts {i}?", "choices": choices, "answerKey": "A"} for i in range(30)]
    for split in ("train", "validation", "test"):
        write(folder / f"allenai/ai2_arc/ARC-Challenge/{split}-00000-of-00001.parquet", arc)
    return folder


@pytest.fixture
def _six_folders(monkeypatch) -> None:
    """Let the harness look for tasks in the folders of the paper's six alone: reading all of its thousands takes long."""
    tasks = Path(lm_eval.__file__).parent / "tasks"
    folders = [str(tasks / name) for name in ("super_glue", "piqa", "winogrande", "truthfulqa", "arc", "hellaswag")]

    def manager(**_) -> TaskManager:
        return TaskManager(include_path=folders, include_defaults=False)

    monkeypatch.setattr("skipwise.evaluation.benchmarks.TaskManager", manager)


@pytest.mark.usefixtures("_six_folders")
def test_the_papers_tasks_run_on_local_data(tmp_path, monkeypatch, capsys) -> None:
    data, out = paper_data(tmp_path / "data"), tmp_path / "e" / "results.jsonl"
    model = checkpoint(tmp_path / "model", window=2048)
    words = ["--data-dir", data, "--limit", "2", "--out", out.parent, "--precision", "float32"]
    run(monkeypatch, "evaluate", model, "--only", "benchmarks", *words)
    records = {(record.task, record.metric): record for record in read_records(out)}
    for task, how in PAPER.items():
        assert records[task, how.metric].fewshot == how.fewshot
    assert {record.samples for record in records.values()} == {2}
    assert 0 < records["truthfulqa_mc2", "acc"].value < 1


def test_an_evaluation_has_the_benchmarks_of_model_and_base(tasks, tmp_path, monkeypatch, capsys) -> None:
    base, found = checkpoint(tmp_path / "base", window=128), []
    manager = benchmarks._manager
    monkeypatch.setattr(benchmarks, "_manager", lambda *how: found.append(how) or manager(*how))
    words = ["--lengths", "128", "--tasks", "none", "--documents", "0", "--precision", "float32"]
    words += ["--benchmarks", "tiny_choice", "--data-dir", tmp_path / "data", "--include-path", tasks]
    run(monkeypatch, "evaluate", "nano", "--base", base, *words, "--limit", "2", "--out", tmp_path / "e")
    assert len(found) == 1  # to read the harness's own takes many seconds
    records = [r for r in read_records(tmp_path / "e" / "results.jsonl") if isinstance(r, BenchmarkRecord)]
    assert {record.arm for record in records} == {"nano", "base (base)"}
    page = (tmp_path / "e" / "report.html").read_text()
    assert "tiny_choice, 0-shot, acc" in page
    before = (tmp_path / "e" / "results.jsonl").read_text()
    run(monkeypatch, "evaluate", "nano", "--base", base, *words, "--limit", "2", "--out", tmp_path / "e")
    assert (tmp_path / "e" / "results.jsonl").read_text() == before


def test_one_command_measures_all_and_shows_the_papers_table(tmp_path, monkeypatch, capsys) -> None:
    """The paper's six names, each a tiny task over local data; the base is asked as well."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "skipwise"))
    monkeypatch.chdir(tmp_path)
    many: list[dict[str, object]] = [{"question": f"is {n} even?", "label": (n + 1) % 2} for n in range(32)]
    for split in ("train", "validation"):
        write(tmp_path / "data" / "owner" / "tiny" / f"{split}.jsonl", many)
    (tmp_path / "tasks").mkdir()
    for name in PAPER:
        text = CHOICE.format(path="owner/tiny").replace("tiny_choice", name)
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text)
    checkpoint(tmp_path / "base", window=2048)
    checkpoint(tmp_path / "mine", window=4096, initializer_range=0.3)
    words = ["evaluate", "mine", "--base", "base", "--documents", "0", "--tasks", "none", "--out", "x"]
    more = ["--include-path", "tasks", "--data-dir", "data", "--precision", "float32"]
    run(monkeypatch, *words, "--benchmarks", "paper", *more)
    printed = capsys.readouterr().out
    assert "The paper's benchmarks (its Table 3) in %" in printed
    assert "less its base" in printed
    assert "were not run" not in printed
    table, *_ = tables_of(
        ReportData([read_folder(tmp_path / "x")])
    )  # the others are metrics that the paper does not report
    records = [r for r in read_records(tmp_path / "x" / "results.jsonl") if isinstance(r, BenchmarkRecord)]
    assert [row[0] for row in table.rows] == ["base (base)", "mine", "mine less its base"]
    for number, (task, how) in enumerate(PAPER.items(), 1):
        own, base = (
            next(r for r in records if (r.arm, r.task, r.metric, r.fewshot) == (arm, task, how.metric, how.fewshot))
            for arm in ("mine", "base (base)")
        )
        assert table.rows[1][number].startswith(f"{100 * own.value:.2f} (")
        apart = np.subtract([*map(float, own.scores)], [*map(float, base.scores)])
        error = 100 * apart.std(ddof=1) / math.sqrt(32)
        assert table.rows[2][number] == f"{100 * (own.value - base.value):+.2f} ({error:.2f})"
    assert any(r.questions for r in records)
    run(monkeypatch, *words, "--benchmarks", "boolq", *more, "--limit", "20")
    assert "* not paired" not in capsys.readouterr().out  # both were asked again, and the last records count

"""Tasks and their data, requests of the harness, and records."""

import json
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation import benchmarks
from skipwise.evaluation.benchmarks import Benchmarks, HarnessModel, data_of, parse_tasks
from skipwise.results.scores import PAPER
from tests.tiny import byte_tokenizer, llama

MANAGER = benchmarks.TaskManager
LENGTH = 32
CHOICE = """
task: {name}
tag: [own_tag]
dataset_path: owner/tiny
dataset_name: {subset}
output_type: multiple_choice
training_split: train
validation_split: validation
num_fewshot: {fewshot}
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_target: label
doc_to_choice: ["no", "yes"]
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three tasks and two groups; the harness's own, which take long to read, are left out."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(benchmarks, "TaskManager", lambda **options: MANAGER(**{**options, "include_defaults": False}))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, subset, fewshot in (("plain", "null", "null"), ("part", "hard", "2"), ("bare", "null", "0")):
        text = CHOICE.format(name=name, subset=subset, fewshot=fewshot)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "group.yaml").write_text("group: outer\ntask: [inner, bare]\n")
    (folder / "inner.yaml").write_text("group: inner\ntask: [part, plain]\n")
    (folder / "changed.yaml").write_text("group: changed\ntask: [{task: plain, num_fewshot: 3}]\n")
    return folder


def write(folder: Path, *splits: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        lines = [{"question": f"is {i} even?", "label": i % 2} for i in range(6)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def found(words: str, tasks: Path, data: Path) -> list[tuple[str, int]]:
    return list(Benchmarks(words, data, tasks).ready[1])


def test_a_list_of_tasks_with_their_examples() -> None:
    assert parse_tasks("boolq, arc_challenge:25,,boolq") == [("boolq", None), ("arc_challenge", 25)]
    paper = [(task, how.fewshot) for task, how in PAPER.items()]
    assert parse_tasks("boolq:1,paper,paper") == [("boolq", 1), *paper]
    for words in ("boolq:few", "boolq:-1", "boolq:"):
        with pytest.raises(RecipeError):
            parse_tasks(words)


def test_groups_and_tags_are_their_tasks(tasks: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data / "owner" / "tiny", "train", "validation")
    write(data / "owner" / "tiny" / "hard", "train", "validation")
    assert found("outer", tasks, data) == [("part", 2), ("plain", 0), ("bare", 0)]
    assert found("own_tag", tasks, data) == [("bare", 0), ("part", 2), ("plain", 0)]
    assert found("inner:1,plain", tasks, data) == [("part", 1), ("plain", 1), ("plain", 0)]


@pytest.mark.parametrize("words", ["plaine", "changed", "bare:5"])
def test_tasks_that_cannot_be_run_are_refused(tasks: Path, tmp_path: Path, words: str) -> None:
    write(tmp_path / "data" / "owner" / "tiny", "train", "validation")
    with pytest.raises(RecipeError):
        found(words, tasks, tmp_path / "data")


def changes(tasks: Path, task: str, data: Path | None) -> dict[str, object]:
    manager = benchmarks.TaskManager(include_path=str(tasks))
    return data_of(task, manager.task_index[task].cfg, data)


def test_missing_data_are_refused(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    for data in (tmp_path, tmp_path / "data", None):
        with pytest.raises(DataError):
            changes(tasks, "plain", data)
    write(tmp_path / "own" / "tiny", "train", "validation")
    text = (tasks / "plain.yaml").read_text()
    (tasks / "plain.yaml").write_text(text + "dataset_kwargs: {trust_remote_code: true}\n")
    assert changes(tasks, "plain", tmp_path / "own")["dataset_kwargs"] == {}  # its code is never asked for


def instance(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("own", 0, 1))


def wrapped(precision: str = "float32") -> HarnessModel:
    made = HarnessModel(llama(LENGTH), byte_tokenizer(), max_length=LENGTH, precision=precision)
    made.task = "own"
    return made


def requests(kind: str, tokens: int) -> list[Instance]:
    """One request that has the model read so many tokens, or reserve them."""
    if kind == "loglikelihood":
        return [instance(kind, "a" * (tokens - 3), "bcde")]
    if kind == "loglikelihood_rolling":
        return [instance(kind, "a" * tokens)]
    return [instance(kind, "a" * (tokens - 8), {"until": ["\n"], "max_gen_toks": 8, "do_sample": False})]


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_requests_that_fit_are_the_harnesss_own_and_longer_ones_are_refused(kind: str) -> None:
    theirs = HFLM(pretrained=llama(LENGTH), tokenizer=byte_tokenizer(), max_length=LENGTH, batch_size=1)
    fitting, long = requests(kind, LENGTH), requests(kind, LENGTH + 1)
    assert getattr(wrapped(), kind)(fitting) == getattr(theirs, kind)(fitting)
    assert getattr(theirs, kind)(long)  # cut, with an answer all the same
    with pytest.raises(EvaluationError):
        getattr(wrapped(), kind)([*fitting, *long])


def test_nan_logits_are_refused() -> None:
    broken = wrapped()
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        with pytest.raises(EvaluationError):
            getattr(broken, kind)(requests(kind, 20))

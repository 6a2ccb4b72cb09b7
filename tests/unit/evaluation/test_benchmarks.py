"""Which tasks a list stands for, their data, and what is refused before any work."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from skipwise.errors import DataError, RecipeError
from skipwise.evaluation import benchmarks, harness
from skipwise.evaluation.benchmarks import (
    AskedTask,
    Benchmarks,
    _by_question,
    _digest,
    _scores,
    parse_tasks,
    ruler_lengths,
)
from skipwise.results.scores import PAPER
from tests.tiny import byte_tokenizer

MANAGER = harness.TaskManager
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
    monkeypatch.setattr(harness, "TaskManager", lambda **options: MANAGER(**{**options, "include_defaults": False}))
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
    _, plan = Benchmarks(words, data, tasks)._find(byte_tokenizer(), 64, tasks.parent / "tokenizer")
    return [one.key for one in plan]


def test_a_list_names_tasks_and_their_examples() -> None:
    assert parse_tasks("boolq, arc_challenge:25,,boolq") == [AskedTask("boolq"), AskedTask("arc_challenge", 25)]
    paper = [AskedTask(task, how.fewshot, how.metric) for task, how in PAPER.items()]
    assert parse_tasks("paper") == paper
    assert parse_tasks("boolq:0,paper,paper") == [AskedTask("boolq", 0), *paper]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (" , ", "names none"),
        ("boolq:few", "'few' is no number of few-shot examples"),
        ("boolq:-1", "'-1' is no number"),
        ("boolq:", "'' is no number"),
        ("paper:5", "counts of their own"),
    ],
)
def test_a_list_that_cannot_be_read_is_explained(words: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_tasks(words)


@pytest.mark.parametrize("size", ["0", "-1", "few", "1.5", ""])
def test_a_batch_size_is_a_number_or_auto(size: str) -> None:
    with pytest.raises(RecipeError, match="must be auto or a number of requests from 1"):
        Benchmarks("paper", batch_size=size)


def test_rulers_lengths_end_where_the_answers_beginning_still_fits() -> None:
    assert ruler_lengths(2048) == [1984]
    assert ruler_lengths(32768) == [4096, 8192, 16384, 32704]
    assert ruler_lengths(20000) == [4096, 8192, 16384, 19936]


def test_without_the_harness_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarks.require_installed()
    monkeypatch.setattr(benchmarks, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install 'lm-eval>="):
        benchmarks.require_installed()


def test_groups_and_tags_are_their_tasks(tasks: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data / "owner" / "tiny", "train", "validation")
    write(data / "owner" / "tiny" / "hard", "train", "validation")
    assert found("outer", tasks, data) == [("part", 2), ("plain", 0), ("bare", 0)]
    assert found("own_tag", tasks, data) == [("bare", 0), ("part", 2), ("plain", 0)]
    assert found("inner:1,plain", tasks, data) == [("part", 1), ("plain", 1), ("plain", 0)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plaine", r"'plaine' is unknown to the harness \(did you mean plain\?\)"),
        ("changed", "group changed changes the settings"),
        ("bare:5", "bare has a prompt of its own"),
    ],
)
def test_tasks_that_cannot_be_run_are_refused(tasks: Path, tmp_path: Path, words: str, message: str) -> None:
    write(tmp_path / "data" / "owner" / "tiny", "train", "validation")
    with pytest.raises(RecipeError, match=message):
        found(words, tasks, tmp_path / "data")


def test_task_files_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nowhere is no folder"):
        found("plain", tmp_path / "nowhere", tmp_path)


def changes(tasks: Path, task: str, data: Path | None) -> dict[str, object]:
    manager = harness.open_tasks([task], tasks, {})
    return harness.data_of(task, harness.config_of(manager, task), data)


def test_data_are_found_by_owner_and_name_or_by_name(tasks: Path, tmp_path: Path) -> None:
    plain = write(tmp_path / "data" / "tiny", "train", "validation")
    assert changes(tasks, "plain", tmp_path / "data") == {"dataset_path": str(plain), "dataset_name": None}
    owned = write(tmp_path / "data" / "owner" / "tiny", "train", "validation")
    assert changes(tasks, "plain", tmp_path / "data")["dataset_path"] == str(owned)


def test_a_subset_is_a_folder_or_what_the_card_says(tasks: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "data" / "owner" / "tiny", "train", "validation")
    with pytest.raises(DataError, match=f"{folder} has no subset 'hard'"):  # not what lies beside it
        changes(tasks, "part", tmp_path / "data")
    hard = write(folder / "hard", "train", "validation")
    assert changes(tasks, "part", tmp_path / "data") == {"dataset_path": str(hard), "dataset_name": None}
    card = "---\nconfigs:\n- config_name: hard\n  data_files:\n  - {split: validation, path: validation.jsonl}\n---\n"
    (folder / "README.md").write_text(card)
    assert changes(tasks, "part", tmp_path / "data") == {"dataset_path": str(folder), "dataset_name": "hard"}


def test_data_that_are_missing_are_refused(tasks: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(DataError, match=f"no folder {data}/owner/tiny or {data}/tiny"):
        changes(tasks, "plain", data)
    (data / "tiny").mkdir(parents=True)
    with pytest.raises(DataError, match=f"{data}/tiny cannot be read as a data set"):
        changes(tasks, "plain", data)
    write(data / "tiny", "train")
    with pytest.raises(DataError, match="has no split 'validation' but train"):
        changes(tasks, "plain", data)
    (data / "tiny" / "train.jsonl").rename(data / "tiny" / "validation.txt")
    with pytest.raises(DataError, match="holds text files"):
        changes(tasks, "plain", data)


def test_without_a_network_the_way_out_is_named(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'owner/tiny' on the Hub (OfflineModeIsEnabled)")

    monkeypatch.setattr(harness.datasets, "load_dataset_builder", unreachable)
    with pytest.raises(DataError, match=r"Couldn't reach .* --data-dir DIR with a copy of it at DIR/owner/tiny"):
        changes(tasks, "plain", None)


def test_code_of_a_data_set_is_never_asked_for(tasks: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data / "tiny", "train", "validation")
    text = (tasks / "plain.yaml").read_text()
    (tasks / "plain.yaml").write_text(text + "dataset_kwargs: {trust_remote_code: true}\n")
    assert changes(tasks, "plain", data)["dataset_kwargs"] == {}


def test_a_tokenizer_is_handed_on_without_its_code(tasks: Path, tmp_path: Path) -> None:
    write(tmp_path / "data" / "tiny", "train", "validation")
    tokenizer = byte_tokenizer()
    tokenizer.init_kwargs["auto_map"] = {"AutoTokenizer": ["code.Tokenizer", None]}
    Benchmarks("plain", tmp_path / "data", tasks)._find(tokenizer, 64, tmp_path / "tokenizer")
    config = json.loads((tmp_path / "tokenizer" / "tokenizer_config.json").read_text())
    assert "auto_map" not in config


def test_a_task_that_names_its_files_keeps_them(tasks: Path, tmp_path: Path) -> None:
    text = (tasks / "plain.yaml").read_text().replace("owner/tiny", "json")
    (tasks / "plain.yaml").write_text(text + "dataset_kwargs: {data_files: {validation: /there.jsonl}}\n")
    assert changes(tasks, "plain", tmp_path) == {}


def test_scores_are_metrics_with_their_errors() -> None:
    result = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "em,strict": 1, "em_stderr,strict": "N/A"}
    result |= {"acc_norm,none": 0.25, "acc_norm_stderr,none": float("nan"), "4096,none": -1.0, "8192,none": 0.5}
    assert list(_scores(result)) == [
        ("acc", 0.5, 0.1),
        ("em,strict", 1.0, None),
        ("acc_norm", 0.25, None),
        ("8192", 0.5, None),
    ]


@pytest.mark.parametrize(
    ("scores", "value", "kept"),
    [
        ([1.0, 0, True, np.float64(0)], 0.5, "1010"),
        ([np.float64(0.1234567), 0.5], 0.31172835, [0.123457, 0.5]),
        ([1, 0, 1], 0.8, ""),  # a metric that is no mean, as F1
        ([(0, 1), (1, 1)], 0.5, ""),  # parts of a score
        ([1.0, math.nan], math.nan, ""),
        ([None, None], 0.0, ""),
        ([], 0.0, ""),
    ],
)
def test_scores_of_questions_are_kept_where_the_value_is_their_mean(scores, value, kept) -> None:
    assert _by_question(scores, value) == kept


def test_questions_are_told_apart_by_text_prompt_answer_order_and_version() -> None:
    one, two = ({"doc_hash": n, "prompt_hash": "p", "target_hash": "t", "resps": n} for n in "ab")
    first = _digest(1.0, [one, two])
    assert first == _digest(1.0, [{**one, "resps": "other"}, two])
    others = [(2.0, [one, two]), (1.0, [two, one]), (1.0, [one])]
    others += [(1.0, [{**one, key: "other"}, two]) for key in ("doc_hash", "prompt_hash", "target_hash")]
    assert len({first, *(_digest(*other) for other in others)}) == 7

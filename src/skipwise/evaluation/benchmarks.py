"""Benchmarks of EleutherAI's lm-evaluation-harness at the extended length: a list of tasks -> records, task by task."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.errors import RecipeError, pip_install
from skipwise.evaluation.models import EvaluatedModel
from skipwise.model.loading import load_tokenizer
from skipwise.model.precision import default_device
from skipwise.results.files import short_digest
from skipwise.results.records import BenchmarkRecord, Record
from skipwise.results.scores import PAPER

if TYPE_CHECKING:
    from skipwise.evaluation.harness import HarnessModel

_ROOM = 64  # tokens for the beginning of an answer


@dataclass(frozen=True)
class AskedTask:
    """A task, group or tag of the harness, or a task of the user's own, as asked for."""

    name: str
    fewshot: int | None = None  # examples before each question; None: as the task says
    metric: str | None = None  # the one that is reported; None: all


@dataclass(frozen=True)
class Benchmark:
    """One task that can be run, with ``changes`` to its settings for its data to be found."""

    task: str
    fewshot: int
    metric: str | None
    changes: dict[str, Any]

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from other tasks, and from itself with other examples."""
        return self.task, self.fewshot


def require_installed() -> None:
    """Refuse to go on without the harness."""
    if find_spec("lm_eval") is None:
        raise RecipeError(f"benchmark needs the lm-eval package: {pip_install('benchmarks')}")


def parse_tasks(text: str) -> list[AskedTask]:
    """Read ``paper``, or ``boolq,arc_challenge:25``: names, each with its number of few-shot examples if wanted."""
    asked: list[AskedTask] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, colon, count = word.partition(":")
        if name == "paper":
            if colon:
                raise RecipeError(f"{word!r}: the tasks of paper have counts of their own; leave :{count} out")
            asked += [AskedTask(task, how.fewshot, how.metric) for task, how in PAPER.items()]
        elif colon and not (count.isascii() and count.isdigit()):
            raise RecipeError(f"{word!r}: {count!r} is no number of few-shot examples; write {name}:5")
        else:
            asked.append(AskedTask(name, int(count) if colon else None))
    if not asked:
        raise RecipeError(f"--tasks {text!r} names none; give paper, or names as boolq,arc_challenge:25")
    return list(dict.fromkeys(asked))


def ruler_lengths(target: int) -> list[int]:
    """Lengths in tokens for RULER's prompts: the powers of two from 4k up that lie under the target, and the target.

    The longest leave room for the beginning of the answer, which the harness appends after it has counted.
    """
    return [2**k for k in range(12, 40) if 2**k < target] + [max(target - _ROOM, 1)]


@dataclass(frozen=True)
class Benchmarks:
    """Which tasks a model runs, and where their data is."""

    tasks: str  # as ``parse_tasks`` reads it
    data_dir: Path | None = None  # folder of data sets, as OWNER/NAME; None: the hub
    include_path: Path | None = None  # folder of task files beside the harness's own
    limit: int | None = None  # questions for each task; None: all
    batch_size: str = "auto"  # requests at a time: a number, or auto

    def __post_init__(self) -> None:
        if self.batch_size != "auto" and not (self.batch_size.isdecimal() and int(self.batch_size)):
            raise RecipeError(f"--batch-size {self.batch_size!r} must be auto or a number of requests from 1")

    @contextmanager
    def found(self, model: EvaluatedModel, target: int | None = None) -> Iterator["FoundBenchmarks"]:
        """Find the tasks of a model and their data: whatever can be refused is refused here, before any work.

        The tasks run inside this context. No request may be longer than ``target`` tokens, by default what the model's
        config says.
        """
        require_installed()
        target, tokenizer = target or model.target, load_tokenizer(model.name)
        with TemporaryDirectory(prefix="skipwise-tokenizer-") as folder:
            manager, tasks = self._find(tokenizer, target, Path(folder))
            yield FoundBenchmarks(self, model, target, tokenizer, manager, tasks)

    def _find(self, tokenizer: PreTrainedTokenizerBase, target: int, folder: Path) -> tuple[Any, list[Benchmark]]:
        """The harness's manager of tasks, and the tasks; the tokenizer is saved in ``folder`` for them."""
        from skipwise.evaluation import harness

        # RULER's tasks load the tokenizer from its folder, and would run code that lies beside it.
        tokenizer.init_kwargs.pop("auto_map", None)
        tokenizer.save_pretrained(folder)
        asked = parse_tasks(self.tasks)
        metadata = {"tokenizer": str(folder), "max_seq_lengths": ruler_lengths(target)}
        manager = harness.open_tasks([one.name for one in asked], self.include_path, metadata)
        found: dict[tuple[str, int], Benchmark] = {}
        for one in asked:
            for task in harness.leaves(manager, one.name):
                config = harness.config_of(manager, task)
                fewshot = _fewshot(task, one.fewshot, config.get("num_fewshot"))
                changes = harness.data_of(task, config, self.data_dir)
                found[task, fewshot] = Benchmark(task, fewshot, one.metric, changes)
        return manager, list(found.values())


@dataclass(frozen=True)
class FoundBenchmarks:
    """The tasks of one model, ready to run."""

    asked: Benchmarks
    model: EvaluatedModel
    target: int  # tokens that no request may exceed
    tokenizer: PreTrainedTokenizerBase
    manager: Any  # the harness's, which loads tasks
    tasks: list[Benchmark]

    def run(
        self, precision: str, known: Iterable[Record], keep: Callable[..., None], console: Console
    ) -> list[BenchmarkRecord]:
        """Run the tasks of which ``known`` lacks a record, and return the records of all.

        ``keep`` is called with the records of each task that are not known, as soon as it is done.
        """
        about: dict[str, Any] = {
            "arm": self.model.label,
            "digest": self.model.digest,
            "target": self.target,
            "limit": self.asked.limit,
            "precision": precision,
            "harness": version("lm-eval"),
        }
        made: dict[tuple[str, int], list[BenchmarkRecord]] = defaultdict(list)
        for record in known:
            if isinstance(record, BenchmarkRecord) and all(getattr(record, k) == v for k, v in about.items()):
                made[record.task, record.fewshot].append(record)
        left = [one for one in self.tasks if not _has_every_metric(made[one.key])]
        if len(left) < len(self.tasks):
            console.print(f"tasks that are there already: {len(self.tasks) - len(left)} of {len(self.tasks)}")
        if left:
            from skipwise.evaluation.harness import run_task

            wrapped = self._wrapped(precision)
            if wrapped.without_ends:
                console.print("no BOS or EOS token: token 0 stands before texts that have no context")
            for one in left:
                console.print(f"{one.task}, {one.fewshot}-shot, up to {self.target:,} tokens")
                began = time.perf_counter()
                results = run_task(
                    wrapped, self.manager, one.task, fewshot=one.fewshot, limit=self.asked.limit, changes=one.changes
                )
                seconds = round(time.perf_counter() - began, 3)
                before = {record.key for record in made[one.key]}  # a stop came between two metrics of the task
                made[one.key] = list(_records(results, one, {**about, "seconds": seconds}))
                keep(*(record for record in made[one.key] if record.key not in before))
        return [r for one in self.tasks for r in made[one.key] if one.metric in (None, r.metric)]

    def _wrapped(self, precision: str) -> "HarnessModel":
        """The model, loaded, as the harness asks it."""
        from skipwise.evaluation.harness import HarnessModel

        auto = "auto" if default_device().type == "cuda" else "1"
        size = auto if self.asked.batch_size == "auto" else self.asked.batch_size
        return HarnessModel(
            self.model.load(precision), self.tokenizer, max_length=self.target, batch_size=size, precision=precision
        )


def _has_every_metric(records: Sequence[BenchmarkRecord]) -> bool:
    """Whether a task's records are all there."""
    return bool(records) and len({record.metric for record in records}) >= max(record.metrics for record in records)


def _records(results: dict[str, Any], one: Benchmark, about: dict[str, Any]) -> Iterator[BenchmarkRecord]:
    """A record for each metric of a task that was run; ``about`` are the fields that all of them share."""
    asked = sorted(results["samples"][one.task], key=lambda sample: sample["doc_id"])
    scores = list(_scores(results["results"][one.task]))
    for metric, value, error in scores:
        name, _, kind = metric.partition(",")
        answered = [sample for sample in asked if sample["filter"] == (kind or "none")]
        yield BenchmarkRecord(
            **about,
            task=one.task,
            metric=metric,
            fewshot=one.fewshot,
            samples=results["n-samples"][one.task]["effective"],
            value=value,
            standard_error=error,
            scores=_by_question([sample.get(name) for sample in answered], value),
            questions=_digest(results["versions"].get(one.task), answered),
            metrics=len(scores),
        )


def _by_question(scores: Sequence[Any], value: float) -> str | list[float]:
    """The scores of single questions as a record holds them: a digit each where all are 0 or 1, and numbers otherwise.

    Empty where ``value`` is not their mean, as of F1 and of what the harness corrects afterwards.
    """
    if not scores or not all(isinstance(score, Real) and math.isfinite(score) for score in scores):
        return ""
    if all(score in (0, 1) for score in scores):
        kept: str | list[float] = "".join(str(int(score)) for score in scores)
    else:
        kept = [float(f"{score:.6g}") for score in scores]  # the files stay small
    return kept if math.isclose(fmean(map(float, kept)), value, rel_tol=1e-5, abs_tol=1e-9) else ""


def _digest(version: Any, samples: Sequence[Mapping[str, Any]]) -> str:
    """16 hex digits of a task's version, and of its questions with their prompts and right answers, in order."""
    hashes = [[sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")] for sample in samples]
    return short_digest(json.dumps([version, hashes], default=str).encode())


def _fewshot(task: str, asked: int | None, own: int | None) -> int:
    """How many examples a task is given; the harness would leave a task's own 0 as it is, and say nothing."""
    if own == 0 and asked:
        raise RecipeError(f"{task} has a prompt of its own and takes no few-shot examples; leave :{asked} out")
    return (own or 0) if asked is None else asked


def _scores(result: dict[str, Any]) -> Iterator[tuple[str, float, float | None]]:
    """Metric, value and standard error, from keys as ``acc,none`` and ``acc_stderr,none``; a filter is named."""
    for key, value in result.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        if metric.isdigit() and value == -1:  # RULER's sign for a length that no prompt had
            continue
        error = result.get(f"{metric}_stderr,{kind}")
        finite = float(error) if isinstance(error, int | float) and math.isfinite(error) else None
        yield metric if kind == "none" else key, float(value), finite

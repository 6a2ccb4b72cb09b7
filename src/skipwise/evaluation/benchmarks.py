"""Benchmarks of EleutherAI's lm-evaluation-harness at the extended length: a list of tasks -> records."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from skipwise.errors import RecipeError
from skipwise.results import BenchmarkRecord

if TYPE_CHECKING:
    from skipwise.evaluation.harness import Reader

# The tasks of PoSE's paper, by the harness's names: few-shot examples, and the metric that the paper reports.
PAPER = {
    "boolq": (0, "acc"),
    "piqa": (0, "acc"),
    "winogrande": (0, "acc"),
    "truthfulqa_mc2": (0, "acc"),
    "arc_challenge": (25, "acc_norm"),
    "hellaswag": (10, "acc_norm"),
}
_ROOM = 64


@dataclass(frozen=True)
class Asked:
    """A task, group or tag of the harness as asked for.

    Attributes:
        name: the harness's, or of the user's own task.
        fewshot: examples before each question; None as the task says.
        metric: the one that is reported; None for all.
    """

    name: str
    fewshot: int | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """One task that can be run.

    Attributes:
        task: its name.
        fewshot: examples before each question.
        metric: the one that is reported; None for all.
        changes: to its settings, for its data to be found.
    """

    task: str
    fewshot: int
    metric: str | None
    changes: dict[str, Any]

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from other tasks, and from itself with other examples."""
        return self.task, self.fewshot


def require_installed() -> None:
    """Require the harness.

    Raises:
        RecipeError: lm-eval is not installed.
    """
    if find_spec("lm_eval") is None:
        raise RecipeError("benchmark needs the lm-eval package: pip install 'skipwise[benchmarks]'")


def parse_tasks(text: str) -> list[Asked]:
    """Read ``paper``, or ``boolq,arc_challenge:25``: names, each with its number of few-shot examples if wanted.

    Raises:
        RecipeError: the list is empty, or a count is none.
    """
    asked: list[Asked] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, colon, count = word.partition(":")
        if name == "paper":
            if colon:
                raise RecipeError(
                    f"{word!r}: the tasks of paper have counts of their own; leave :{count} out"
                )
            asked += [Asked(task, fewshot, metric) for task, (fewshot, metric) in PAPER.items()]
        elif colon and not (count.isascii() and count.isdigit()):
            raise RecipeError(f"{word!r}: {count!r} is no number of few-shot examples; write {name}:5")
        else:
            asked.append(Asked(name, int(count) if colon else None))
    if not asked:
        raise RecipeError(f"--tasks {text!r} names none; give paper, or names as boolq,arc_challenge:25")
    return list(dict.fromkeys(asked))


def ruler_lengths(target: int) -> list[int]:
    """Lengths in tokens for RULER's prompts: the powers of two from 4k up that lie under the target, and the target.

    The longest leave room for the beginning of the answer, which the harness appends after it has counted.
    """
    return [2**k for k in range(12, 40) if 2**k < target] + [max(target - _ROOM, 1)]


class Benchmarks:
    """The tasks that were asked for, found and with their data in place: all that can be refused before any work.

    Attributes:
        tasks: in the order asked for.

    Raises:
        RecipeError: a task is unknown, or its count of examples cannot be set.
        DataError: the data of a task are missing.
    """

    def __init__(
        self,
        asked: Sequence[Asked],
        tokenizer: PreTrainedTokenizerBase,
        *,
        target: int,
        include_path: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        from skipwise.evaluation import harness

        # RULER's tasks load the tokenizer by its folder, and would run code that stands beside it.
        self._folder = TemporaryDirectory(prefix="skipwise-tokenizer-")
        tokenizer.init_kwargs.pop("auto_map", None)
        tokenizer.save_pretrained(self._folder.name)
        metadata = {"tokenizer": self._folder.name, "max_seq_lengths": ruler_lengths(target)}
        self._manager = harness.open_tasks([one.name for one in asked], include_path, metadata)
        found: dict[tuple[str, int], Benchmark] = {}
        for one in asked:
            for task in harness.leaves(self._manager, one.name):
                config = harness.config_of(self._manager, task)
                fewshot = _fewshot(task, one.fewshot, config.get("num_fewshot"))
                changes = harness.data_of(task, config, data_dir)
                found[task, fewshot] = Benchmark(task, fewshot, one.metric, changes)
        self.tasks = list(found.values())

    def run(
        self, reader: "Reader", benchmark: Benchmark, *, arm: str, limit: int | None, precision: str
    ) -> list[BenchmarkRecord]:
        """Run one task; a record for each of its metrics.

        Raises:
            EvaluationError: a request exceeds the target, or the task cannot be run.
        """
        from skipwise.evaluation.harness import run_task

        start, task = time.perf_counter(), benchmark.task
        results = run_task(
            reader,
            self._manager,
            task,
            fewshot=benchmark.fewshot,
            limit=limit,
            changes=benchmark.changes,
        )
        seconds = round(time.perf_counter() - start, 3)
        return [
            BenchmarkRecord(
                arm=arm,
                task=task,
                metric=metric,
                fewshot=benchmark.fewshot,
                target=reader.max_length,
                limit=limit,
                samples=results["n-samples"][task]["effective"],
                value=value,
                standard_error=error,
                precision=precision,
                seconds=seconds,
                harness=version("lm-eval"),
            )
            for metric, value, error in _scores(results["results"][task])
        ]


def _fewshot(task: str, asked: int | None, own: int | None) -> int:
    """How many examples a task is given; the harness would leave a task's own 0 as it is, and say nothing."""
    if own == 0 and asked:
        raise RecipeError(
            f"{task} has a prompt of its own and takes no few-shot examples; leave :{asked} out"
        )
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

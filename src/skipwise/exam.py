"""A model + tasks of lm-evaluation-harness -> records, task by task; what is there already is not run again."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from skipwise.errors import RecipeError
from skipwise.evaluation.benchmarks import Benchmarks, parse_tasks, require_installed
from skipwise.measure import AUTOCAST, loaded
from skipwise.model.loading import load_config, load_tokenizer
from skipwise.results import BenchmarkRecord, Record


@dataclass(frozen=True)
class Exam:
    """Which tasks a model sits, and where their data is.

    Attributes:
        tasks: a list as of ``parse_tasks``.
        data_dir: of data sets, as OWNER/NAME; None: the hub.
        include_path: of task files beside the harness's own.
        limit: questions a task; None: all.
        batch_size: requests at a time: a number, or auto.

    Raises:
        RecipeError: the batch size is neither.
    """

    tasks: str
    data_dir: Path | None = None
    include_path: Path | None = None
    limit: int | None = None
    batch_size: str = "auto"

    def __post_init__(self) -> None:
        if self.batch_size != "auto" and not (self.batch_size.isdecimal() and int(self.batch_size)):
            raise RecipeError(f"--batch-size {self.batch_size!r} must be auto or a number of requests from 1")

    def sit(
        self,
        name: str,
        label: str,
        target: int | None,
        precision: str,
        known: Iterable[Record],
        keep: Callable[..., None],
        console: Console,
    ) -> list[BenchmarkRecord]:
        """Run the tasks of which ``known`` has no record, and return all.

        Args:
            name: of the model.
            label: of its records.
            target: the most tokens of a request; None: what the config says.
            precision: bf16, fp16 or float32.
            known: records made before.
            keep: called with the records of each task as soon as it is done.
            console: told what runs.

        Raises:
            SkipwiseError: model, tasks or data cannot be used, or a request is longer than ``target``.
        """
        require_installed()
        asked = parse_tasks(self.tasks)
        target = target or getattr(load_config(name).get_text_config(), "max_position_embeddings", None)
        if target is None:
            raise RecipeError(
                f"the config of {name} says no length; give --target, the longest request in tokens"
            )
        tokenizer = load_tokenizer(name)
        tasks = Benchmarks(
            asked, tokenizer, target=target, include_path=self.include_path, data_dir=self.data_dir
        )
        made: dict[tuple[str, int], list[BenchmarkRecord]] = {}
        for record in known:
            if isinstance(record, BenchmarkRecord) and (
                (record.arm, record.target, record.limit, record.precision)
                == (label, target, self.limit, precision)
            ):
                made.setdefault((record.task, record.fewshot), []).append(record)
        left = [one for one in tasks.tasks if one.key not in made]
        if len(left) < len(tasks.tasks):
            console.print(f"{len(tasks.tasks) - len(left)} of {len(tasks.tasks)} tasks are there already")
        if left:
            from skipwise.evaluation.harness import Reader

            auto = "auto" if torch.cuda.is_available() else "1"
            reader = Reader(
                loaded(name, precision),
                tokenizer,
                max_length=target,
                batch_size=auto if self.batch_size == "auto" else self.batch_size,
                precision=AUTOCAST[precision],
            )
            if reader.endless:
                console.print("no BOS or EOS token: token 0 stands before texts that have no context")
            for one in left:
                console.print(f"{one.task}, {one.fewshot}-shot, up to {target:,} tokens")
                made[one.key] = tasks.run(reader, one, arm=label, limit=self.limit, precision=precision)
                keep(*made[one.key])
        return [r for one in tasks.tasks for r in made[one.key] if one.metric in (None, r.metric)]

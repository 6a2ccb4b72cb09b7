"""Run tasks of EleutherAI's lm-evaluation-harness (the extra ``benchmarks``) at the extended length."""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from rich.console import Console

from skipwise.errors import DataError, EvaluationError, RecipeError, nearest, reason
from skipwise.evaluation.specification import EvaluatedModel
from skipwise.model.forward import AUTOCAST, default_device
from skipwise.model.loading import load_tokenizer
from skipwise.results.files import short_digest
from skipwise.results.records import BenchmarkRecord, Results
from skipwise.results.scores import PAPER

logging.getLogger("lm_eval").setLevel(logging.ERROR)


class HarnessModel(HFLM):
    """A loaded model for the harness; a request beyond ``max_length`` tokens is an error, not cut.

    Log-probabilities are float32 in every precision, and NaN logits are an error.
    """

    task = ""  # for messages

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int, precision: str) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            max_length=max_length,
            batch_size="auto" if default_device().type == "cuda" else "1",
            mixed_precision_dtype=AUTOCAST[precision],
            softmax_dtype="float32",
        )
        model.get_output_embeddings().register_forward_hook(self._require_numbers)

    def _loglikelihood_tokens(self, requests: list[Any], *args: Any, **options: Any) -> Any:
        self._require_room(len(context) + len(answer) - 1 for _, context, answer in requests)  # the last is not read
        return super()._loglikelihood_tokens(requests, *args, **options)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        self._require_room(len(self.tok_encode(request.args[0])) for request in requests)
        return super().loglikelihood_rolling(requests, disable_tqdm)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        answers = (normalize_gen_kwargs(r.args[1], self.max_gen_toks)["max_gen_toks"] for r in requests)
        self._require_room(len(self.tok_encode(r.args[0])) + n for r, n in zip(requests, answers, strict=True))
        return super().generate_until(requests, disable_tqdm)

    def _require_room(self, lengths: Iterable[int]) -> None:
        if (longest := max(lengths, default=0)) > self.max_length:
            raise EvaluationError(
                f"task {self.task} has a request of {longest:,} tokens, more than {self.max_length:,}; ask for fewer examples "
                "(TASK:N), leave the task out, or raise --target"
            )

    def _require_numbers(self, _module: Any, _inputs: Any, logits: torch.Tensor) -> None:
        if logits.isnan().any():
            raise EvaluationError(f"task {self.task}: logits are not finite; try --precision float32")


def parse_tasks(text: str) -> list[tuple[str, int | None]]:
    """Read ``paper``, or names with few-shot counts, e.g. ``boolq,arc_challenge:25``; None is the task's own count."""
    tasks: list[tuple[str, int | None]] = []
    for word in filter(None, map(str.strip, text.split(","))):
        name, colon, count = word.partition(":")
        if colon and not (count.isascii() and count.isdigit()):
            raise RecipeError(f"{word!r} has no number of few-shot examples; write e.g. {name}:5")
        if name == "paper":
            tasks += [(task, how.fewshot) for task, how in PAPER.items()]
        else:
            tasks.append((name, int(count) if colon else None))
    return list(dict.fromkeys(tasks))


@dataclass(frozen=True)
class Benchmarks:
    """Tasks to run, and the place of their data."""

    tasks: str  # for ``parse_tasks``
    data_dir: Path | None = None  # folder of data sets as OWNER/NAME; None: the hub
    include_path: Path | None = None  # folder of the user's task files
    limit: int | None = None  # questions per task; None: all
    target: int | None = None  # tokens of a request, at most; None: the model's target length

    @cached_property
    def ready(self) -> tuple[TaskManager, dict[tuple[str, int], dict[str, Any]]]:
        """The harness's manager, and by task and few-shot count the settings that locate its data."""
        wanted, tasks = parse_tasks(self.tasks), {}
        manager = _manager([name for name, _ in wanted], self.include_path)
        for name, fewshot in wanted:
            for task in leaves(manager, name):
                config = manager.task_index[task].cfg or {}
                own = config.get("num_fewshot")
                if own == 0 and fewshot:  # the harness would ignore it
                    raise RecipeError(f"{task} takes no few-shot examples; leave :{fewshot} out")
                tasks[task, (own or 0) if fewshot is None else fewshot] = data_of(task, config, self.data_dir)
        return manager, tasks

    def run(self, model: EvaluatedModel, precision: str, results: Results, console: Console) -> None:
        """Run the tasks without records in ``results``; append the records of each finished task."""
        target = self.target or model.target
        about: dict[str, Any] = {
            "arm": model.label,
            "digest": model.digest,
            "target": target,
            "limit": self.limit,
            "precision": precision,
            "harness": version("lm-eval"),
        }
        known = [r for r in results.records if isinstance(r, BenchmarkRecord)]
        known = [r for r in known if all(getattr(r, name) == value for name, value in about.items())]
        manager, tasks = self.ready
        wrapped = None
        for (task, fewshot), changes in tasks.items():
            made = {r.metric: r.metrics for r in known if (r.task, r.fewshot) == (task, fewshot)}
            if made and len(made) >= max(made.values()):
                continue
            wrapped = wrapped or HarnessModel(
                model.load(precision), load_tokenizer(model.name), max_length=target, precision=precision
            )
            console.print(f"{task}, {fewshot}-shot, up to {target:,} tokens")
            wrapped.task, began = task, time.perf_counter()
            # lm-eval takes changed settings from members of a group only.
            chosen: Any = {"group": f"{task} of skipwise", "task": [{"task": task, **changes}]} if changes else task
            scores = lm_eval.simple_evaluate(
                wrapped,
                tasks=[chosen],
                num_fewshot=fewshot,
                limit=self.limit,
                task_manager=manager,
                log_samples=True,  # every question's scores
            )
            about |= {"fewshot": fewshot, "seconds": round(time.perf_counter() - began, 3)}
            # A kill may have come between two metrics.
            results.append(*(r for r in _records(scores, task, about) if r.key not in results.keys))


def _manager(names: Sequence[str], include_path: Path | None) -> TaskManager:
    """Open the user's tasks, and the harness's, which take seconds, only if needed."""
    path = str(include_path) if include_path else None
    for defaults in (False, True) if path else (True,):
        manager = TaskManager(include_path=path, include_defaults=defaults)
        unknown = [task for name in names for task in leaves(manager, name) if task not in manager.task_index]
        if not unknown:
            return manager
    raise RecipeError(
        f"task {unknown[0]!r} is unknown to lm-eval{nearest(unknown[0], manager.all_tasks)}; lm-eval ls tasks lists all, "
        "--include-path adds yours"
    )


def leaves(manager: TaskManager, name: str) -> list[str]:
    """Return the tasks of a group or tag, in order, or the task itself."""
    entry = manager.task_index.get(name)
    kind = entry.kind.name if entry else "UNKNOWN"
    if entry is None or kind not in ("GROUP", "TAG"):
        return [name]
    members = sorted(entry.tags) if kind == "TAG" else entry.cfg["task"]
    members = [members] if isinstance(members, str) else members
    if not all(isinstance(member, str) for member in members):
        raise RecipeError(
            f"group {name} changes the settings of its tasks; give tasks by name, or own files (--include-path)"
        )
    return [leaf for member in members for leaf in leaves(manager, member)]


def data_of(task: str, config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Return the settings that locate a task's data; require them to be readable."""
    name, subset = config.get("dataset_path"), config.get("dataset_name")
    own = config.get("dataset_kwargs") or {}
    options = {key: value for key, value in own.items() if key != "trust_remote_code"}
    changes: dict[str, Any] = {"dataset_kwargs": options} if options != own else {}
    if not name or "custom_dataset" in config or "data_files" in options or Path(name).exists():
        return changes
    try:
        if data_dir is not None:
            places = [data_dir / name, data_dir / Path(name).name]
            name = str(next((place for place in places if place.is_dir()), places[0]))
            if subset and (Path(name) / subset).is_dir() and subset not in _subsets(name):
                name, subset = str(Path(name) / subset), None
            changes |= {"dataset_path": name, "dataset_name": subset}
        known = {key: options[key] for key in ("data_dir", "revision") if key in options}
        datasets.load_dataset_builder(name, subset, **known)
    except Exception as error:  # network, hub, pyarrow, yaml
        raise DataError(
            f"task {task}: data set {name} cannot be read ({reason(error)}); copy the hub's repository "
            f"{config['dataset_path']} into a folder, and give --data-dir"
        ) from error
    return changes


def _subsets(folder: str) -> list[str]:
    """Return the subsets that the card of a data set lists."""
    try:
        return list(datasets.get_dataset_config_names(folder))
    except Exception:  # no data next to the card, or no card
        return []


def _records(results: dict[str, Any], task: str, about: dict[str, Any]) -> Iterator[BenchmarkRecord]:
    """Yield a record for each metric of a task; all share the fields ``about``."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    scores = list(_scores(results["results"][task]))
    for metric, value, error in scores:
        name, _, kind = metric.partition(",")
        filtered = [sample for sample in samples if sample["filter"] == (kind or "none")]
        hashes = [[sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")] for sample in filtered]
        digest = short_digest(json.dumps([results["versions"].get(task), hashes], default=str).encode())
        yield BenchmarkRecord(
            **about,
            task=task,
            metric=metric,
            samples=results["n-samples"][task]["effective"],
            value=value,
            standard_error=error,
            scores=_by_question([sample.get(name) for sample in filtered], value),
            questions=digest,
            metrics=len(scores),
        )


def _by_question(scores: Sequence[Any], value: float) -> str | list[float]:
    """Return digits or numbers of all questions; empty if ``value`` is not their mean."""
    if not scores or not all(isinstance(score, Real) and math.isfinite(score) for score in scores):
        return ""
    if all(score in (0, 1) for score in scores):
        kept: str | list[float] = "".join(str(int(score)) for score in scores)
    else:
        kept = [float(f"{score:.6g}") for score in scores]  # small files
    return kept if math.isclose(fmean(map(float, kept)), value, rel_tol=1e-5, abs_tol=1e-9) else ""


def _scores(result: dict[str, Any]) -> Iterator[tuple[str, float, float | None]]:
    """Yield metric, value and standard error from keys such as ``acc,none`` and ``acc_stderr,none``."""
    for key, value in result.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = result.get(f"{metric}_stderr,{kind}")
        finite = float(error) if isinstance(error, int | float) and math.isfinite(error) else None
        yield metric if kind == "none" else key, float(value), finite

"""EleutherAI's lm-evaluation-harness (the extra ``benchmarks``): its tasks and its model, and nothing cut in
silence."""

import errno
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import torch
from datasets.exceptions import DatasetGenerationError
from jinja2 import TemplateError
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.errors import DataError, EvaluationError, RecipeError, nearest, out_of_memory, reason
from skipwise.model.precision import AUTOCAST

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings tell what is done on purpose, or is an error here

_DATA_FILES = ("json", "parquet", "csv")
# What tasks, and the harness on unfit data, were seen to raise.
_TASK_FAILURES = (OSError, ImportError, ValueError, TypeError, LookupError, DatasetGenerationError, TemplateError)


class HarnessModel(HFLM):
    """A loaded model as the harness asks it, except that a request beyond ``max_length`` tokens is refused.

    The harness would read such a one without its beginning, or in pieces. Log-probabilities are float32 whatever the
    precision, and logits that are not numbers are refused: the first of the choices would be taken for the best.
    Where the tokenizer has neither BOS nor EOS, token 0 stands before a text without a context.
    """

    task = ""  # whose requests are being answered

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        batch_size: str,
        precision: str,
    ) -> None:
        self.without_ends = tokenizer.bos_token_id is None and tokenizer.eos_token_id is None
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            max_length=max_length,
            # Such a tokenizer is given a padding token by the harness that the model has no embedding for.
            batch_size=1 if self.without_ends else batch_size,
            mixed_precision_dtype=AUTOCAST[precision],
            softmax_dtype="float32",
            prefix_token_id=0 if self.without_ends else None,
        )
        head = model.get_output_embeddings()
        assert isinstance(head, torch.nn.Module)
        head.register_forward_hook(self._require_finite)

    def _loglikelihood_tokens(self, requests: list[Any], *args: Any, **options: Any) -> Any:
        for _, context, continuation in requests:
            # The last token is scored and not read.
            self._require_room(len(context) + len(continuation) - 1)
        return super()._loglikelihood_tokens(requests, *args, **options)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        for request in requests:
            self._require_room(len(self.tok_encode(request.args[0])))
        return super().loglikelihood_rolling(requests, disable_tqdm)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        for request in requests:
            context, settings = request.args
            answer = normalize_gen_kwargs(settings, self.max_gen_toks)["max_gen_toks"]
            self._require_room(len(self.tok_encode(context)) + answer)
        return super().generate_until(requests, disable_tqdm)

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
        """Decode; the EOS that a tokenizer has not got is no text to stop at."""
        return None if tokens is None else super().tok_decode(tokens, skip_special_tokens)

    def _require_room(self, tokens: int) -> None:
        if tokens > self.max_length:
            raise EvaluationError(
                f"task {self.task}: a request of {tokens:,} tokens with its answer exceeds {self.max_length:,}, and "
                "the harness would cut it; ask for fewer examples (TASK:N), leave the task out, or give skipwise benchmark a "
                "larger --target if the model reads so far"
            )

    def _require_finite(self, _module: Any, _inputs: Any, logits: torch.Tensor) -> None:
        if logits.isnan().any():
            raise EvaluationError(
                f"task {self.task}: logits are not finite; the weights are damaged, or overflow in this precision; try "
                "--precision float32"
            )


def open_tasks(names: Iterable[str], include_path: Path | None, metadata: dict[str, Any]) -> TaskManager:
    """Find the tasks called ``names``; the harness's own are read, for many seconds, only where one is asked for.

    Task files (YAML) in ``include_path`` come before the harness's own. ``metadata`` is for tasks that make their data,
    as RULER's do.
    """
    names = list(names)
    if include_path is not None:
        if not include_path.is_dir():
            raise RecipeError(f"--include-path {include_path} is no folder; give one that holds task files (YAML)")
        own = TaskManager(include_path=str(include_path), include_defaults=False, metadata=metadata)
        if all(leaf in own.task_index for name in names for leaf in leaves(own, name)):
            return own
    manager = TaskManager(include_path=str(include_path) if include_path else None, metadata=metadata)
    for leaf in (leaf for name in names for leaf in leaves(manager, name)):
        if leaf not in manager.task_index:
            raise RecipeError(
                f"task {leaf!r} is unknown to the harness{nearest(leaf, manager.all_tasks)}; lm-eval ls tasks lists "
                "them, and --include-path adds a folder of your own"
            )
    return manager


def leaves(manager: TaskManager, name: str) -> list[str]:
    """The tasks that ``name`` stands for: those of a group or tag, in order, or itself."""
    entry = manager.task_index.get(name)
    kind = entry.kind.name if entry else "UNKNOWN"
    if entry is None or kind not in ("GROUP", "TAG"):
        return [name]
    members = sorted(entry.tags) if kind == "TAG" else entry.cfg["task"]
    members = [members] if isinstance(members, str) else members
    if not all(isinstance(member, str) for member in members):
        raise RecipeError(
            f"group {name} changes the settings of its tasks, which are run one by one here; name tasks, or write a "
            "file for each into a folder for --include-path"
        )
    return [leaf for member in members for leaf in leaves(manager, member)]


def config_of(manager: TaskManager, task: str) -> Mapping[str, Any]:
    """The task's settings as its file has them; functions are named, not loaded."""
    return manager.task_index[task].cfg or {}


def data_of(task: str, config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """What to change in a task's settings for its data to be read from ``data_dir``; it is there, or on the hub.

    Data of a task that names files itself, or makes its data, stay what they are. No code of a data set is run.
    """
    name, subset = config.get("dataset_path"), config.get("dataset_name")
    own = config.get("dataset_kwargs") or {}
    options = {key: value for key, value in own.items() if key != "trust_remote_code"}
    changes = {"dataset_kwargs": options} if options != own else {}
    if not name or "custom_dataset" in config or "data_files" in options or Path(name).exists():
        return changes
    known = {key: options[key] for key in ("data_dir", "revision") if key in options}
    if data_dir is None:
        try:
            datasets.load_dataset_builder(name, subset, **known)
        except Exception as error:  # the network, the hub, a file of it: any of a dozen classes
            raise DataError(
                f"task {task}: its data set {name} cannot be read from the hub ({reason(error)}); give "
                f"--data-dir DIR with a copy of it at DIR/{name}"
            ) from error
        return changes
    folder, subset = _local(task, name, subset, data_dir)
    try:
        builder = datasets.load_dataset_builder(str(folder), subset, **known)
    except Exception as error:  # datasets, pyarrow and yaml each raise their own
        raise DataError(
            f"task {task}: {folder} cannot be read as a data set ({reason(error)}); copy the hub's "
            f"repository of {name} there"
        ) from error
    if builder.name not in _DATA_FILES:
        raise DataError(f"task {task}: {folder} holds {builder.name} files; data are JSON (Lines), Parquet or CSV")
    splits = builder.config.data_files or {}
    asked = config.get("test_split") or config.get("validation_split")
    if asked and asked not in splits:
        raise DataError(
            f"task {task}: {folder} has no split {asked!r} but {', '.join(map(str, splits)) or 'none'}; add its file, "
            f"as {asked}.jsonl or {asked}-00000-of-00001.parquet"
        )
    return {**changes, "dataset_path": str(folder), "dataset_name": subset}


def _local(task: str, name: str, subset: str | None, data_dir: Path) -> tuple[Path, str | None]:
    """The folder of a data set, and the subset to ask of it: None where the subset is a folder of its own."""
    places = list(dict.fromkeys([data_dir / name, data_dir / Path(name).name]))
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise DataError(
            f"task {task}: no data set {name} in --data-dir: there is no folder {' or '.join(map(str, places))}; copy "
            "the hub's repository there"
        )
    try:
        listed = subset is None or subset in datasets.get_dataset_config_names(str(folder))
    except Exception:  # no data file right there, or a card that cannot be read: the subset's folder is left
        listed = False
    if listed:
        return folder, subset
    if not (folder / str(subset)).is_dir():
        raise DataError(
            f"task {task}: {folder} has no subset {subset!r}: neither does its README.md list one, nor is there a "
            f"folder {folder / str(subset)}; copy the hub's repository of {name} there"
        )
    return folder / str(subset), None


def run_task(
    model: HarnessModel,
    manager: TaskManager,
    task: str,
    *,
    fewshot: int | None,
    limit: int | None,
    changes: dict[str, Any],
) -> dict[str, Any]:
    """Run one task, with ``changes`` to its settings, and return what ``lm_eval.simple_evaluate`` does, every question
    with its scores among it."""
    model.task = task
    # A member of a group can be given settings, where a task that is named alone cannot.
    asked = {"group": f"{task} of skipwise", "task": [{"task": task, **changes}]} if changes else task
    try:
        results: dict[str, Any] = lm_eval.simple_evaluate(
            model=model, tasks=[asked], num_fewshot=fewshot, limit=limit, task_manager=manager, log_samples=True
        )
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise EvaluationError(
            f"out of memory in task {task}, of requests of up to {model.max_length:,} tokens; what was measured is "
            "kept. Give skipwise benchmark --batch-size 1, or a smaller --target"
        ) from error
    except _TASK_FAILURES as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise EvaluationError(
            f"task {task} cannot be run by the harness ({type(error).__name__}: {reason(error)}); what was "
            "measured is kept. Correct its data, install what it needs, or leave it out"
        ) from error
    return results

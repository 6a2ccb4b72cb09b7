"""A run from its folder to its trained model: choose and begin the folder, prepare, load, train, save.

Of several processes all prepare the run, rank 0 begins its folder, and the others join the training.
"""

import re
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from transformers import PreTrainedModel

from skipwise.data.examples import collate
from skipwise.errors import PeerError, RunError, SkipwiseError
from skipwise.model import lora
from skipwise.model.extension import check_frequencies
from skipwise.model.loading import UNSAVED, load_model, round_weights, save_extended, two_layers
from skipwise.model.probe import Probe, probe_connectivity
from skipwise.recipes.loading import dump_recipe, load_recipe
from skipwise.recipes.schema import Recipe
from skipwise.results.records import TrainingRecord, append_record, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.training import processes
from skipwise.training.arguments import training_arguments
from skipwise.training.checkpoints import disk_errors, latest_complete
from skipwise.training.plan import require_fits, with_micro_batch
from skipwise.training.prepare import PreparedRun, prepare
from skipwise.training.trainer import train

RUNS = Path("runs")  # where runs go without ``out``
# Settings that change neither the model nor its logs, to the bit.
_FREE = re.compile(
    r"training\.(dataloader_.*|gradient_checkpointing|log_level.*|project|report_to|run_name|save_total_limit)"
)


def open_run(recipe: Recipe, out: Path | None, default_name: str, *, resume: bool) -> RunFolder:
    """Return the folder of a new run, or of the run to resume; nothing is written before ``begin_run``.

    Without ``out`` it is ``runs/<default_name>``, with a number if that exists, or the newest run of the recipe.
    """
    if out is None and resume:
        begun = [path for path in RUNS.glob("*/recipe.yaml") if path.parent.name.startswith(default_name)]
        begun.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        wanted = deciding_settings(recipe)
        same = (path for path in begun if not _differences(deciding_settings(load_recipe(path)), wanted))
        if (newest := next(same, None)) is None:
            raise RunError(f"no run of this recipe in runs/{default_name}*; give it by --out, or leave --resume out")
        out = newest.parent
    elif out is None:
        names = (default_name if number == 1 else f"{default_name}-{number}" for number in count(1))
        out = next(RUNS / name for name in names if not (RUNS / name).exists())
    run = RunFolder(out)
    require_ours(run, recipe, resume)
    return run


def require_ours(run: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Require a folder to be free for a new run, or to hold the run of this recipe."""
    if run.recipe.exists():
        if not resume:
            raise RunError(f"{run.path} holds a run; pass --resume to continue it, or give another --out")
        # A kill may fall between recipe.yaml and run.json.
        begun = run.read().get("settings") or deciding_settings(recipe_of(run.path))
        if changed := _differences(begun, deciding_settings(recipe)):
            changes = ", ".join(f"{key} = {old!r}, now {new!r}" for key, old, new in changed[:4])
            raise RunError(f"{run.path} was begun with {changes}; resume with the old settings, or give another --out")
    elif not run.is_free:
        raise RunError(f"{run.path} exists and holds no run of skipwise; give another --out")
    elif resume:
        raise RunError(f"{run.path} holds no run to resume; leave --resume out to begin one")


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, old, new) of every setting that differs and that a resume may not change."""
    fixed = (key for key in {**old, **new} if not _FREE.fullmatch(key))
    return [(key, old.get(key), new.get(key)) for key in fixed if old.get(key) != new.get(key)]


def deciding_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that decide the saved model and its logs, by dotted key.

    The evaluation decides only if the best step is kept.
    """
    settings = _flatten(
        recipe.model_dump(mode="json", exclude={"method": True, "evaluation": True, "data": {"streaming"}})
    )
    rule = recipe.evaluation
    settings["evaluation.save_best"] = rule.save_best
    if rule.save_best:
        settings |= {"evaluation.eval_steps": rule.eval_steps, "evaluation.source": recipe.measured_sources[0]}
    return settings


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def begin_run(run: RunFolder, recipe: Recipe, *, resume: bool) -> None:
    """Lock the run's folder, and write the recipe of a new run before anything else."""
    run.lock()
    require_ours(run, recipe, resume)  # again: another process may have begun a run there meanwhile
    if not run.recipe.exists():
        dump_recipe(recipe, run.recipe)
    run.begin(seed=recipe.seed, settings=deciding_settings(recipe))


def recipe_of(folder: Path) -> Recipe:
    """Return the recipe that a run began with."""
    if not (path := RunFolder(folder).recipe).exists():
        raise RunError(f"{folder} holds no run: {path.name} is missing; give the folder of a run, e.g. runs/NAME")
    return load_recipe(path)


def prepare_together(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> PreparedRun:
    """Prepare the run in every process, rank 0 first; an error of one ends all."""
    first = processes.is_first()
    with processes.together():  # before the text is read
        if first and out is not None:
            require_ours(RunFolder(out), recipe, resume)
        if first:
            require_fits(recipe, None if resume else out or RUNS, several=processes.launched() > 1)
    with processes.together(rank_0_first=True):
        return prepare(recipe, console)


def announce(prepared: PreparedRun, run: RunFolder) -> None:
    """Give the other processes the folder that rank 0 has begun."""
    micro = prepared.recipe.training.per_device_train_batch_size
    processes.broadcast((run.path.absolute(), run.identity, prepared.decides, micro))
    with processes.together():
        pass  # another machine may refuse the folder


def join(prepared: PreparedRun, resume: bool, console: Console, save_at: Collection[int]) -> RunFolder:
    """Train with rank 0, which does everything else."""
    untrained = processes.broadcast(None)
    if untrained:
        model, _ = load_and_probe(prepared, console)
    path, identity, decides, micro = processes.broadcast(None)
    run, prepared = RunFolder(path), with_micro_batch(prepared, micro)
    with processes.together():
        differ = [name for name, value in prepared.decides.items() if value != decides[name]]
        if run.identity != identity:  # also where the folder is missing
            differ.append(f"the folder {path}")
        if differ:
            raise RunError(
                f"{' and '.join(differ)} differ from rank 0's; give all machines the same, and a shared --out"
            )
    if untrained:
        try:
            train_run(prepared, model, run, resume=resume, save_at=save_at)
        except SkipwiseError as error:
            raise PeerError(str(error)) from error  # rank 0 has not met it
    return run


def load_and_probe(prepared: PreparedRun, console: Console) -> tuple[PreTrainedModel, Probe]:
    """Load the interpolated model for training, and prove that its chunks attend to each other.

    Of shards rank 0 alone reads the weights, and each process keeps its part, so two layers with drawn weights are probed.
    """
    recipe, rules = prepared.recipe, prepared.recipe.lora
    precision, target = prepared.precision, prepared.extension.target_length
    engine, four_bits = processes.sharding(), rules is not None and rules.load_in_4bit
    partitioned, reads = engine == "zero3" or (engine == "fsdp" and not four_bits), True
    if partitioned:
        sample = two_layers(prepared.config, prepared.extension, prepared.device, recipe.attn_implementation)
        probe = probe_connectivity(sample, target, precision=precision)
        reads = processes.load_in_shards()
    # While these exist, transformers partitions the weights as it reads them.
    settings = training_arguments(recipe.training, RUNS, recipe.seed) if partitioned else None
    model = load_model(
        recipe.model,
        prepared.extension,
        dtype=prepared.base_dtype,
        device="cpu" if partitioned and engine == "fsdp" else prepared.device,
        four_bits=four_bits,
        empty=not reads,
        attn_implementation=recipe.attn_implementation,
    )
    if rules is not None:
        model = cast(PreTrainedModel, lora.adapt(model, rules, recipe.seed))
    if not partitioned:
        probe = probe_connectivity(model, target, precision=precision)
    del settings
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    return model, probe


def train_run(
    prepared: PreparedRun, model: PreTrainedModel, run: RunFolder, *, resume: bool, **steps: Any
) -> PreTrainedModel:
    """Train in place, and return the whole model; ``steps`` are ``on_step``, ``save_at`` and ``best`` of ``train``."""
    first, recipe = processes.is_first(), prepared.recipe
    logged = max((r.step for r in read_records(run.results) if isinstance(r, TrainingRecord)), default=0)

    def keep(log: dict[str, Any]) -> None:
        if log["step"] > logged:  # a step trained again after a kill, to the same bits, has its record
            append_record(run.results, TrainingRecord(arm=recipe.positions.scheme, **log))

    summary = train(
        model,
        prepared.dataset,
        collate,
        recipe.training,
        folder=run.checkpoints,
        seed=recipe.seed,
        resume=resume,
        on_log=keep,
        **steps,
    )
    check_frequencies(model, prepared.extension)  # an engine may have cast them
    sharded = processes.sharding() is not None  # known until the processes are finished
    processes.finish()
    trained = summary.tokens_per_second > 0  # a resume may find no step left
    if first and (trained or not run.read().get("training")):
        run.record(training=vars(summary) | _timed(run, summary.tokens) | {"precision": prepared.precision})
    return _whole(prepared, run, model) if sharded and first else model


def _timed(run: RunFolder, tokens: int) -> dict[str, float]:
    """Return the seconds and speed of the whole run, with the part before a resume, by its records."""
    logs = sorted({r.step: r for r in read_records(run.results) if isinstance(r, TrainingRecord)}.items())
    read = [r.tokens for _, r in logs]
    if not logs or read[-1] != tokens:
        return {}
    seconds = sum((r.tokens - before) / r.tokens_per_second for (_, r), before in zip(logs, [0, *read], strict=False))
    return {"seconds": seconds, "tokens_per_second": tokens / seconds}


def _whole(prepared: PreparedRun, run: RunFolder, trained: PreTrainedModel) -> PreTrainedModel:
    """Load the whole model from the last checkpoint into CPU memory; the processes hold shards of it."""
    checkpoint = latest_complete(run.checkpoints)
    assert checkpoint is not None
    rules = prepared.recipe.lora
    if rules is None:
        model = load_model(str(checkpoint), dtype=prepared.recipe.training.save_dtype)
        setattr(model, UNSAVED, getattr(trained, UNSAVED, {}))  # which the checkpoint lacks
        return model
    model = load_model(prepared.recipe.model, prepared.extension, dtype=prepared.base_dtype)
    return cast(PreTrainedModel, lora.adapt(model, rules, state=checkpoint / "adapter_model.safetensors"))


def save_trained(prepared: PreparedRun, model: PreTrainedModel, run: RunFolder) -> None:
    """Save the trained model in ``training.save_dtype``, with LoRA merged or as an adapter in float32."""
    check_frequencies(model, prepared.extension)
    rules, adapter_of = prepared.recipe.lora, None
    if rules and rules.save_as == "adapter":
        adapter_of = prepared.recipe.model
    elif rules:
        model = lora.merged(model, load_model(prepared.recipe.model, prepared.extension))
    if not adapter_of:
        round_weights(model, getattr(torch, prepared.recipe.training.save_dtype))
    with disk_errors("the model", run.checkpoints):
        save_extended(
            model, prepared.tokenizer, prepared.extension, run.model, origin=prepared.origin, adapter_of=adapter_of
        )

"""The model of a run: loaded and tested before training, trained, whole again after it, saved."""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel

from skipwise.data.window import collate
from skipwise.errors import ModelError, SkipwiseError, counted, out_of_memory
from skipwise.model import lora
from skipwise.model.blocked_attention import blocked_attention
from skipwise.model.extension import check_frequencies
from skipwise.model.loading import UNSAVED, load_model
from skipwise.model.probe import Probe, probe_connectivity
from skipwise.model.saving import partial_of, round_weights, save_extended
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Recipe
from skipwise.results.records import TrainingRecord, append_record, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.training import processes, written_text
from skipwise.training.checkpoints import latest_complete
from skipwise.training.disk import checkpoint_bytes, disk_space
from skipwise.training.prepare import PreparedRun
from skipwise.training.trainer import train


def load_and_probe(prepared: PreparedRun, console: Console) -> tuple[PreTrainedModel, Probe]:
    """Load the interpolated model, as it is to be trained, and prove that its chunks attend to each other."""
    rules = prepared.recipe.lora
    model = load_model(
        prepared.recipe.model,
        prepared.extension,
        dtype=prepared.base_dtype,
        device=prepared.device,
        four_bits=rules is not None and rules.base == "4bit",
    )
    if rules is not None:
        model = cast(PreTrainedModel, lora.adapt(model, rules, prepared.recipe.seed))
    try:
        with blocked_attention(model):  # as training has it
            probe = probe_connectivity(model, prepared.extension.target_length, precision=prepared.precision)
    except Exception as error:
        if isinstance(error, SkipwiseError) or out_of_memory(error):
            raise
        # Of the architecture's own code, which positions and a mask of our own reach here first.
        raise ModelError(
            f"model {prepared.recipe.model!r} ({model.config.model_type}) cannot be run as it would be trained "
            f"({type(error).__name__}: {error}); choose another model"
        ) from error
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    return model, probe


def train_run(
    prepared: PreparedRun,
    model: PreTrainedModel,
    run: RunFolder,
    *,
    resume: bool,
    console: Console,
    on_step: Callable[[int], None] | None = None,
) -> PreTrainedModel:
    """Train in place, and return the whole model; the first process keeps the records. ``on_step`` is as ``train`` has it."""
    first = processes.is_first()
    teacher = prepared.teacher(model)
    summary = train(
        model,
        prepared.dataset(_written(prepared, teacher, run, console)),
        collate,
        prepared.recipe.training,
        folder=run.checkpoints,
        seed=prepared.recipe.seed,
        resume=resume,
        run=run.identity,
        on_log=_recorder(prepared, run) if first else None,
        on_step=on_step,
        teacher=teacher,
    )
    check_frequencies(model, prepared.extension)  # as it was trained: an engine may have cast it
    sharded = processes.sharding() is not None  # known until the processes are finished
    processes.finish()
    trained = summary.tokens_per_second > 0  # a resume may find no step left, and then what the run recorded stays
    if first and (trained or not run.read().get("training")):
        run.record(training=vars(summary) | _timed(run, summary.tokens) | {"precision": prepared.precision})
    return _whole(prepared, run, model) if sharded and first else model


def _recorder(prepared: PreparedRun, run: RunFolder) -> Callable[[dict[str, float]], None]:
    """Return what appends the record of a logged step."""
    logged = max((r.step for r in read_records(run.results) if isinstance(r, TrainingRecord)), default=0)

    def keep(log: dict[str, float]) -> None:
        if log["step"] > logged:  # a step trained again after a kill, to the same bits, has its record
            append_record(run.results, TrainingRecord(arm=prepared.recipe.arm, **log))  # type: ignore[arg-type]

    return keep


def _timed(run: RunFolder, tokens: int) -> dict[str, float]:
    """The time of the whole run by its records, and its speed; nothing where a resume left it to records that are not all there."""
    logs = sorted({r.step: r for r in read_records(run.results) if isinstance(r, TrainingRecord)}.items())
    read = [r.tokens for _, r in logs]
    if not logs or read[-1] != tokens:
        return {}
    seconds = sum((r.tokens - before) / r.tokens_per_second for (_, r), before in zip(logs, [0, *read], strict=False))
    return {"seconds": seconds, "tokens_per_second": tokens / seconds}


def _written(prepared: PreparedRun, teacher: Teacher | None, run: RunFolder, console: Console) -> np.ndarray | None:
    """The text that the teacher writes to be trained on, if the recipe asks for it: the first process lets it write."""
    recipe = prepared.recipe
    tokens = written_text.tokens_of(recipe, prepared.window)
    if teacher is None or not tokens:
        return None
    with processes.first_ahead():
        if processes.is_first() and not run.written.exists():
            written_text.write(
                run.written,
                teacher,
                prepared.tokenizer,
                tokens=tokens,
                # Behind its window the base writes nonsense.
                longest=min(prepared.train_length, prepared.extension.rope.original_length),
                seed=recipe.seed,
                console=console,
            )
    texts, fingerprint = written_text.read(run.written)
    run.require_same({written_text.NAME: fingerprint})
    if processes.is_first():
        run.record(fingerprints=(run.read().get("fingerprints") or {}) | {written_text.NAME: fingerprint})
    return texts


def _whole(prepared: PreparedRun, run: RunFolder, trained: PreTrainedModel) -> PreTrainedModel:
    """Load the whole model from the last checkpoint into CPU memory.

    The processes hold only shards of ``trained``, and one GPU may be too small.
    """
    checkpoint = latest_complete(run.checkpoints)
    assert checkpoint is not None
    rules = prepared.recipe.lora
    if rules is None:
        model = load_model(str(checkpoint))
        setattr(model, UNSAVED, getattr(trained, UNSAVED, {}))  # which the checkpoint lacks
        return model
    model = load_model(prepared.recipe.model, prepared.extension, dtype=prepared.base_dtype)
    return cast(PreTrainedModel, lora.adapt(model, rules, state=checkpoint / "adapter_model.safetensors"))


def save_trained(prepared: PreparedRun, model: PreTrainedModel, run: RunFolder) -> None:
    """Save the trained model, in ``training.save_dtype``; merged, or as an adapter in float32, where LoRA was trained."""
    check_frequencies(model, prepared.extension)
    rules, adapter_of = prepared.recipe.lora, None
    if rules and rules.saved == "adapter":
        adapter_of = prepared.recipe.model
    elif rules:
        model = lora.merged(model, load_model(prepared.recipe.model, prepared.extension))
    if not adapter_of:
        round_weights(model, getattr(torch, prepared.recipe.training.save_dtype))
    with disk_space(partial_of(run.model), checkpoint_bytes(model), "the model", checkpoints=run.checkpoints):
        save_extended(
            model, prepared.tokenizer, prepared.extension, run.model, origin=prepared.origin, adapter_of=adapter_of
        )


def say_lost_steps(recipe: Recipe, run: RunFolder, console: Console) -> None:
    """Say which logged training steps have no record; the loss curve would pass over them in silence."""
    last, every = recipe.training.max_steps, recipe.training.logging_steps
    known = {record.step for record in read_records(run.results) if isinstance(record, TrainingRecord)}
    if lost := sorted({*range(every, last + 1, every), last} - known):
        console.print(
            f"{run.results} has lost the training records of {counted(len(lost), 'step')}, of which the first is "
            f"{lost[0]:,}: the loss curve lacks them",
            style="yellow",
        )

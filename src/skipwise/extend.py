"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

Each stage leaves files that the next one reads, and is passed over when a resumed run finds them whole.
"""

import time
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel

from skipwise.data.window import collate
from skipwise.errors import ModelError, PeerError, RunError, SkipwiseError, counted
from skipwise.evaluation.arms import RunEvaluation, plan_evaluation
from skipwise.evaluation.batches import keeping_losses
from skipwise.evaluation.forecast import (
    batches_of,
    beyond_memory,
    measuring_seconds,
    planned_operations,
    told,
    told_measuring,
    training_seconds,
)
from skipwise.evaluation.runner import answered, require_memory
from skipwise.method.coverage import coverage
from skipwise.model import lora
from skipwise.model.config import load_config
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.forward_cost import ForwardCost, Speed
from skipwise.model.loading import load_model
from skipwise.model.memory import parameters_of
from skipwise.model.precision import AUTOCAST
from skipwise.model.probe import Probe, probe_connectivity
from skipwise.model.rope import check_frequencies, extension_of
from skipwise.model.saving import require_saved, save_extended
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Recipe
from skipwise.report.longppl_table import long_perplexities
from skipwise.report.model_card import write_card
from skipwise.report.page import write_page
from skipwise.report.price import price_warning
from skipwise.report.summary import Folder, arm_name, judgements, read_folder, rows_of
from skipwise.report.tables import summary_markdown, summary_table
from skipwise.report.trackers import log_results, one_run
from skipwise.results import token_losses
from skipwise.results.records import (
    CoverageRecord,
    Measured,
    TrainingRecord,
    append_record,
    drop_cut_off_record,
    read_records,
    require_results,
)
from skipwise.results.run_folder import DECIDES, RunFolder
from skipwise.training import best_checkpoint, processes, written
from skipwise.training.arguments import reported_to
from skipwise.training.checkpoints import checkpoint_bytes, complete_checkpoints, disk_space, latest_complete, step_of
from skipwise.training.cost import taught_share
from skipwise.training.prepare import PreparedRun, prepare, print_plan, require_trainable
from skipwise.training.run import begin_run, open_run
from skipwise.training.trainer import train


def extend(recipe: Recipe, *, out: Path | None, resume: bool, console: Console) -> RunFolder:
    """Run the whole job into a folder of its own and return it.

    Of several processes the first does all but the training, in which the others join it. An error leaves intact what
    was written.
    """
    prepared, error = None, None
    with processes.first_ahead():
        try:
            if resume and out is not None and out.exists():
                require_results(RunFolder(out).results)  # before the model is looked for: of an old run it may be gone
            require_trainable(recipe)
            prepared = prepare(recipe, console)
        except SkipwiseError as met:
            error = met
    processes.end_together(error)
    assert prepared is not None
    if not processes.is_first():
        return _join(prepared, resume, console)
    evaluation = plan_run_evaluation(prepared, console)
    require_measurable(prepared, evaluation)
    run = open_run(recipe, out, prepared.name, resume=resume)
    if run.path.exists():
        require_results(run.results)
    decides = _decides(prepared)
    fingerprints = {**decides, **evaluation.fingerprints}
    run.require_same(**fingerprints)
    curves = _coverage(prepared)
    print_plan(prepared, console)
    if run.model.exists():
        require_saved(run.model)
    model = None if run.model.exists() else _load_and_probe(prepared, console)
    if run.results.exists() and not run.facts.exists():
        console.print(f"{run.facts} was lost, and with it what it said of the run's beginning", style="yellow")
    begin_run(run, recipe, resume=resume)
    console.print(f"run folder: {run.path}")
    run.record(
        model=_model_facts(prepared),
        data=_data_facts(prepared),
        evaluation=evaluation_facts(evaluation),
        fingerprints=run.read().get("fingerprints", {}) | fingerprints,
    )
    if drop_cut_off_record(run.results):
        console.print(f"{run.results}: the last record was cut off by a kill; it is measured again", style="yellow")
    processes.told_by_first((run.path.absolute(), run.identity, decides, model is not None))
    processes.end_together(None)
    if model is not None:
        with one_run(run):
            trained = _train(prepared, model, run, resume, console, evaluation)
        if recipe.evaluation.keep == "best":
            _take_best(evaluation, trained, run, console)
        _save(prepared, trained, run)
        del model, trained
    drawn = {record.label for record in read_records(run.results) if isinstance(record, CoverageRecord)}
    append_record(run.results, *(curve for curve in curves if curve.label not in drawn))
    measure_arms(evaluation, run, console)
    _say_lost_steps(recipe, run, console)
    write_page([run.path])
    measured = read_folder(run.path)
    _write_card(prepared, run, measured)
    with one_run(run):
        log_results(reported_to(recipe.training), run, measured, console)
    console.print(summary_table(measured))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")
    return run


def _say_lost_steps(recipe: Recipe, run: RunFolder, console: Console) -> None:
    """Say which logged training steps have no record; the loss curve would pass over them in silence."""
    last, every = recipe.training.max_steps, recipe.training.logging_steps
    known = {record.step for record in read_records(run.results) if isinstance(record, TrainingRecord)}
    if lost := sorted({*range(every, last + 1, every), last} - known):
        console.print(
            f"{run.results} has lost the training records of {counted(len(lost), 'step')}, of which the first is "
            f"{lost[0]:,}: the loss curve lacks them",
            style="yellow",
        )


def plan_run_evaluation(prepared: PreparedRun, console: Console) -> RunEvaluation:
    """Plan what is measured of a prepared run; what cannot be measured is refused."""
    return plan_evaluation(
        prepared.recipe,
        prepared.extension,
        prepared.tokenizer,
        prepared.store,
        prepared.origin,
        prepared.precision,
        console,
    )


def require_measurable(prepared: PreparedRun, evaluation: RunEvaluation) -> None:
    """Refuse windows and prompts that this machine's memory is certain not to hold."""
    config, itemsize = load_config(prepared.recipe.model), (AUTOCAST[prepared.precision] or torch.float32).itemsize
    weights = itemsize * (parameters_of(config) or 0)
    require_memory(config, prepared.device, itemsize, batches_of(evaluation), weights)


def print_forecast(prepared: PreparedRun, evaluation: RunEvaluation, console: Console) -> None:
    """Print how long the run takes on this machine, by a short timing of its layers."""
    config, rule = load_config(prepared.recipe.model), prepared.recipe.training
    cost, speed = ForwardCost.of_config(config), Speed.measured(config, prepared.precision, prepared.device)
    window = prepared.dataset().plans(np.arange(1)).position_ids().shape[1]
    tokens = rule.max_steps * rule.batch_size * window
    if prepared.recipe.teacher:  # a token that it writes takes about as long as one that is trained on
        tokens = int(tokens * (1 + taught_share(prepared.recipe))) + written.tokens_of(
            prepared.recipe, prepared.train_length
        )
    training = training_seconds(config, tokens, window, prepared.precision, prepared.device)
    console.print(told(training, measuring_seconds(batches_of(evaluation), cost, speed)))


def print_planned_measuring(recipe: Recipe, rate: float, memory: float, console: Console) -> None:
    """Print how long one GPU of ``rate`` operations a second measures what a recipe asks for, and what of it cannot fit
    ``memory`` bytes."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    lengths = extension.rope.original_length, extension.target_length
    operations = planned_operations(recipe, *lengths, ForwardCost.of_config(config))
    seconds = {part: count / rate for part, count in operations.items()}
    console.print(f"Besides training, {told_measuring(seconds)}, on one GPU.")
    for told_of in beyond_memory(recipe, *lengths, config, memory):
        console.print(told_of, style="yellow", soft_wrap=True)


def evaluation_facts(evaluation: RunEvaluation) -> dict[str, object]:
    """What a run measures, for ``run.json``: a resumed run may ask for less than its records hold."""
    asked = evaluation.specification
    return {
        "documents": evaluation.documents,
        "windows": asked.windows,
        "prompt_lengths": asked.prompt_lengths,
        "trials": asked.trials,
        "other": evaluation.other is not None,
    }


def measure_arms(evaluation: RunEvaluation, run: RunFolder, console: Console) -> None:
    """Measure every arm; what the results hold already is not measured again. Losses of single tokens are kept for LongPPL."""
    for arm in evaluation.recipe.evaluation.arms:
        model = evaluation.model(arm, run.model)
        load = partial(model.load, evaluation.specification.precision)
        batches = keeping_losses(evaluation.batches(model), run.path / token_losses.FOLDER)
        answered(load, batches, run.results, console)


def _join(prepared: PreparedRun, resume: bool, console: Console) -> RunFolder:
    """Train with the first process, which does everything else."""
    path, identity, decides, training = processes.told_by_first(None)
    run = RunFolder(path)
    processes.end_together(_other_machine(prepared, run, identity, decides))
    if training:
        try:
            _train(prepared, _load_and_probe(prepared, console), run, resume, console)
        except SkipwiseError as error:
            raise PeerError(str(error)) from error  # the first has not met it
    return run


def _other_machine(prepared: PreparedRun, run: RunFolder, identity: str, decides: dict[str, str]) -> RunError | None:
    """What this process has otherwise than the first, where it runs on another machine."""
    for name, value in _decides(prepared).items():
        if value != decides[name]:
            return RunError(
                f"the {name} is not that of process 0 (fingerprint {value[:12]}, there {decides[name][:12]}): give every "
                "machine the same"
            )
    if not run.facts.exists() or run.identity != identity:
        return RunError(
            f"the run folder {run.path} is not the folder that process 0 writes: give --out on a disk that all machines "
            "share, under the same path"
        )
    return None


def _decides(prepared: PreparedRun) -> dict[str, str]:
    """Fingerprints of what decides the model besides the settings."""
    found = prepared.store.fingerprint, weights_fingerprint(prepared.recipe.model)
    return dict(zip(DECIDES, found, strict=True))


def _load_and_probe(prepared: PreparedRun, console: Console) -> tuple[PreTrainedModel, Probe]:
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
        probe = probe_connectivity(model, prepared.extension.target_length, precision=prepared.precision)
    except SkipwiseError:
        raise
    except Exception as error:
        # Of the architecture's own code, which positions and a mask of our own reach here first.
        raise ModelError(
            f"model {prepared.recipe.model!r} ({model.config.model_type}) cannot be run as it would be trained "
            f"({type(error).__name__}: {error}); choose another model"
        ) from error
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    return model, probe


def _train(
    prepared: PreparedRun,
    probed: tuple[PreTrainedModel, Probe],
    run: RunFolder,
    resume: bool,
    console: Console,
    evaluation: RunEvaluation | None = None,
) -> PreTrainedModel:
    """Train in place, and return the whole model; the first process, which has an ``evaluation``, keeps the records."""
    model, probe = probed
    arm = prepared.recipe.arm
    first = evaluation is not None
    logged = max((r.step for r in read_records(run.results) if isinstance(r, TrainingRecord)), default=0)

    def keep(log: dict[str, float]) -> None:
        if log["step"] > logged:  # a step trained again after a kill, to the same bits, has its record
            append_record(run.results, TrainingRecord(arm=arm, **log))  # type: ignore[arg-type]

    def measure(step: int) -> None:
        if evaluation is not None and step in evaluation.steps:
            _measure_step(evaluation, run, model, step)

    if evaluation is not None:
        run.record(probe=probe.as_dict())
        if evaluation.far:
            _require_best(evaluation, run)
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
        on_log=keep if first else None,
        on_step=measure,
        teacher=teacher,
        progress=first,
    )
    sharded = processes.launched() > 1 and processes.engine() != "ddp"
    check_frequencies(model, prepared.extension)  # as it was trained: an engine may have cast it
    processes.finish()
    if first:
        run.record(training=vars(summary) | {"precision": prepared.precision})
    return _whole(prepared, run) if sharded and first else model


def _written(prepared: PreparedRun, teacher: Teacher | None, run: RunFolder, console: Console) -> np.ndarray | None:
    """The text that the teacher writes to be trained on, if the recipe asks for it: the first process lets it write."""
    recipe = prepared.recipe
    tokens = written.tokens_of(recipe, prepared.train_length)
    if teacher is None or not tokens:
        return None
    with processes.first_ahead():
        if processes.is_first() and not run.written.exists():
            written.write(
                run.written,
                teacher,
                prepared.tokenizer,
                tokens=tokens,
                # Behind its window the base writes nonsense.
                longest=min(prepared.train_length, prepared.extension.rope.original_length),
                seed=recipe.seed,
                console=console,
            )
    texts, fingerprint = written.read(run.written)
    run.require_same(**{written.NAME: fingerprint})
    if processes.is_first():
        run.record(fingerprints=(run.read().get("fingerprints") or {}) | {written.NAME: fingerprint})
    return texts


def _whole(prepared: PreparedRun, run: RunFolder) -> PreTrainedModel:
    """The model of the last checkpoint, which the engine gathered, in the machine's memory: a GPU may not hold it."""
    checkpoint = latest_complete(run.checkpoints)
    assert checkpoint is not None
    rules = prepared.recipe.lora
    if rules is None:
        return load_model(str(checkpoint))
    model = load_model(prepared.recipe.model, prepared.extension, dtype=prepared.base_dtype)
    return cast(PreTrainedModel, lora.adapt(model, rules, state=checkpoint / "adapter_model.safetensors"))


def _measure_step(evaluation: RunEvaluation, run: RunFolder, model: PreTrainedModel, step: int) -> None:
    """Measure the model in training; keep its weights if it is the best so far and the recipe keeps the best.

    The weights are whole before their records are written, and those of the step before go only after: wherever a kill
    falls, the weights of the best step on record are there, and a step without records is trained and measured again.
    """
    records = read_records(run.results)
    known = {record.key for record in records if isinstance(record, Measured)}
    batches = evaluation.step_batches(step)
    if all(request.key in known for batch in batches for request in batch.requests):
        return
    made = [record for batch in batches for record in batch.answers(model)]
    losses = evaluation.far_losses([*records, *made])
    best = bool(losses) and best_checkpoint.best_step(losses) == step
    if best:
        best_checkpoint.save(model, run.checkpoints, step)
    append_record(run.results, *made)
    if best:
        best_checkpoint.drop_others(run.checkpoints, step)


def _require_best(evaluation: RunEvaluation, run: RunFolder) -> None:
    """Require, before hours of training go on, the weights of the best step so far, and the records of all steps so
    far, which a resume does not pass again."""
    losses = evaluation.far_losses(read_records(run.results))
    passed = max(map(step_of, complete_checkpoints(run.checkpoints)), default=0)
    if lost := [step for step in evaluation.steps if step <= passed and step not in losses]:
        raise RunError(
            f"{run.results} has no record of step {lost[0]:,}, and the best step is chosen by it; restore it, or begin "
            "a run with another --out"
        )
    if losses:
        best_checkpoint.require(run.checkpoints, best_checkpoint.best_step(losses))


def _take_best(evaluation: RunEvaluation, model: PreTrainedModel, run: RunFolder, console: Console) -> None:
    """Give the trained model the weights of its best step, and say which step that is."""
    losses = evaluation.far_losses(read_records(run.results))
    step, last = best_checkpoint.best_step(losses), evaluation.recipe.training.max_steps
    best_checkpoint.restore(model, run.checkpoints, step)
    best_checkpoint.drop_others(run.checkpoints, step)
    run.record(kept={"step": step, "of": last, "far_loss": losses[step]})
    console.print(
        f"the best step is {step:,} of {last:,}: mean loss {losses[step]:.4f} nats beyond "
        f"{evaluation.extension.rope.original_length:,} tokens, {losses[last]:.4f} after the last step"
    )


def _save(prepared: PreparedRun, model: PreTrainedModel, run: RunFolder) -> None:
    """Save the trained model, merged or as an adapter where LoRA was trained."""
    check_frequencies(model, prepared.extension)
    rules, adapter_of = prepared.recipe.lora, None
    if rules and rules.saved == "adapter":
        adapter_of = prepared.recipe.model
    elif rules:
        model = lora.merged(model, load_model(prepared.recipe.model, prepared.extension))
    partial = run.model.with_name("model.partial")
    with disk_space(partial, checkpoint_bytes(model), "the model", checkpoints=run.checkpoints):
        save_extended(
            model, prepared.tokenizer, prepared.extension, run.model, origin=prepared.origin, adapter_of=adapter_of
        )


def _coverage(prepared: PreparedRun) -> list[CoverageRecord]:
    """The chance that one example trains each relative distance: without skips, and as this run draws them."""
    rule = prepared.recipe.positions
    lengths = prepared.train_length, prepared.extension.reach
    if lengths[0] == lengths[1]:  # every distance is in every window
        return []
    curve = coverage(*lengths, rule.rules, scheme=rule.scheme, seed=prepared.recipe.seed)
    original = coverage(*lengths, scheme="short")
    label = counted(rule.chunks, "chunk") if rule.scheme == "pose" else arm_name(rule.scheme)
    return [CoverageRecord.of(original, "original"), CoverageRecord.of(curve, label)]


def _model_facts(prepared: PreparedRun) -> dict[str, object]:
    extension = prepared.extension
    return {
        "name": prepared.recipe.model,
        "original_length": extension.rope.original_length,
        "target_length": extension.target_length,
        "train_length": prepared.train_length,
        "factor": extension.factor,
        "interpolation": extension.interpolation,
        "margin": extension.margin,
    }


def _data_facts(prepared: PreparedRun) -> dict[str, object]:
    return {
        "source": prepared.recipe.data.source,
        "fingerprint": prepared.store.fingerprint,
        "documents": len(prepared.store),
        "tokens": int(prepared.store.lengths.sum()),
        "kept": len(prepared.train),
        "dropped": prepared.dropped,
        "held_out": len(prepared.held_out),
    }


def _write_card(prepared: PreparedRun, run: RunFolder, measured: Folder) -> None:
    """Write the model card from what was measured."""
    facts, extension, judged = run.read(), prepared.extension, judgements(rows_of([measured]))
    best = {}
    margin = (
        f", for {extension.reach:,} tokens: a margin of {extension.margin:g} of the target" if extension.margin else ""
    )
    if kept := facts.get("kept"):
        text = (prepared.recipe.evaluation.source or [prepared.recipe.data.source])[0]
        best["step"] = (
            f"{kept['step']:,} of {kept['of']:,}, chosen by the loss beyond {extension.rope.original_length:,} tokens "
            f"on held-out documents of {text}"
        )
    write_card(
        run.model,
        title=f"{prepared.recipe.model}, extended from {extension.rope.original_length:,} to "
        f"{extension.target_length:,} tokens",
        headline=judged[0].headline if judged else "How far it reads was not measured",
        warning=price_warning(measured),
        facts={
            "method": f"{arm_name(prepared.recipe.arm)}, trained on windows of {prepared.train_length:,} tokens",
            "interpolation": f"{extension.told} x{extension.factor:g}{margin}",
            "text": f"{prepared.recipe.data.source} (fingerprint {prepared.store.fingerprint[:16]})",
            **best,
            "seed": str(prepared.recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        table=summary_markdown(measured),
        longppl=[one.sentence for one in long_perplexities(measured)],
        figure=run.figures / "perplexity.png",
        base=prepared.recipe.model,
        rows=rows_of([measured]),
    )

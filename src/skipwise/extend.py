"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

Each stage leaves files that the next one reads, and is passed over when a resumed run finds them whole.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.console import Console
from transformers import PreTrainedModel

from skipwise import kept, processes
from skipwise.arms import EvaluationPlan, evaluate, evaluate_step, measured_steps, plan_evaluation
from skipwise.coverage import coverage, coverage_record
from skipwise.data.examples import collate
from skipwise.errors import ModelError, RunError, SkipwiseError
from skipwise.guards import checkpoint_bytes, complete_checkpoints, disk_space, latest_complete, step_of
from skipwise.job import Job, describe, prepare
from skipwise.measure import AUTOCAST
from skipwise.model import lora
from skipwise.model.loading import load_model
from skipwise.model.probe import Probe, probe_connectivity
from skipwise.model.rope import check_frequencies
from skipwise.model.saving import require_whole, save_extended, write_card
from skipwise.recipe import Recipe
from skipwise.report.page import write_report
from skipwise.report.summary import summary_markdown, summary_table
from skipwise.results import (
    CoverageRecord,
    Record,
    TrainingRecord,
    append_record,
    drop_torn_record,
    read_records,
)
from skipwise.run_folder import RunFolder, open_run
from skipwise.training import train


def extend(recipe: Recipe, *, out: Path | None, resume: bool, console: Console) -> RunFolder:
    """Run the whole job into a folder of its own and return it.

    Of several processes the first does all but the training, in which the others join it.

    Raises:
        SkipwiseError: a user's mistake, or training that cannot go on; what was written stays intact.
    """
    with processes.first_ahead():
        job = prepare(recipe, console)
    if not processes.is_first():
        return _join(job, resume, console)
    evaluation = plan_evaluation(job, console)
    run = open_run(recipe, out, job.name, resume=resume)
    fingerprints = {"training text": job.store.fingerprint, **evaluation.fingerprints}
    run.require_same(**fingerprints)
    curves = _coverage(job)
    describe(job, console)
    if run.model.exists():
        require_whole(run.model)
    model = None if run.model.exists() else _load_and_probe(job, console)
    run.begin(recipe)
    console.print(f"run folder: {run.path}")
    run.record(
        model=_model_facts(job),
        data=_data_facts(job),
        evaluation={"documents": evaluation.documents},
        fingerprints=run.read().get("fingerprints", {}) | fingerprints,
    )
    if drop_torn_record(run.results):
        console.print("the last record was cut off by a kill; it is measured again", style="yellow")
    processes.told_by_first((run.path, model is not None))
    if model is not None:
        trained = _train(job, model, run, resume, evaluation)
        if recipe.evaluation.keep == "best":
            _take_best(job, trained, run, console)
        _save(job, trained, run)
        del model, trained
    _record_coverage(run, curves)
    evaluate(job, evaluation, run, console)
    records = read_records(run.results)
    write_report([run.path])
    _write_card(job, run, records)
    console.print(summary_table(records))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")
    return run


def _join(job: Job, resume: bool, console: Console) -> RunFolder:
    """Train with the first process, which does everything else."""
    path, training = processes.told_by_first(None)
    run = RunFolder(path)
    try:
        if training:
            _train(job, _load_and_probe(job, console), run, resume)
    except SkipwiseError as error:  # of this process alone: the first has not met it
        print(f"skipwise: process {os.environ.get('RANK')}: {error}", file=sys.stderr)
        raise
    return run


def _load_and_probe(job: Job, console: Console) -> tuple[PreTrainedModel, Probe]:
    """Load the interpolated model, as it is to be trained, and prove that its chunks attend to each other."""
    rules = job.recipe.lora
    if rules is None:
        model = load_model(job.recipe.model, job.extension, device=job.device)
    else:
        base = load_model(
            job.recipe.model,
            job.extension,
            dtype=job.base_dtype,
            device=job.device,
            four_bits=rules.base == "4bit",
        )
        model = cast(PreTrainedModel, lora.adapt(base, rules, job.recipe.seed))
    try:
        probe = probe_connectivity(model, job.extension.target_length, precision=AUTOCAST[job.precision])
    except SkipwiseError:
        raise
    except Exception as error:
        # Of the architecture's own code, which positions and a mask of our own reach here first.
        raise ModelError(
            f"model {job.recipe.model!r} ({model.config.model_type}) cannot be run as it would be trained "
            f"({type(error).__name__}: {error}); choose another model"
        ) from error
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    return model, probe


def _train(
    job: Job,
    probed: tuple[PreTrainedModel, Probe],
    run: RunFolder,
    resume: bool,
    evaluation: EvaluationPlan | None = None,
) -> PreTrainedModel:
    """Train in place, and return the whole model; the first process, which has an ``evaluation``, keeps the records."""
    model, probe = probed
    arm = job.recipe.positions.scheme
    first = evaluation is not None
    logged = max((r.step for r in read_records(run.results) if isinstance(r, TrainingRecord)), default=0)

    def keep(log: dict[str, float]) -> None:
        if log["step"] > logged:  # a step trained again after a kill, to the same bits, has its record
            append_record(run.results, TrainingRecord(arm=arm, **log))  # type: ignore[arg-type]

    def measure(step: int) -> None:
        if evaluation is not None:
            evaluate_step(job, evaluation, run, model, step)

    if first:
        run.record(probe=probe.as_dict())
        if job.recipe.evaluation.keep == "best":
            _require_kept(job, run)
    summary = train(
        model,
        job.dataset(),
        collate,
        job.recipe.training,
        folder=run.checkpoints,
        seed=job.recipe.seed,
        resume=resume,
        on_log=keep if first else None,
        on_step=measure,
        progress=first,
    )
    sharded = processes.launched() > 1 and processes.engine() != "ddp"
    check_frequencies(model, job.extension)  # as it was trained: an engine may have cast it
    processes.finish()
    if first:
        run.record(training=vars(summary) | {"precision": job.precision})
    return _whole(job, run) if sharded and first else model


def _whole(job: Job, run: RunFolder) -> PreTrainedModel:
    """The model of the last checkpoint, which the engine gathered, in the machine's memory: a GPU may not hold it."""
    checkpoint = latest_complete(run.checkpoints)
    assert checkpoint is not None
    rules = job.recipe.lora
    if rules is None:
        return load_model(str(checkpoint))
    model = load_model(job.recipe.model, job.extension, dtype=job.base_dtype)
    return cast(PreTrainedModel, lora.adapt(model, rules, state=checkpoint / "adapter_model.safetensors"))


def _require_kept(job: Job, run: RunFolder) -> None:
    """Require what the steps so far left, before hours of training go on.

    Raises:
        RunError: a step's record is gone, which a resume does not pass again, or the weights of the best one.
    """
    losses = kept.far_losses(read_records(run.results))
    passed = max(map(step_of, complete_checkpoints(run.checkpoints)), default=0)
    if lost := [step for step in measured_steps(job.recipe) if step <= passed and step not in losses]:
        raise RunError(
            f"{run.results} has no record of step {lost[0]:,}, and the best step is chosen by it; bring it back, or begin "
            "a run with another --out"
        )
    if losses:
        kept.require(run.checkpoints, kept.best_step(losses))


def _take_best(job: Job, model: PreTrainedModel, run: RunFolder, console: Console) -> None:
    """Give the trained model the weights of its best step, and say which that is."""
    losses = kept.far_losses(read_records(run.results))
    step, last = kept.best_step(losses), job.recipe.training.max_steps
    kept.restore(model, run.checkpoints, step)
    kept.drop_others(run.checkpoints, step)
    run.record(kept={"step": step, "of": last, "far_loss": losses[step]})
    console.print(
        f"kept step {step:,} of {last:,}: mean loss {losses[step]:.4f} beyond "
        f"{job.extension.rope.original_length:,} tokens, {losses[last]:.4f} after the last step"
    )


def _save(job: Job, model: PreTrainedModel, run: RunFolder) -> None:
    """Save the trained model, merged or as an adapter where LoRA was trained."""
    check_frequencies(model, job.extension)
    rules, adapter_of = job.recipe.lora, None
    if rules and rules.saved == "adapter":
        adapter_of = job.recipe.model
    elif rules:
        model = lora.merged(model, load_model(job.recipe.model, job.extension))
    partial = run.model.with_name("model.partial")
    with disk_space(partial, checkpoint_bytes(model), "the model", checkpoints=run.checkpoints):
        save_extended(model, job.tokenizer, job.extension, run.model, adapter_of=adapter_of)


def _coverage(job: Job) -> list[CoverageRecord]:
    """The chance that one example trains each relative distance: without skips, and as this run draws them."""
    rule = job.recipe.positions
    curve = coverage(
        job.train_length,
        job.extension.target_length,
        rule.chunks,
        scheme=rule.scheme,
        lengths=rule.lengths,
        skips=rule.skips,
        seed=job.recipe.seed,
    )
    names = {"pose": f"{rule.chunks} chunks", "randpos": "RandPos", "cream": "CREAM", "full": "full-length"}
    original = coverage(job.train_length, curve.target_length, 1)
    label = names.get(rule.scheme, rule.scheme)
    return [coverage_record(original, "original"), coverage_record(curve, label)]


def _record_coverage(run: RunFolder, curves: list[CoverageRecord]) -> None:
    """Put the curves beside the results, once a run."""
    if not any(isinstance(record, CoverageRecord) for record in read_records(run.results)):
        for curve in curves:
            append_record(run.results, curve)


def _model_facts(job: Job) -> dict[str, object]:
    extension = job.extension
    return {
        "name": job.recipe.model,
        "original_length": extension.rope.original_length,
        "target_length": extension.target_length,
        "train_length": job.train_length,
        "factor": extension.factor,
        "interpolation": extension.interpolation,
    }


def _data_facts(job: Job) -> dict[str, object]:
    return {
        "source": job.recipe.data.source,
        "fingerprint": job.store.fingerprint,
        "documents": len(job.store),
        "tokens": int(job.store.lengths.sum()),
        "kept": len(job.train),
        "dropped": job.dropped,
        "held_out": len(job.held_out),
    }


def _write_card(job: Job, run: RunFolder, records: Sequence[Record]) -> None:
    facts = run.read()
    extension = job.extension
    write_card(
        run.model,
        title=f"{job.recipe.model}, extended from {extension.rope.original_length:,} to "
        f"{extension.target_length:,} tokens",
        facts={
            "method": f"{job.recipe.positions.scheme}, trained on windows of {job.train_length:,} tokens",
            "interpolation": f"{extension.interpolation} x{extension.factor:g}",
            "text": f"{job.recipe.data.source} (fingerprint {job.store.fingerprint[:16]})",
            **_kept_fact(job, run),
            "seed": str(job.recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        table=summary_markdown(list(records)),
        figure=run.figures / "perplexity.png",
    )


def _kept_fact(job: Job, run: RunFolder) -> dict[str, str]:
    """Which step was kept, and that it was chosen on a text that is measured on, as the card says it."""
    if (step := run.read().get("kept")) is None:
        return {}
    text = (job.recipe.evaluation.source or [job.recipe.data.source])[0]
    return {
        "kept": f"step {step['step']:,} of {step['of']:,}, chosen by loss beyond "
        f"{job.extension.rope.original_length:,} tokens on {text}, held out"
    }

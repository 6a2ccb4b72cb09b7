"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

Each stage leaves files that the next one reads, and is passed over when a resumed run finds them whole.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import PreTrainedModel

from skipwise.coverage import coverage, coverage_record
from skipwise.data.examples import collate
from skipwise.data.tokens import check_vocabulary
from skipwise.job import Job, describe, prepare, tokenise_source
from skipwise.measure import (
    AUTOCAST,
    Measurement,
    identity,
    longest_documents,
    measure,
    passkey_measurement,
    perplexity_measurement,
)
from skipwise.model.loading import check_frequencies, load_config, load_model
from skipwise.model.probe import probe_connectivity
from skipwise.model.saving import save_extended, write_card
from skipwise.recipe import Arm, Evaluation, Recipe
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

    Raises:
        SkipwiseError: a user's mistake, or training that cannot go on; what was written stays intact.
    """
    job = prepare(recipe, console)
    documents, names = evaluation_documents(job, console)
    plans = {arm: _measurements(job, arm, documents) for arm in recipe.evaluation.arms}
    run = open_run(recipe, out, job.name, resume=resume)
    describe(job, console)
    console.print(f"run folder: {run.path}")
    run.record(model=_model_facts(job), data=_data_facts(job), evaluation={"documents": names})
    if drop_torn_record(run.results):
        console.print("[yellow]the last record was cut off by a kill; it is measured again[/]")
    if not run.model.exists():
        _train_and_save(job, run, resume, console)
    _record_coverage(job, run)
    _evaluate(job, plans, run, console)
    records = read_records(run.results)
    write_report([run.path])
    _write_card(job, run, records)
    console.print(summary_table(records))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")
    return run


def _train_and_save(job: Job, run: RunFolder, resume: bool, console: Console) -> None:
    model = load_model(job.recipe.model, job.extension, device=job.device)
    probe = probe_connectivity(model, job.extension.target_length, precision=AUTOCAST[job.precision])
    run.record(probe=probe.as_dict())
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    arm = job.recipe.positions.scheme

    def keep(log: dict[str, float]) -> None:
        append_record(run.results, TrainingRecord(arm=arm, **log))  # type: ignore[arg-type]

    summary = train(
        model,
        job.dataset(),
        collate,
        job.recipe.training,
        folder=run.checkpoints,
        seed=job.recipe.seed,
        resume=resume,
        on_log=keep,
    )
    run.record(training=vars(summary) | {"precision": job.precision})
    check_frequencies(model, job.extension)
    save_extended(model, job.tokenizer, job.extension, run.model)


def _record_coverage(job: Job, run: RunFolder) -> None:
    """Put the chance of each relative distance beside the results, once a run."""
    if any(isinstance(record, CoverageRecord) for record in read_records(run.results)):
        return
    rule = job.recipe.positions
    curve = coverage(
        job.train_length,
        job.extension.target_length,
        rule.chunks,
        scheme=rule.scheme,
        lengths=rule.lengths,
        seed=job.recipe.seed,
    )
    names = {"pose": f"{rule.chunks} chunks", "randpos": "RandPos", "full": "full-length", "short": "short"}
    append_record(
        run.results, coverage_record(coverage(job.train_length, curve.target_length, 1), "original")
    )
    append_record(run.results, coverage_record(curve, names[rule.scheme]))


def _evaluate(job: Job, plans: dict[Arm, list[Measurement]], run: RunFolder, console: Console) -> None:
    """Measure every arm; what the results hold already is not measured again."""
    known = {identity(record) for record in read_records(run.results)}
    for arm, plan in plans.items():
        missing = [m for m in plan if m.identity not in known]
        if missing:
            model = _arm_model(job, run, arm).eval()
            measure(model, missing, _label(job, arm), console, lambda r: append_record(run.results, r))


def _label(job: Job, arm: Arm) -> str:
    """The arm's name in the results: a trained one is called after its scheme."""
    return job.recipe.positions.scheme if arm == "trained" else arm


def _measurements(job: Job, arm: Arm, documents: list[np.ndarray]) -> list[Measurement]:
    """What is measured of one arm; settings that cannot be measured are refused here, before training."""
    rule, target = job.recipe.evaluation, job.extension.target_length
    original = job.extension.rope.original_length
    label, data = _label(job, arm), rule.source or job.recipe.data.source
    plan = []
    windows = evaluation_windows(rule, original, target)
    for window in windows:
        stride = rule.stride or min(max(original // 2, target // 16), window // 2)
        plan.append(perplexity_measurement(label, documents, window, stride, job.precision, data))
    if rule.passkey_trials:
        for length in rule.passkey_lengths or windows:
            plan.append(
                passkey_measurement(
                    label, job.tokenizer, length, rule.passkey_trials, job.recipe.seed, job.precision
                )
            )
    return plan


def evaluation_windows(rule: Evaluation, original: int, target: int) -> list[int]:
    """The windows asked for, else the original length doubled up to the target, which is always in."""
    if rule.windows:
        return sorted(set(rule.windows))
    doubled = [original * 2**k for k in range(32) if original * 2**k < target]
    return [*doubled, target]


def evaluation_documents(job: Job, console: Console) -> tuple[list[np.ndarray], list[str]]:
    """The documents measured on, cut to ``tokens_per_document``, and their names.

    What training held out, or all of ``evaluation.source``; the longest first.

    Raises:
        DataError: nothing is held out.
    """
    rule = job.recipe.evaluation
    store, candidates = job.store, job.held_out
    if rule.source:
        store = tokenise_source(job.recipe, rule.source, job.tokenizer, console)
        check_vocabulary(store, load_config(job.recipe.model).vocab_size)
        candidates = np.arange(len(store))
    window = evaluation_windows(rule, job.extension.rope.original_length, job.extension.target_length)[-1]
    limit = rule.tokens_per_document or 2 * window
    return longest_documents(
        store, candidates, window=window, most=rule.documents, limit=limit, console=console
    )


def _arm_model(job: Job, run: RunFolder, arm: Arm) -> PreTrainedModel:
    if arm == "original":
        return load_model(job.recipe.model, device=job.device)
    if arm == "pi-only":
        return load_model(job.recipe.model, job.extension, device=job.device)
    return load_model(str(run.model), device=job.device)


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
            "seed": str(job.recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        table=summary_markdown(list(records)),
        figure=run.figures / "perplexity.png",
    )

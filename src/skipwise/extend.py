"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

Each stage leaves files that the next one reads, and is passed over when a resumed run finds them whole. Training, evaluation
and report do not import each other; what takes two of them is here.
"""

from pathlib import Path

from rich.console import Console
from transformers import PreTrainedModel

from skipwise.errors import RunError, counted
from skipwise.evaluation.arms import RunEvaluation, measure_arms, plan_evaluation
from skipwise.evaluation.forecast import require_measurable
from skipwise.evaluation.runner import explained_answers
from skipwise.fit.recipe import fitted_recipe
from skipwise.method.coverage import coverage
from skipwise.model.saving import require_saved
from skipwise.recipes.names import arm_name
from skipwise.recipes.schema import Recipe
from skipwise.report.folder import read_folder
from skipwise.report.model_card import write_run_card
from skipwise.report.page import write_page
from skipwise.report.tables import summary_table
from skipwise.report.trackers import log_results, one_run
from skipwise.results.files import write_text
from skipwise.results.records import (
    CoverageRecord,
    Measured,
    ReadingRecord,
    append_record,
    drop_cut_off_record,
    read_records,
    require_results,
)
from skipwise.results.run_folder import RunFolder
from skipwise.training import best_checkpoint, processes
from skipwise.training.arguments import reported_to
from skipwise.training.checkpoints import complete_checkpoints, step_of
from skipwise.training.extended import load_and_probe, save_trained, say_lost_steps, train_run
from skipwise.training.plan import print_plan
from skipwise.training.prepare import PreparedRun
from skipwise.training.run import begin_run, open_run
from skipwise.training.shared_run import invite, join, prepare_together


def extend(recipe: Recipe, *, out: Path | None, resume: bool, console: Console) -> RunFolder:
    """Run the whole job into a folder of its own and return it.

    Of several processes the first does all but the training, in which the others join it. An error leaves intact what
    was written.
    """
    recipe, fit = fitted_recipe(recipe, out, resume, console)
    prepared = prepare_together(recipe, out, resume, console)
    if not processes.is_first():
        return join(prepared, resume, console)
    evaluation = plan_run_evaluation(prepared, console)
    require_measurable(evaluation, prepared.device)
    run = open_run(recipe, out, prepared.name, resume=resume)
    if run.path.exists():
        require_results(run.results)
    run.require_same(prepared.decides | evaluation.fingerprints)
    _require_precision(prepared, run)
    curves = _coverage(prepared)
    print_plan(prepared, console)
    if run.model.exists():
        require_saved(run.model)
    probed = None if run.model.exists() else load_and_probe(prepared, console)
    _begin(prepared, evaluation, run, resume, console)
    if fit:
        write_text(run.path / fit.name, fit.read_text(encoding="utf-8"))
    _say_passed_steps(evaluation, run, console)
    invite(prepared, run, training=probed is not None)
    if probed is not None:
        model, probe = probed
        run.record(probe=vars(probe))
        _train(prepared, evaluation, model, run, resume, console)
        del model, probed  # memory for the models that are measured
    drawn = {record.label for record in read_records(run.results) if isinstance(record, CoverageRecord)}
    append_record(run.results, *(curve for curve in curves if curve.label not in drawn))
    measure_arms(evaluation, run, console)
    say_lost_steps(recipe, run, console)
    _report(prepared, run, console)
    return run


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


def _coverage(prepared: PreparedRun) -> list[CoverageRecord]:
    """The chance that one example of text trains each relative distance: in windows of the original length, and as this run
    cuts them. Retrieval prompts and texts of the base are left out."""
    rule = prepared.recipe.positions
    lengths = prepared.train_length, prepared.extension.reach
    if prepared.window == lengths[1]:  # every distance is in every window
        return []
    curve = coverage(*lengths, rule.rules, scheme=rule.scheme)
    original = coverage(prepared.extension.rope.original_length, lengths[1], scheme="short")
    label = counted(rule.chunks, "chunk") if rule.scheme == "pose" else arm_name(rule.scheme)
    return [CoverageRecord.of(original, "original"), CoverageRecord.of(curve, label)]


def _require_precision(prepared: PreparedRun, run: RunFolder) -> None:
    """Require a run to go on in the precision that it began with: ``auto`` may choose another one on another machine."""
    begun = run.read().get("precision")
    if begun not in (None, prepared.precision):
        raise RunError(
            f"{run.path} was begun in {begun}, and training.precision = {prepared.recipe.training.precision!r} takes "
            f"{prepared.precision} here; finish it on a machine of the first kind. skipwise report makes its page again anywhere, "
            f"and skipwise evaluate {run.model} measures the model"
        )


def _begin(prepared: PreparedRun, evaluation: RunEvaluation, run: RunFolder, resume: bool, console: Console) -> None:
    """Make the run's folder or go on with it, and record what the run is made of."""
    if run.results.exists() and not run.facts.exists():
        console.print(f"{run.facts} was lost, and with it what it said of the run's beginning", style="yellow")
    begin_run(run, prepared.recipe, resume=resume)
    console.print(f"run folder: {run.path}")
    known = run.read().get("fingerprints", {})
    fingerprints = known | prepared.decides | evaluation.fingerprints
    run.record(**prepared.facts, evaluation=evaluation.facts, fingerprints=fingerprints)
    if drop_cut_off_record(run.results):
        console.print(f"{run.results}: the last record was cut off by a kill; it is measured again", style="yellow")


def _say_passed_steps(evaluation: RunEvaluation, run: RunFolder, console: Console) -> None:
    """Say which training steps a resumed run was asked to measure after it had passed them."""
    passed = max(map(step_of, complete_checkpoints(run.checkpoints)), default=0)
    if run.model.exists():
        passed = evaluation.recipe.training.max_steps
    known = {record.step for record in read_records(run.results) if isinstance(record, ReadingRecord)}
    if late := [f"{step:,}" for step in evaluation.steps if step <= passed and step not in known]:
        told = f"of evaluation.steps not measured, because training is past them: {', '.join(late)}"
        console.print(told, style="yellow", soft_wrap=True)


def _train(
    prepared: PreparedRun,
    evaluation: RunEvaluation,
    model: PreTrainedModel,
    run: RunFolder,
    resume: bool,
    console: Console,
) -> None:
    """Train the model, measured at the recipe's steps, and save it: after the last step, or after the best."""

    def measure(step: int) -> None:
        if step in evaluation.steps:
            _measure_step(evaluation, run, model, step)

    with one_run(run):
        if evaluation.far:
            _require_best(evaluation, run)
        trained = train_run(prepared, model, run, resume=resume, console=console, on_step=measure)
    if prepared.recipe.evaluation.keep == "best":
        _take_best(evaluation, trained, run, console)
    save_trained(prepared, trained, run)


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
    made = [record for batch in batches for record in explained_answers(model, batch)]
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


def _report(prepared: PreparedRun, run: RunFolder, console: Console) -> None:
    """Write the page and the model card, log the results to the recipe's trackers, and print the summary."""
    write_page([run.path])
    measured = read_folder(run.path)
    write_run_card(run, measured, prepared.recipe, prepared.extension)
    with one_run(run):
        log_results(reported_to(prepared.recipe.training), run, measured, console)
    console.print(summary_table(measured))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")

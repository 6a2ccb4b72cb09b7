"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

A resumed run skips the stages that are done. Training, evaluation and report do not import each other.
"""

from datetime import timedelta
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedModel

from skipwise.errors import SkipwiseError, counted
from skipwise.evaluation.evaluate import (
    RunEvaluation,
    answer,
    measure,
    plan_evaluation,
    require_measurable,
    seconds_here,
    time_of,
)
from skipwise.evaluation.plan import QUIET, missing
from skipwise.fit.search import fitted_recipe
from skipwise.method.coverage import coverage
from skipwise.model.config import require_unchanged
from skipwise.model.cost import training_seconds
from skipwise.recipes.names import display_name
from skipwise.recipes.schema import AUTO, FITTED, Recipe
from skipwise.report.page import summary_table, write_page
from skipwise.report.rows import read_folder
from skipwise.report.sharing import log_results, one_run, write_run_card
from skipwise.results.files import write_text
from skipwise.results.records import CoverageRecord, Results
from skipwise.results.run_folder import RunFolder
from skipwise.training import processes, run as training
from skipwise.training.arguments import accumulation, reported_to
from skipwise.training.plan import print_examples, print_plan, require_fits, timed_tokens, with_micro_batch
from skipwise.training.prepare import PreparedRun, prepare


def extend(recipe: Recipe, *, out: Path | None, resume: bool, console: Console) -> RunFolder:
    """Run the whole job into a run folder and return it; the processes besides rank 0 only train."""
    recipe, fit = fitted_recipe(recipe, out, resume, console)
    prepared = training.prepare_together(recipe, out, resume, console)
    if not processes.is_first():
        return training.join(prepared, resume, console, save_at=recipe.compared_steps)
    evaluation = plan_run_evaluation(prepared, console)
    require_measurable(evaluation, prepared.device)
    run = training.open_run(recipe, out, prepared.name, resume=resume)
    fingerprints = prepared.decides | evaluation.fingerprints
    run.require_same(fingerprints)
    prepared = with_micro_batch(prepared, run.read().get("micro_batch"))
    print_plan(prepared, console)
    trained = run.model.exists()
    if trained:
        require_unchanged(run.model, "delete the folder, and --resume saves the model again from the last checkpoint")
    processes.broadcast(not trained)
    if not trained:
        model, probe = training.load_and_probe(prepared, console)  # a model that fails leaves no folder
    training.begin_run(run, recipe, resume=resume)
    results = Results(run.results)
    console.print(f"run folder: {run.path}")
    known = run.read().get("fingerprints") or {}
    run.record(**prepared.facts, evaluation=evaluation.facts, fingerprints=known | fingerprints)
    if fit:
        write_text(run.path / fit.name, fit.read_text(encoding="utf-8"))
    training.announce(prepared, run)
    if not trained:
        run.record(probe=vars(probe))
        _train(prepared, evaluation, model, run, results, resume, console)
        del model  # memory for the models that are measured
    _record_coverage(prepared, results)
    measure(evaluation.plan_trained(run.model), results, console)
    write_page([run.path])
    measured = read_folder(run.path)
    write_run_card(run, measured, prepared.recipe, prepared.extension)
    with one_run(run):
        log_results(reported_to(prepared.recipe.training), run, measured, console)
    console.print(summary_table(measured))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")
    return run


def rehearse(
    recipe: Recipe, *, out: Path | None, resume: bool, console: Console, launch: str | None, processes: int
) -> None:
    """Prepare a run, print its plan and its time on this machine; what does not fit here is a warning."""
    if recipe.interpolation not in (FITTED, AUTO):
        recipe, _ = fitted_recipe(recipe, out, resume, console)
    if out is not None:
        training.require_ours(RunFolder(out), recipe, resume)
    accumulation(recipe.training, processes)
    prepared = prepare(recipe, console, launch)
    evaluation = plan_run_evaluation(prepared, console)
    print_plan(with_micro_batch(prepared, launch=launch, workers=processes), console)
    try:
        require_fits(recipe, None if resume else out or training.RUNS, several=launch is not None)
        require_measurable(evaluation, prepared.device)
    except SkipwiseError as error:  # the run may be planned here for a larger machine
        console.print(f"not on this machine: {error}", style="yellow", soft_wrap=True)
    run, tokens = prepared, timed_tokens(prepared)
    seconds = training_seconds(run.config, tokens, run.window, run.precision, run.device)
    measuring = seconds_here(evaluation.batches, run.config, run.precision)
    about = timedelta(seconds=round(seconds))
    console.print(f"on this machine: training about {about}, {time_of(measuring)}", soft_wrap=True)
    if sum(measuring.values()) > seconds:
        console.print("to measure less, lower evaluation.num_prompts, .windows or .documents", soft_wrap=True)
    print_examples(prepared, console)


def plan_run_evaluation(prepared: PreparedRun, console: Console) -> RunEvaluation:
    """Plan what is measured of a prepared run; what cannot be measured is refused."""
    run = prepared
    return plan_evaluation(run.recipe, run.extension, run.tokenizer, run.store, run.origin, run.precision, console)


def _train(
    prepared: PreparedRun,
    evaluation: RunEvaluation,
    model: PreTrainedModel,
    run: RunFolder,
    results: Results,
    resume: bool,
    console: Console,
) -> None:
    """Train the model, measure its steps, and save the last or best."""
    recipe = prepared.recipe

    def measure_step(step: int) -> None:
        batches = missing(evaluation.step_batches(step), results.keys) if step in recipe.measured_steps else []
        if batches:
            answer(model, batches, QUIET, results.append)

    def best() -> int | None:
        losses = evaluation.far_losses(results.records)
        return min(losses, key=lambda step: (losses[step], step), default=None)

    with one_run(run):
        model = training.train_run(
            prepared, model, run, resume=resume, on_step=measure_step, save_at=recipe.compared_steps, best=best
        )
    if (step := best()) is not None:
        losses, last = evaluation.far_losses(results.records), recipe.training.max_steps
        run.record(kept={"step": step, "of": last, "far_loss": losses[step]})
        console.print(
            f"the best step is {step:,} of {last:,}: mean loss {losses[step]:.4f} nats beyond "
            f"{prepared.extension.rope.original_length:,} tokens, {losses[last]:.4f} after the last step"
        )
    training.save_trained(prepared, model, run)


def _record_coverage(prepared: PreparedRun, results: Results) -> None:
    """Record the chance that an example, or an original window, trains each distance."""
    rule = prepared.recipe.positions
    lengths = prepared.train_length, prepared.extension.target_length
    if prepared.window == lengths[1]:  # every distance is in every window
        return
    label = counted(rule.chunks, "chunk") if rule.scheme == "pose" else display_name(rule.scheme)
    curves = [CoverageRecord.of(coverage(*lengths, rule.rules, scheme=rule.scheme), label)]
    if (original := prepared.extension.rope.original_length) < lengths[1]:
        curves = [CoverageRecord.of(coverage(original, lengths[1], scheme="no_skip"), "original"), *curves]
    known = {record.label for record in results.records if isinstance(record, CoverageRecord)}
    results.append(*(record for record in curves if record.label not in known))

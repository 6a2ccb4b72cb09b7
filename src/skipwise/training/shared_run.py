"""A run in several processes: all prepare it, the first begins its folder, and the others join the training."""

from pathlib import Path

from rich.console import Console

from skipwise.errors import PeerError, RunError, SkipwiseError
from skipwise.recipes.schema import Recipe
from skipwise.results.records import require_results
from skipwise.results.run_folder import RunFolder
from skipwise.training import processes
from skipwise.training.disk import require_room
from skipwise.training.extended import load_and_probe, train_run
from skipwise.training.prepare import PreparedRun, prepare, require_trainable
from skipwise.training.run import RUNS, require_ours


def prepare_together(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> PreparedRun:
    """Prepare the run in every process, the first one ahead; an error of one ends all."""
    prepared, error = None, None
    if processes.is_first():  # before the text is read
        try:
            if out is not None:
                if resume and out.exists():
                    require_results(RunFolder(out).results)
                require_ours(RunFolder(out), recipe, resume)
            if not resume:
                require_room(recipe, out or RUNS)
        except SkipwiseError as met:
            error = met
    processes.end_together(error)
    with processes.first_ahead():
        try:
            require_trainable(recipe, several=processes.launched() > 1)
            prepared = prepare(recipe, console)
        except SkipwiseError as met:
            error = met
    processes.end_together(error)
    assert prepared is not None
    return prepared


def invite(prepared: PreparedRun, run: RunFolder, *, training: bool) -> None:
    """Tell the other processes which run the first one has begun, and whether it is still to be trained."""
    processes.told_by_first((run.path.absolute(), run.identity, prepared.decides, training))
    processes.end_together(None)


def join(prepared: PreparedRun, resume: bool, console: Console) -> RunFolder:
    """Train with the first process, which does everything else."""
    path, identity, decides, training = processes.told_by_first(None)
    run = RunFolder(path)
    processes.end_together(_other_machine(prepared, run, identity, decides))
    if training:
        try:
            model, _ = load_and_probe(prepared, console)
            train_run(prepared, model, run, resume=resume, console=console)
        except SkipwiseError as error:
            raise PeerError(str(error)) from error  # the first has not met it
    return run


def _other_machine(prepared: PreparedRun, run: RunFolder, identity: str, decides: dict[str, str]) -> RunError | None:
    """What this process has otherwise than the first, where it runs on another machine."""
    for name, value in prepared.decides.items():
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

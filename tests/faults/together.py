"""Two commands into one folder at once, and one run on two machines that share less than they should."""

import os
import select
import shutil
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.faults.disk import may_mount, mount
from tests.faults.harness import JOBS, Clock, Ended, Job, World, every, remove, start, wait
from tests.faults.kills import Operation, Watcher, operations, run_ranks
from tests.faults.results import Result, difference, fruits

ATTACK, MACHINES = "two commands at once", "two machines"
_PATIENCE = 3.0  # seconds after which the second command is taken to wait for the first


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def held(job: Job, operation: Operation, world: World) -> Result:
    """Hold a job before one of its changes, run the same command beside it, then let the first go on."""
    case = f"{job.name}: a second one while the first is at {operation.number}, {operation.what} {operation.path}"
    world.fresh(job.needs)
    printed = [world.root / f"printed-{number}.txt" for number in (1, 2)]
    first = start(job.begin, world.work, printed[0], Watcher(world.work, operation.number, _stop))
    os.waitpid(first, os.WUNTRACED)
    second = start(job.again if operation.number % 2 else job.begin, world.work, printed[1])
    _given_time(second)
    os.kill(first, signal.SIGCONT)
    return Result(ATTACK, case, *_judged(job, [wait(first, printed[0]), wait(second, printed[1])], world))


def _given_time(pid: int) -> None:
    watched = os.pidfd_open(pid)
    select.select([watched], [], [], _PATIENCE)
    os.close(watched)


def _judged(job: Job, ended: list[Ended], world: World) -> tuple[str, str]:
    """One of them does the work; the other is refused by a sentence, or finds it done."""
    for number, one in enumerate(ended, 1):
        if one.broken:
            return one.broken, f"command {number}: {one.last_words}"
        if one.status and not one.refused:
            return "UNCLEAR", f"command {number}: {one.last_words}"
    if all(one.status for one in ended):
        return "UNUSABLE", " / ".join(one.last_words for one in ended)
    if found := difference(fruits(world.work, job.makes), world.references[job.name]):
        return "SILENT", f"statuses {[one.status for one in ended]}; {found}"
    return "ok", next((one.message for one in ended if one.status), "both did the work, or found it done")


def at_once(job: Job, world: World) -> Result:
    """Start the same command twice in the same moment."""
    world.fresh(job.needs)
    printed = [world.root / f"printed-{number}.txt" for number in (1, 2)]
    started = [start(job.begin, world.work, path) for path in printed]
    ended = [wait(pid, path) for pid, path in zip(started, printed, strict=True)]
    return Result(ATTACK, f"{job.name}: twice at once", *_judged(job, ended, world))


def pairs(world: World, most: int, clock: Clock, names: Sequence[str]) -> Iterator[Result]:
    """Twice at once, and with the first held before some of its changes."""
    for name in names:
        job = JOBS[name]
        done = operations(job, world)
        yield at_once(job, world)
        for operation in every(done, most, world.rng):
            if clock.over:
                return
            yield held(job, operation, world)


# --- two machines ---


class Machines:
    """Two folders that stand for the disks of two machines, each with a model, a text and a cache of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folders = [world.root / f"machine-{number}" for number in (0, 1)]
        self.words = ["base" if word == "../base" else word.replace("../text", "text") for word in JOBS["extend"].begin]
        for folder in self.folders:
            remove(folder)
            folder.mkdir()
            shutil.copytree(world.root / "base", folder / "base")
            shutil.copytree(world.root / "text", folder / "text")

    def share(self, name: str) -> None:
        """Let the second machine have a folder of the first."""
        (self.folders[0] / name).mkdir(exist_ok=True)
        (self.folders[1] / name).symlink_to(self.folders[0] / name)

    def run(self, *more: str, apart: bool = False) -> list[Ended]:
        """Run on both; ``apart``: the second does not see the first's disk."""
        home = f"{self.world.root}/machine-{{rank}}"
        before = {1: partial(_hide, self.folders[0])} if apart else None
        return run_ranks([*self.words, *more], self.folders, before, SKIPWISE_CACHE=f"{home}/cache", HOME=home)

    def losses(self, folder: Path) -> list[float]:
        from skipwise.results.records import TrainingRecord, read_records

        return [one.loss for one in read_records(folder / "run/results.jsonl") if isinstance(one, TrainingRecord)]


def _hide(folder: Path) -> None:
    """Let this process see an empty folder there."""
    assert may_mount()
    mount(folder, "size=1m")


def _same_as_one(machines: Machines, ended: list[Ended]) -> tuple[str, str]:
    """Both ended well, and the losses are those of one process."""
    for one in ended:
        if one.broken or one.status:
            return one.broken or "UNUSABLE", one.last_words
    world = machines.world
    world.reference(JOBS["extend"])
    alone, both = machines.losses(world.root / "stages" / "extend"), machines.losses(machines.folders[0])
    close = len(alone) == len(both) and all(abs(a - b) < 1e-4 * a for a, b in zip(alone, both, strict=True))
    return ("ok", "") if close else ("SILENT", f"losses {both}, of one process {alone}")


def _refused(ended: list[Ended]) -> tuple[str, str]:
    """Both end, and one says what is wrong."""
    for one in ended:
        if one.broken:
            return one.broken, one.last_words
    said = [one.last_words for one in ended if one.refused or "skipwise: " in one.text]
    if all(one.status == 0 for one in ended):
        return "SILENT", "both ended with 0"
    return ("refused", said[0]) if said else ("UNCLEAR", f"statuses {[one.status for one in ended]}, nothing said")


def two_machines(world: World, clock: Clock) -> Iterator[Result]:
    """All that may be shared, and each share that may be missing."""
    apart = {"the run folder is not shared": _own_runs, "resumed, the run folder is not shared": _resumed_own}
    for name, case in {
        "the run folder is shared": _shared_run,
        "resumed, the run folder is shared": _resumed_shared,
        **(apart if may_mount() else {}),
        "the second has no model": lambda m: _without(m, "base"),
        "the second has no text": lambda m: _without(m, "text"),
        "the second has another text": _other_text,
        "the second has another model": _other_model,
    }.items():
        if clock.over:
            return
        yield Result(MACHINES, name, *case(Machines(world)))


def _shared_run(machines: Machines) -> tuple[str, str]:
    machines.share("run")
    return _same_as_one(machines, machines.run())


def _own_runs(machines: Machines) -> tuple[str, str]:
    ended = machines.run(apart=True)
    if all(one.status == 0 for one in ended):
        outcome, detail = _same_as_one(machines, ended)
        return (
            outcome,
            f"{detail}; the second machine has {sorted(p.name for p in (machines.folders[1] / 'run').glob('*'))}",
        )
    return _refused(ended)


def _stopped(machines: Machines) -> None:
    """Take away what comes after the training's second checkpoint but one."""
    run_folder = machines.folders[0] / "run"
    remove(run_folder / "model")
    remove(run_folder / "checkpoints" / "checkpoint-4")


def _resumed_shared(machines: Machines) -> tuple[str, str]:
    machines.share("run")
    machines.run()
    _stopped(machines)
    return _same_as_one(machines, machines.run("--resume"))


def _resumed_own(machines: Machines) -> tuple[str, str]:
    machines.share("run")
    machines.run()
    _stopped(machines)
    ended = machines.run("--resume", apart=True)
    return _refused(ended) if any(one.status for one in ended) else _same_as_one(machines, ended)


def _without(machines: Machines, name: str) -> tuple[str, str]:
    machines.share("run")
    remove(machines.folders[1] / name)
    return _refused(machines.run())


def _other_text(machines: Machines) -> tuple[str, str]:
    machines.share("run")
    (machines.folders[1] / "text" / "document-3.txt").write_text("another text, of as many words as it takes. " * 30)
    return _refused(machines.run())


def _other_model(machines: Machines) -> tuple[str, str]:
    machines.share("run")
    weights = machines.folders[1] / "base" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 0x40
    weights.write_bytes(data)
    return _refused(machines.run())

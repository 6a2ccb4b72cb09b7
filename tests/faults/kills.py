"""SIGKILL: before each change of the disk, amid a write, and at random times; of one process and of one of two."""

import os
import re
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.harness import JOBS, Clock, Ended, Job, World, every, repeated, run, start, wait
from tests.faults.results import Result, difference, fruits

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ATTACK, RANDOM, RANK = "kill before a file operation", "kill at a random time", "kill one of two processes"


@dataclass(frozen=True)
class Operation:
    """The ``number``-th change that a command makes below the folder of the cases."""

    number: int
    what: str
    path: str

    @property
    def torn(self) -> bool:
        """Whether it can be cut in half: bytes that reach the disk at this point."""
        return self.what in ("flush", "write")

    @property
    def shape(self) -> str:
        """What operations that repeat have in common."""
        return re.sub(r"[0-9a-f]{8,}|\d+", "#", f"{self.what} {self.path}")


class Watcher:
    """Counts this process's changes of the disk below ``root``, and calls ``act`` before number ``at``.

    Python's own changes are seen by its audit events, flushes and native writers by functions put around them. Where
    ``torn``, half of what the file has got since it was opened is cut off first.
    """

    def __init__(
        self, root: Path, at: int, act: Callable[[], None], torn: bool = False, log: Path | None = None
    ) -> None:
        self.root, self.left, self.act, self.torn = str(root), at, act, torn
        self.log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) if log else None
        self.sizes: dict[str, int] = {}  # of files as they were opened
        self.owner = os.getpid()

    def __call__(self) -> None:
        """Watch this process from now on."""
        import safetensors.torch
        import torch
        from transformers import PreTrainedTokenizerFast

        self.owner = os.getpid()
        os.fsync = self._before_flush(os.fsync)
        torch.save = self._after(torch.save, 1)
        safetensors.torch.serialize_file = self._after(safetensors.torch.serialize_file, 1)
        PreTrainedTokenizerFast._save_pretrained = self._after(PreTrainedTokenizerFast._save_pretrained, 1)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            if args[2] & _WRITES:
                path = os.path.abspath(os.fsdecode(args[0]))
                if path.startswith(self.root):
                    self.sizes[path] = 0 if args[2] & os.O_TRUNC or not os.path.exists(path) else os.path.getsize(path)
                    self._count("open", path)
        elif event in CHANGES:
            self._count(event, _named(args, event))

    def _before_flush(self, flush: Callable) -> Callable:
        def wrapped(descriptor: int) -> None:
            self._count("flush", os.readlink(f"/proc/self/fd/{descriptor}"))
            flush(descriptor)

        return wrapped

    def _after(self, save: Callable, place: int) -> Callable:
        """A native writer, whose path stands at ``place``."""

        def wrapped(*args: Any, **options: Any) -> Any:
            result = save(*args, **options)
            to = args[place] if len(args) > place else next(iter(options.values()), "")
            self._count("write", str(to))
            return result

        return wrapped

    def _count(self, what: str, path: str) -> None:
        path = os.path.abspath(path)
        if not path.startswith(self.root) or os.getpid() != self.owner:
            return
        if self.log is not None:
            os.write(self.log, f"{what} {os.path.relpath(path, self.root)}\n".encode())
        self.left -= 1
        if self.left == 0:
            if self.torn and os.path.isfile(path):
                os.truncate(path, (self.sizes.get(path, 0) + os.path.getsize(path)) // 2)
            self.act()


def _named(args: tuple, event: str) -> str:
    """The path of an audit event; with a folder's descriptor it is relative to that."""
    if isinstance(args[0], int):
        return os.readlink(f"/proc/self/fd/{args[0]}")
    path = os.fsdecode(args[0])
    folder = args[-1] if event in ("os.remove", "os.rmdir") and isinstance(args[-1], int) else -1
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path) if folder >= 0 else path


def die() -> None:
    """End this process as a power cut of the process does."""
    os.kill(os.getpid(), signal.SIGKILL)


def operations(job: Job, world: World) -> list[Operation]:
    """All changes that a job makes, in order."""
    world.reference(job)
    world.fresh(job.needs)
    log = world.root / "operations.txt"
    ended = run(job.begin, world.work, Watcher(world.work, 0, die, log=log))
    assert ended.status == 0, ended.text
    lines = (line.split(" ", 1) for line in log.read_text().splitlines())
    return [Operation(number, what, path) for number, (what, path) in enumerate(lines, 1)]


def kill_before(job: Job, operation: Operation, torn: bool, world: World) -> Result:
    """Kill a job before one of its changes, or amid it, and repeat it."""
    case = f"{job.name}: {'amid' if torn else 'before'} {operation.number}, {operation.what} {operation.path}"
    world.fresh(job.needs)
    ended = run(job.begin, world.work, Watcher(world.work, operation.number, die, torn))
    if ended.status != -signal.SIGKILL:
        return Result(ATTACK, case, "UNUSABLE", f"was to be killed, and ended with {ended.status}: {ended.last_words}")
    return Result(ATTACK, case, *repeated(job, world))


def kill_twice(job: Job, first: Operation, second: int, world: World) -> Result:
    """Kill a job, and also the job that goes on."""
    case = f"{job.name}: before {first.number}, {first.what} {first.path}; then before {second}"
    world.fresh(job.needs)
    run(job.begin, world.work, Watcher(world.work, first.number, die))
    run(job.again, world.work, Watcher(world.work, second, die))
    return Result(ATTACK, case, *repeated(job, world))


def at_operations(world: World, most: int | None, clock: Clock, names: Sequence[str]) -> Iterator[Result]:
    """Kill each job before each of its changes, one of each shape first; ``most``: so many of each job."""
    cases: list[tuple[int, float, Job, Operation, bool]] = []
    for name in names:
        done = operations(JOBS[name], world)
        shapes: Counter[tuple[str, bool]] = Counter()
        mine = []
        for one in done:
            for torn in (False, True) if one.torn else (False,):
                mine.append((shapes[one.shape, torn], world.rng.random(), JOBS[name], one, torn))
                shapes[one.shape, torn] += 1
        world.log(f"{name}: {len(done)} operations, {len(shapes)} of different shape, {len(mine)} kills")
        cases += every(mine, most, world.rng)
    for _, _, job, operation, torn in sorted(cases, key=lambda case: case[:2]):
        if clock.over:
            return
        yield kill_before(job, operation, torn, world)


def twice(world: World, most: int, clock: Clock, names: Sequence[str] = ("extend", "evaluate")) -> Iterator[Result]:
    """Kill at a random change, and again at one of what goes on."""
    for name in names:
        done = operations(JOBS[name], world)
        for _ in range(most):
            if clock.over:
                return
            yield kill_twice(JOBS[name], world.rng.choice(done), world.rng.randint(1, 60), world)


# --- at random times ---


def at_random(
    world: World, most: int, clock: Clock, names: tuple[str, ...] = ("extend", "evaluate")
) -> Iterator[Result]:
    """Kill a job after a random time, up to three times, and repeat it."""
    for number in range(most):
        job = JOBS[names[number % len(names)]]
        world.reference(job)
        if clock.over:
            return
        world.fresh(job.needs)
        words, killed = job.begin, []
        for _ in range(world.rng.choice((1, 1, 1, 2, 3))):
            after = world.rng.uniform(0.0, _length(job, world))
            killed.append(f"{after:.2f} s")
            printed = world.root / "printed.txt"
            pid = start(words, world.work, printed)
            _kill_after(pid, after)
            wait(pid, printed)
            begun = (world.work / "run" / "recipe.yaml").exists()
            words = job.again if begun else job.begin
        yield Result(RANDOM, f"{job.name}: killed after {', '.join(killed)}", *repeated(job, world))


_lengths: dict[str, float] = {}


def _length(job: Job, world: World) -> float:
    """Seconds that the job takes now."""
    if job.name not in _lengths:
        world.fresh(job.needs)
        began = time.monotonic()
        run(job.begin, world.work)
        _lengths[job.name] = time.monotonic() - began
        world.fresh(job.needs)
    return _lengths[job.name]


def _kill_after(pid: int, seconds: float) -> None:
    """Kill a process after a time, unless it has ended."""
    watched = os.pidfd_open(pid)
    if not select.select([watched], [], [], seconds)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(watched)


# --- one of two processes ---


def start_ranks(
    words: list[str], folders: list[Path], before: dict[int, Callable[[], None]] | None = None, **more: str
) -> list[tuple[int, Path]]:
    """Start a command as the processes of one run, each in a folder; return their numbers, and where they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank, folder in enumerate(folders):
        printed = folders[0].parent / f"printed-{rank}.txt"
        env = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(folders)), "LOCAL_WORLD_SIZE": "1"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | {
            key: value.format(rank=rank) for key, value in more.items()
        }
        started.append((start(words, folder, printed, (before or {}).get(rank), **env), printed))
    return started


def run_ranks(
    words: list[str], folders: list[Path], before: dict[int, Callable[[], None]] | None = None, **more: str
) -> list[Ended]:
    """Run a command as the processes of one run, to their ends."""
    return [wait(pid, printed) for pid, printed in start_ranks(words, folders, before, **more)]


def of_two(world: World, most: int, clock: Clock) -> Iterator[Result]:
    """Kill one of two processes after a random time: the other ends by itself, and both go on."""
    job, both = JOBS["extend"], [world.work, world.work]
    world.fresh()
    began = time.monotonic()
    ended = run_ranks(job.begin, both)
    assert not any(one.status for one in ended), "\n".join(one.text for one in ended)
    length = time.monotonic() - began
    wanted = fruits(world.work, job.makes)
    for number in range(most):
        if clock.over:
            return
        world.fresh()
        rank, after = number % 2, world.rng.uniform(0.0, length)
        started = start_ranks(job.begin, both)
        while not (world.work / "run").exists():  # before both have joined, a launcher ends the other
            time.sleep(0.02)
        _kill_after(started[rank][0], after)
        ended = [wait(pid, printed) for pid, printed in started]
        yield Result(
            RANK, f"process {rank} killed after {after:.2f} s", *_judged(job, world, ended[1 - rank], rank, wanted)
        )


def _judged(job: Job, world: World, other: Ended, rank: int, wanted: dict[str, str]) -> tuple[str, str]:
    words = job.again if (world.work / "run" / "recipe.yaml").exists() else job.begin
    for one in run_ranks(words, [world.work, world.work]):
        if one.broken or one.status:
            return one.broken or "UNUSABLE", one.last_words
    if found := difference(fruits(world.work, job.makes), wanted):
        return "SILENT", found
    if other.broken:
        return other.broken, f"the other process: {other.last_words}; both went on to the same bits"
    if other.status and not other.refused:
        return (
            "UNCLEAR",
            f"the other process ended with {other.status}: {other.last_words}; both went on to the same bits",
        )
    return "ok", other.message


def of_launched(world: World, most: int, clock: Clock) -> Iterator[Result]:
    """Kill one of two processes that ``--launch ddp`` started, with a checkpoint on the disk; ``--resume`` goes on."""
    launch = ["--launch", "ddp", "--processes", "2"]
    job, printed, weights = JOBS["extend"], world.root / "printed.txt", ("run/model/model.safetensors",)
    world.fresh()
    assert run([*job.begin, *launch], world.work, limit=300).status == 0
    wanted = fruits(world.work, weights)
    for number in range(most):
        if clock.over:
            return
        world.fresh()
        pid = start([*job.begin, *launch], world.work, printed)
        while not list(world.work.glob("run/checkpoints/*/complete.json")):
            time.sleep(0.02)
        killed = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[number % 2])
        os.kill(killed, signal.SIGKILL)
        ended = wait(pid, printed, 120)
        case = f"--launch ddp: process {number % 2} killed after its first checkpoint"
        again = run([*job.again, *launch], world.work, limit=300)
        if again.broken or again.status:
            yield Result(RANK, case, again.broken or "UNUSABLE", again.last_words)
        elif found := difference(fruits(world.work, weights), wanted):
            yield Result(RANK, case, "SILENT", found)
        else:
            yield Result(RANK, case, ended.broken or "ok", f"{ended.last_words}; --resume went on to the same bits")

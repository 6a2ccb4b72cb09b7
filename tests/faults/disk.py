"""A disk that is full, without room for another file, read-only, broken or slow."""

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.harness import JOBS, Clock, Ended, Job, World, every, repeated, run
from tests.faults.kills import Operation, Watcher, operations
from tests.faults.results import Result, difference, fruits

FULL, BROKEN, SLOW = "a full disk", "a failing disk", "a stalled disk"
_PAGE = 4096  # bytes, the unit in which the disk in memory is filled
_LARGE = "512m"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a disk of ``size`` at ``folder``; the function gives it another size."""
    folder.mkdir(exist_ok=True)
    mount(folder, f"size={size}")
    try:
        yield lambda size: mount(folder, f"remount,size={size}")
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(folder), 2)  # MNT_DETACH


def may_mount() -> bool:
    """Take this process into a mount space of its own, whose mounts end with it; say whether the system lets us."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000):  # CLONE_NEWNS
        return False
    return libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) == 0  # MS_REC | MS_PRIVATE


def mount(folder: Path, options: str) -> None:
    """Mount a disk in memory at ``folder``, or change its options."""
    flags = 0x20 if options.startswith("remount") else 0  # MS_REMOUNT
    data = options.removeprefix("remount,").encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, data):
        raise OSError(ctypes.get_errno(), "mount")


def _used(world: World) -> int:
    disk = os.statvfs(world.work)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def _needed(job: Job, world: World) -> int:
    """Bytes by which a job fills the disk."""
    world.reference(job)
    with small_disk(world.work, _LARGE):
        world.fresh(job.needs)
        before = _used(world)
        assert run(job.begin, world.work).status == 0
        return _used(world) - before


def full(job: Job, room: int, world: World) -> Result:
    """Run a job on a disk with so little room; then make room, and repeat it."""
    case = f"{job.name}: room for {room // 1024} KiB"
    with small_disk(world.work, _LARGE) as resize:
        world.fresh(job.needs)
        resize(str(max(_used(world) + room, _PAGE)))
        ended = run(job.begin, world.work, _filled_later)
        resize(_LARGE)
        return Result(FULL, case, *_judged(job, ended, world))


def _filled_later() -> None:
    """As if there had been room when the run asked for it, and another program had filled the disk since."""
    import skipwise.training.run

    skipwise.training.run.require_fits = lambda *_, **__: None


def _judged(job: Job, ended: Ended, world: World) -> tuple[str, str]:
    """The command says what is wrong, and what it left can be gone on with."""
    if ended.broken:
        return ended.broken, ended.last_words
    if ended.status == 0:
        found = difference(fruits(world.work, job.makes), world.references[job.name])
        return ("SILENT", f"ended with 0; {found}") if found else ("ok", "there was room enough")
    if not ended.refused:
        return "UNCLEAR", ended.last_words
    outcome, detail = repeated(job, world)
    return (outcome, f"{detail} (first: {ended.message[:200]})") if outcome != "ok" else ("ok", ended.message)


def sizes(world: World, most: int, clock: Clock, names: Sequence[str]) -> Iterator[Result]:
    """Run each job with ``most`` amounts of room, from none to nearly enough."""
    for name in names:
        needed = _needed(JOBS[name], world)
        rooms = sorted({needed * part // most // _PAGE * _PAGE for part in range(most)})
        world.log(f"{name}: needs {needed / 1024:,.0f} KiB, {len(rooms)} sizes")
        for room in rooms:
            if clock.over:
                return
            yield full(JOBS[name], room, world)


# --- operations that fail ---


def _failing(code: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def failing(world: World, most: int | None, clock: Clock, names: Sequence[str]) -> Iterator[Result]:
    """Let one change of the disk fail with an error: no room at that moment, a quota, an unreadable disk."""
    for name in names:
        job = JOBS[name]
        for operation in every(operations(job, world), most, world.rng):
            if clock.over:
                return
            code = world.rng.choice((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
            world.fresh(job.needs)
            ended = run(job.begin, world.work, Watcher(world.work, operation.number, _failing(code)))
            case = f"{name}: {errno.errorcode[code]} at {operation.number}, {operation.what} {operation.path}"
            yield Result(BROKEN, case, *_judged(job, ended, world))


# --- a slow disk ---


def stalled(job: Job, operation: Operation, seconds: float, world: World) -> Result:
    """Let one change of the disk take long: the job ends as always."""
    world.fresh(job.needs)
    ended = run(job.begin, world.work, Watcher(world.work, operation.number, lambda: time.sleep(seconds)), limit=90)
    case = f"{job.name}: {seconds:g} s before {operation.number}, {operation.what} {operation.path}"
    if ended.broken or ended.status:
        return Result(SLOW, case, ended.broken or "UNUSABLE", ended.last_words)
    found = difference(fruits(world.work, job.makes), world.references[job.name])
    return Result(SLOW, case, "SILENT" if found else "ok", found)


def slow(world: World, most: int, seconds: float, clock: Clock, names: Sequence[str]) -> Iterator[Result]:
    """Stall each job at some of its flushes."""
    for name in names:
        flushes = [one for one in operations(JOBS[name], world) if one.what == "flush"]
        for operation in every(flushes, most, world.rng):
            if clock.over:
                return
            yield stalled(JOBS[name], operation, seconds, world)

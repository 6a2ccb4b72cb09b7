"""A full disk ends a command with a message, and what was written can be gone on with."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.harness import JOBS, Case, Ended, Job, Watcher, World
from tests.faults.kills import HELD, shapes

_LARGE = "512m"


def may_mount() -> bool:
    """Take this process into a mount space of its own, whose mounts end with it; say whether the system lets us."""
    libc = ctypes.CDLL(None)
    return not libc.unshare(0x00020000) and not libc.mount(b"none", b"/", None, 0x44000, None)  # all of it private


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """Mount a disk in memory at ``folder``; the function gives it another size."""
    libc = ctypes.CDLL(None)

    def mount(size: str, flags: int = 0x20) -> None:  # MS_REMOUNT
        assert not libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode())

    mount(_LARGE, 0)
    try:
        yield mount
    finally:
        libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


def _used(world: World) -> int:
    disk = os.statvfs(world.work)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def full(job: Job, share: float, world: World) -> str:
    """Run a job on a disk with a share of the room that it needs; then make room, and repeat it."""
    with small_disk(world.work) as resize:
        world.fresh(job.needs)
        before = _used(world)
        assert world.run(job.begin).status == 0
        needed = _used(world) - before
        world.fresh(job.needs)
        resize(str(max(_used(world) + int(needed * share) // 4096 * 4096, 4096)))  # 0 would be without a limit
        ended = world.run(job.begin, _filled_later)
        resize(_LARGE)
        return _judged(job, ended, world)


def _filled_later() -> None:
    """As if there had been room when the run asked for it, and another program had filled the disk since."""
    import skipwise.training.run

    skipwise.training.run.require_fits = lambda *_, **__: None


def _fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing(job: Job, point: str, world: World) -> str:
    """Let a change of the disk fail for want of room."""
    world.fresh(job.needs)
    return _judged(job, world.run(job.begin, Watcher(world.work, point, _fail)), world)


def _judged(job: Job, ended: Ended, world: World) -> str:
    if ended.status == 0:
        return world.difference(job)
    return ended.problem or world.gone_on(job)


def cases(world: World, short: bool) -> Iterator[Case]:
    mounts = may_mount()
    for name, point in HELD.items():
        for part in ((4,) if short else range(8)) if mounts else ():
            yield f"{name}, with {part}/8 of the room", lambda job=JOBS[name], part=part: full(job, part / 8, world)
        for at in [point] if short else shapes(JOBS[name], world):
            yield f"{name}, no room at {at}", lambda job=JOBS[name], at=at: failing(job, at, world)

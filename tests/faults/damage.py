"""A damaged model, checkpoint or token store is refused by name, or made again; it never changes a result."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.harness import JOBS, Case, Job, Watcher, World
from tests.faults.kills import die

# By stage: what is damaged, the command that reads it, and the file of the short form.
TARGETS = {
    "extend": ("run/model", JOBS["evaluate"], "model.safetensors"),
    "middle": ("run/checkpoints", JOBS["extend"], "checkpoint-3/optimizer.pt"),
    "tokenising": ("cache/tokens", JOBS["tokenising"], "tokens.bin"),
}
_MANIFESTS = {"skipwise.json", "complete.json", "store.json"}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit": _flip,
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "deleted": Path.unlink,
}


def make_middle(world: World) -> None:
    """A run that was killed before its last checkpoint."""
    world.fresh()
    world.run(JOBS["extend"].begin, Watcher(world.work, "mkdir .*/checkpoint-4", die))
    shutil.copytree(world.work, world.root / "stages" / "middle")


def damaged(stage: str, job: Job, name: str, how: str, world: World) -> str:
    """Damage one file, run the command that reads it, and judge what it does."""
    world.fresh(stage)
    path = world.work / name
    DAMAGES[how](path)
    ended = world.run(world.repeated(job))
    if ended.status == 0:
        return world.difference(job, but=name)
    known = (path.name, str(Path(name).parent), *(part for part in path.parts if part.startswith("checkpoint-")))
    return ended.problem or ("" if any(one in ended.message for one in known) else f"not named: {ended.message}")


def cases(world: World, short: bool) -> Iterator[Case]:
    make_middle(world)
    for stage, (part, job, chosen) in TARGETS.items():
        root = world.root / "stages" / stage
        files = [path for path in sorted((root / part).rglob("*")) if path.is_file() and path.stat().st_size > 2]
        names = [str(path.relative_to(root)) for path in files if path.name not in _MANIFESTS]
        for name in names:
            for how in DAMAGES:
                if "/." not in name and (not short or name.endswith(chosen)):
                    case = lambda s=stage, j=job, n=name, h=how: damaged(s, j, n, h, world)  # noqa: E731
                    yield f"{stage}, {name}: {how}", case

"""A killed command that is repeated ends in the same bits; a second command beside the first is refused."""

import os
import re
import signal
from collections.abc import Iterator

from tests.faults.harness import JOBS, Case, Job, Watcher, World

# One life of a job: it is killed at each of these in turn, and goes on. Half of what a flush writes is lost.
LIVES = {
    "extend": (
        "flush .*/tokens.bin",
        "rename cache/tokens/.draft",
        "flush run/.recipe.yaml",
        "flush run/results.jsonl",
        "flush .*/checkpoint-1/model.safetensors",
        "flush .*/checkpoint-2/optimizer.pt",
        "rename .*/checkpoint-2/.complete.json",
        "remove .*/checkpoint-1/optimizer.pt",
        "flush run/model.partial/model.safetensors",
        "rename run/model.partial",
        "flush run/results.jsonl",
        "rename run/.report.html",
    ),
    "evaluate": ("flush evaluation/.run.json", *["flush evaluation/results.jsonl"] * 2, "rename evaluation/.report"),
}
HELD = {"extend": "mkdir .*/checkpoint-2", "evaluate": "flush evaluation/results.jsonl"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def shapes(job: Job, world: World) -> list[str]:
    """The first and the last of a job's changes of each shape, as patterns."""
    found: dict[str, list[str]] = {}
    for change in world.changes(job):
        number, _, what = change.partition(" ")
        found.setdefault(re.sub(r"[0-9a-f]{8,}|\d+", "#", what), []).append(f"^{number} ")
    return sorted({at for places in found.values() for at in (places[0], places[-1])}, key=lambda at: int(at[1:]))


def killed(job: Job, points: tuple[str, ...], world: World) -> str:
    """Kill a job at each point in turn, then let it end."""
    world.fresh(job.needs)
    words = job.begin
    for point in points:
        ended = world.run(words, Watcher(world.work, point, die, torn=True))
        if ended.status != -signal.SIGKILL:
            return f"was to be killed at {point}, and ended with {ended.status}: {ended.text[-1000:]}"
        words = world.repeated(job)
    return world.gone_on(job)


def beside(job: Job, point: str, world: World) -> str:
    """Hold a job at a point, run the same command beside it, then let the first go on."""
    world.fresh(job.needs)
    first = world.start(job.begin, Watcher(world.work, point, _stop), printed="held")
    os.waitpid(first, os.WUNTRACED)
    second = world.run(world.repeated(job))
    os.kill(first, signal.SIGCONT)
    ended = world.wait(first, printed="held")
    if not second.message:
        return f"the second command ended with {second.status}: {second.text[-1000:]}"
    return world.difference(job) if ended.status == 0 else f"the first command: {ended.text[-1000:]}"


def cases(world: World, short: bool) -> Iterator[Case]:
    for name, points in LIVES.items():
        yield f"{name}, killed {len(points)} times", lambda job=JOBS[name], points=points: killed(job, points, world)
        yield f"{name} twice at once", lambda job=JOBS[name]: beside(job, HELD[job.name], world)
        for point in [] if short else shapes(JOBS[name], world):
            yield f"{name}, killed at {point}", lambda job=JOBS[name], point=point: killed(job, (point,), world)

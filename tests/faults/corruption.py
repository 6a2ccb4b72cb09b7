"""Damage every file of a model, a checkpoint and a token store, and run the commands that read them.

A damaged file must be refused by a sentence that names it, or be made again with the same content. A command that does
not read the file may pass over it: which files a command reads is seen by their access times, once, undamaged.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.harness import JOBS, Clock, Ended, Job, World, jobs, run
from tests.faults.kills import Watcher, die, operations
from tests.faults.results import Result, fruits

ATTACK = "a damaged file"
_LIMIT = 20.0  # seconds; undamaged, each of these commands takes about one
_IDLE = {".lock", "CACHEDIR.TAG", "skipwise.json", "complete.json", "store.json"}  # without content, or manifests
_DECIDE_NOTHING = {"README.md", "perplexity.png"}  # written again


# --- damages ---


def _flipped(path: Path, place: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * place), len(data) - 1)] ^= 1 << bit
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, Random], object]] = {
    "a bit of its beginning": lambda path, rng: _flipped(path, 0.0, rng.randrange(8)),
    "a bit of its middle": lambda path, rng: _flipped(path, rng.uniform(0.2, 0.8), rng.randrange(8)),
    "a bit of its end": lambda path, rng: _flipped(path, 1.0, rng.randrange(8)),
    "cut in half": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "longer by a byte": lambda path, _: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path, _: os.truncate(path, 0),
    "deleted": lambda path, _: path.unlink(),
}


# --- what is damaged, and who reads it ---


@dataclass
class Target:
    """A stage, the part of it that is damaged, and the commands that read it; the first reads all that decides."""

    stage: str
    part: str
    readers: list[Job]
    make: Callable[[World], None]
    read: dict[str, set[str]] = field(default_factory=dict)  # by reader: the files that it reads
    wanted: dict[str, dict[str, str]] = field(default_factory=dict)  # by reader: what it makes, undamaged

    def files(self, world: World) -> list[str]:
        """The damaged part's files, by their names in the folder of the cases."""
        stage = world.root / "stages" / self.stage
        found = [stage / self.part] if (stage / self.part).is_file() else sorted((stage / self.part).rglob("*"))
        return [str(path.relative_to(stage)) for path in found if path.is_file() and path.name not in _IDLE]

    def prepare(self, world: World) -> None:
        """Run every reader on the undamaged stage: what it makes, and what it reads."""
        self.make(world)
        for reader in self.readers:
            world.fresh(self.stage)
            names = self.files(world)
            _set_unread(world.work / name for name in names)
            ended = run(reader.again, world.work)
            assert ended.status == 0, f"{self.stage}, {reader.name}: {ended}"
            self.read[reader.name] = {name for name in names if _was_read(world.work / name)}
            self.wanted[reader.name] = fruits(world.work, (*reader.makes, self.part))


def _set_unread(paths: Iterator[Path]) -> None:
    for path in paths:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))


def _was_read(path: Path) -> bool:
    return not path.exists() or path.stat().st_atime_ns > 0


def _finished(name: str) -> Callable[[World], None]:
    return lambda world: (world.reference(JOBS[name]), None)[1]


def _killed(name: str, stage: str, where: str, nth: float) -> Callable[[World], None]:
    """Make a stage by killing a job before that share of its operations which have ``where`` in their names."""

    def make(world: World) -> None:
        if (world.root / "stages" / stage).exists():
            return
        job = JOBS[name]
        found = [one for one in operations(job, world) if where in f"{one.what} {one.path}"]
        world.fresh(job.needs)
        run(job.begin, world.work, Watcher(world.work, found[int(nth * (len(found) - 1))].number, die))
        world.store(stage)

    return make


def _reader(name: str, words: list[str], *makes: str) -> Job:
    return Job(name, words, words, makes)


_TEXT = ["--data", "../text", "--documents", "1", "--precision", "float32"]
_SECOND = ["extend", "run/model", "--data", "../text", "--target", "512", "--existing-rope", "replace", "--dry-run"]
_PROMPTS = ["--only", "prompts", "--tasks", "passkey"]
_PASSKEY = ["evaluate", "run/model", *_PROMPTS, "--lengths", "256", "--trials", "1", "--precision", "float32"]
_GPTJ = ["evaluate", "converted", *_PASSKEY[2:], "--out", "keys"]
_OTHERS = [
    JOBS["evaluate"],
    _reader("perplexity", ["evaluate", "run/model", "--only", "perplexity", "--lengths", "64", *_TEXT]),
    _reader("passkey", _PASSKEY),
    _reader("second extend", [*_SECOND, "--set", "method=null", "--set", "evaluation.prompt_trials=0"]),
    *([_reader("export", JOBS["export"].begin, "x.gguf")] if "export" in jobs() else []),
]
_FOURTH = "open run/checkpoints/checkpoint-4"
TARGETS = {
    target.stage: target
    for target in (
        Target("extend", "run/model", [JOBS["extend"], *_OTHERS], _finished("extend")),
        Target("middle", "run/checkpoints", [JOBS["extend"]], _killed("extend", "middle", _FOURTH, 0)),
        Target(
            "middle of LoRA",
            "run/checkpoints",
            [JOBS["extend LoRA, keep best"]],
            _killed("extend LoRA, keep best", "middle of LoRA", _FOURTH, 0),
        ),
        Target("tokenising", "cache/tokens", [JOBS["tokenising"]], _finished("tokenising")),
        Target("convert", "converted", [_reader("passkey", _GPTJ, "keys")], _finished("convert")),
    )
}


def stages() -> tuple[str, ...]:
    """The names of the stages that can be made here."""
    return tuple(name for name, target in TARGETS.items() if name in jobs() or name not in JOBS)


# --- one case ---


def damage(target: Target, reader: Job, name: str, how: str, world: World) -> Result:
    """Damage one file, run one command, and judge what it does."""
    case = f"{target.stage}: {name}: {how}; {reader.name}"
    path = world.fresh(target.stage) / name
    DAMAGES[how](path, world.rng)
    damaged = _state(path)
    ended = run(reader.again, world.work, limit=_LIMIT)
    return Result(ATTACK, case, *_judged(target, reader, name, damaged, ended, world))


def _judged(target: Target, reader: Job, name: str, damaged: object, ended: Ended, world: World) -> tuple[str, str]:
    if ended.broken:
        return ended.broken, ended.last_words
    if ended.status:
        return ("refused" if _names(ended.message, Path(name)) else "UNCLEAR"), ended.last_words
    read = name in target.read[reader.name]
    wanted, got = dict(target.wanted[reader.name]), fruits(world.work, (*reader.makes, target.part))
    passed_over = not read or Path(name).name in _DECIDE_NOTHING  # then only the damage itself may be seen
    different = {one for one in wanted.keys() | got.keys() if wanted.get(one) != got.get(one)}
    different -= {name} if passed_over else set()
    if not read:
        return ("SILENT", f"not read, but changed {sorted(different)[:4]}") if different else ("not read", "")
    if not different and _decides_nothing(name, damaged, world):
        return "not read", ""
    if not different and _state(world.work / name) != damaged:
        return "repaired", ""
    if Path(name).name in ended.text:
        return "said", ended.last_words
    return "SILENT", f"ended with 0; {'changed ' + ', '.join(sorted(different)[:4]) if different else 'read as it is'}"


def _decides_nothing(name: str, damaged: object, world: World) -> bool:
    """Whether a file only shows what others say, or is gone in the end, damaged or not."""
    return Path(name).name in _DECIDE_NOTHING or (damaged is None and not os.path.lexists(world.work / name))


def _names(message: str, path: Path) -> bool:
    """Whether a message names a damaged file, or the one checkpoint or model that it is part of."""
    known = {path.name, *(part for part in path.parts if part.startswith(("checkpoint-", "best-")))}
    known |= {str(path.parent)} if path.parent.name in ("model", "converted") else set()
    return any(one in message for one in known)


def _state(path: Path) -> object:
    """What the file is now, to see whether it was made anew."""
    return (path.read_bytes(), path.stat().st_mtime_ns) if path.exists() else None


def damages(world: World, most: int | None, clock: Clock, stages: Sequence[str]) -> Iterator[Result]:
    """Damage every file of every stage in every way, for its first reader; a share of that for the others.

    ``most``: so many cases of each stage, drawn at random.
    """
    cases: list[tuple[Target, Job, str, str]] = []
    for stage in stages:
        target = TARGETS[stage]
        target.prepare(world)
        mine = list(_cases(target, world))
        names = ", ".join(f"{len(read)} by {reader}" for reader, read in target.read.items())
        world.log(f"{stage}: {len(target.files(world))} files, read are {names}; {len(mine)} cases")
        cases += mine if most is None else world.rng.sample(mine, min(most, len(mine)))
    world.rng.shuffle(cases)
    for case in cases:
        if clock.over:
            return
        yield damage(*case, world)


def _cases(target: Target, world: World) -> Iterator[tuple[Target, Job, str, str]]:
    names = target.files(world)
    first = [(target.readers[0], name) for name in names]
    others = [(reader, name) for reader in target.readers[1:] for name in names if name in target.read[reader.name]]
    for reader, name in [*first, *world.rng.sample(others, min(len(others), 10))]:
        for how in DAMAGES:
            card = reader.name == "export" and name.endswith("README.md")  # becomes a GGUF file's description
            empty = (world.root / "stages" / target.stage / name).stat().st_size < 3
            if not card and (not empty or how in ("longer by a byte", "deleted")):
                yield target, reader, name, how

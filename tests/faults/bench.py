"""Attack Skipwise's promises about files and processes, and print a table of how each case ended.

    python -m tests.faults.bench                      # the long form
    python -m tests.faults.bench --short              # what make test runs
    python -m tests.faults.bench --only kills --seconds 600

Every case is drawn from ``--seed``. A failure is printed as it is found; the exit status is 1 if there was one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import corruption, disk, kills, together
from tests.faults.harness import Clock, World, jobs, prepared_world, temporary_root
from tests.faults.results import Result, causes, summary

_BOTH = ("extend", "evaluate")
_FEW = ("extend", "evaluate", "tokenising")
_PAIRS = ("extend", "evaluate", "passkey")
_STAGES = ("extend", "middle", "tokenising")


def kill_operations(world: World, clock: Clock) -> Iterator[Result]:
    """Kill commands before each of their changes of the disk, and some of them twice."""
    if not world.short:
        yield from kills.twice(world, 25, clock)
    yield from kills.at_operations(world, 3 if world.short else None, clock, _FEW if world.short else jobs())


def kill_random(world: World, clock: Clock) -> Iterator[Result]:
    """Kill commands at random times."""
    yield from kills.at_random(world, 2 if world.short else 300, clock)


def kill_rank(world: World, clock: Clock) -> Iterator[Result]:
    """Kill one of two processes."""
    yield from kills.of_two(world, 1 if world.short else 40, clock)
    if not world.short:
        yield from kills.of_launched(world, 4, clock)


def damaged_files(world: World, clock: Clock) -> Iterator[Result]:
    """Damage files in every way."""
    stages = _STAGES if world.short else corruption.stages()
    yield from corruption.damages(world, 3 if world.short else None, clock, stages)


def full_disk(world: World, clock: Clock) -> Iterator[Result]:
    """Fill the disk."""
    if not disk.may_mount():
        world.log("no full disk: this process may not mount one")
    else:
        yield from disk.sizes(world, 2 if world.short else 12, clock, _BOTH if world.short else jobs())


def failing_disk(world: World, clock: Clock) -> Iterator[Result]:
    """Let single changes of the disk fail."""
    yield from disk.failing(world, 1 if world.short else 25, clock, _FEW if world.short else jobs())


def slow_disk(world: World, clock: Clock) -> Iterator[Result]:
    """Let flushes take five seconds; in the short form no time, which shows that the bench itself breaks nothing."""
    yield from disk.slow(world, 1 if world.short else 5, 0.0 if world.short else 5.0, clock, _BOTH)


def two_commands(world: World, clock: Clock) -> Iterator[Result]:
    """Run the same command twice at once."""
    yield from together.pairs(world, 1 if world.short else 20, clock, _PAIRS if world.short else jobs())


def machines(world: World, clock: Clock) -> Iterator[Result]:
    """Run on two machines that share less than they should."""
    yield from together.two_machines(world, clock)


GROUPS: dict[str, Callable[[World, Clock], Iterator[Result]]] = {
    "kills": kill_operations,
    "random": kill_random,
    "rank": kill_rank,
    "damage": damaged_files,
    "full": full_disk,
    "failing": failing_disk,
    "slow": slow_disk,
    "pairs": two_commands,
    "machines": machines,
}


def main() -> None:
    """Run the groups, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few cases of each group")
    parser.add_argument("--only", default=",".join(GROUPS), help="some of the groups; default: all")
    parser.add_argument("--seconds", type=float, default=1200, help="at the most, for each group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append each result to this file, as JSON Lines")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.only.split(",")) - set(GROUPS)):
        parser.error(f"--only {', '.join(unknown)} is no group; choose from {', '.join(GROUPS)}")
    results: list[Result] = []
    with temporary_root() as root:
        world = prepared_world(root / "faults", asked.seed, asked.short, lambda line: print(line, file=sys.stderr))
        for name in asked.only.split(","):
            began = time.monotonic()
            for one in GROUPS[name](world, Clock(asked.seconds)):
                results.append(one)
                _tell(name, one, asked.out)
            world.log(f"{name}: {time.monotonic() - began:.0f} s")
    print(summary(results))
    print(causes(results))
    sys.exit(any(one.bad for one in results))


def _tell(name: str, one: Result, out: Path | None) -> None:
    if one.bad:
        print(f"{one.outcome} [{one.group}] {one.case}: {one.detail}", file=sys.stderr, flush=True)
    if out is not None:
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **vars(one)}) + "\n")


if __name__ == "__main__":
    main()

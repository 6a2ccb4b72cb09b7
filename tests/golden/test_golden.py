"""What the package computes stays what it was: plans, examples, losses, measurements and tables beside golden files.

A golden file is written by one command alone, from the root of the repository, and only where numbers are meant to change::

    HF_HUB_OFFLINE=1 .venv/bin/python -m tests.golden.write [plans batches losses results tables]

The commit says why. How records and tables are written is known to ``read.py`` alone; ``runs.py`` has the commands.
"""

import json
from collections.abc import Iterator

import pytest

from tests.golden import compare, read
from tests.golden.runs import GOLDENS, Commands, workplace

# Float32 sums depend on the order in which a kernel adds them up, and that on the release of torch, on the processor's
# vector width and on its caches. On the machine that made a golden file a loss is compared to the bit; on another the first
# one differs by some 1e-7, which every step of training may multiply. With AVX2 in place of AVX-512 the 20 losses here
# differ by 7e-7 at most, and sums of losses by 3e-7; a change of the method is far from both.
LOSS = 1e-4

# Of summed losses. On the same machine records may round otherwise, and documents may be read together or one by one.
SUM_HERE, SUM_ELSEWHERE = 1e-6, 1e-5
ROUNDED = 1e-4  # nats


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with workplace(tmp_path_factory.mktemp("golden").resolve()):
        yield Commands()


def test_numbers_are_compared_as_closely_as_can_be() -> None:
    _, made_on = compare.load("losses")
    if made_on != compare.machine():
        pytest.skip(f"not to the bit: the golden files are of {made_on}, this is {compare.machine()}")


@pytest.mark.parametrize(("name", "part"), [(name, part) for name in GOLDENS for part in GOLDENS[name]])
def test_what_is_computed_is_what_it_was(commands: Commands, name: str, part: str) -> None:
    golden, made_on = compare.load(name)
    assert list(golden) == list(GOLDENS[name])
    golden, found = golden[part], json.loads(json.dumps(GOLDENS[name][part](commands)))
    if name == "tables":
        split = read.csv_cells if part == "numbers of report" else read.cells
        golden, found = ({part: dict(enumerate(map(split, lines)))} for lines in (golden, found))
    elif name != "results":
        golden, found = {part: golden}, {part: found}
    lines = []
    for kind in dict.fromkeys([*golden, *found]):
        same = same_kind(name, kind, made_on == compare.machine())
        lines += compare.differences(golden.get(kind), found.get(kind), same, kind)
    assert not lines, "\n".join(["differs from the golden file:", *lines[:20]])


def same_kind(name: str, kind: str, here: bool) -> compare.Same:
    """How near two numbers of one kind must be; answers are of one argmax after another, and compared here alone."""
    if name == "tables":
        return compare.same_rows(here)
    if name == "losses":
        return compare.close(0.0 if here else LOSS)
    if kind.startswith(("nats", "far loss")):
        return compare.close(SUM_HERE if here else SUM_ELSEWHERE, ROUNDED)
    if kind == "hits by position" and not here:
        return compare.close(0.0, 1)
    if kind in ("found", "answers") and not here:
        return lambda golden, found: True
    return lambda golden, found: golden == found

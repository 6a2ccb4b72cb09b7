"""Run the commands on valid input of which one to three parts were broken, and sort how each ends.

    python -m tests.faults.fuzz --cases 2000 --seed 0
    python -m tests.faults.fuzz --only 17          # one case again, with all that it prints

The exit status is 1 if a case ended otherwise than it should: in a message, or done.

Each case is a function of (seed, index) alone. It runs in a fork of this process, so that a hang can be killed and memory
has a limit. Nothing is trained: ``extend`` runs with ``--dry-run``.
"""

import argparse
import faulthandler
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.command_line import run
from tests.faults.inputs import CASES, Case, World, make

LIMIT = 10.0  # seconds; what takes longer hangs
_SLOW = {"check": 60.0, "export": 60.0, "benchmark": 60.0}  # these start engines, or list thousands of tasks
_MEMORY = 4 * 2**30  # bytes that a case may take
_LONGEST = 1500  # characters of a message
_ENDS = ("done", "message", "poor", "traceback", "hang", "killed")
_NEVER = ("weights_only", "trust_remote_code=True", "above report", "<class ", "object at 0x")  # in a message


@dataclass(frozen=True)
class Outcome:
    """How a case ended, and the message or the end of the traceback."""

    case: Case
    end: str  # one of _ENDS
    text: str


def outcome(case: Case, world: World, limit: float = LIMIT) -> Outcome:
    """Run a case in a fork of this process, and say how it ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _lay_out(case, world, folder)
        printed = folder / ".printed"
        child = os.fork()
        if child == 0:
            _become(case, folder, printed)
        ended, status = _waited(child, max(limit, _SLOW.get(case.words[0], 0)))
        text = printed.read_text(errors="replace") if printed.exists() else ""
        if (folder / "executed").exists():
            return Outcome(case, "killed", f"code of the input was executed\n{text}")
        if not ended:
            return Outcome(case, "hang", text)
        if os.WIFSIGNALED(status):
            return Outcome(case, "killed", f"signal {os.WTERMSIG(status)}\n{text[-2000:]}")
        return Outcome(case, *_judged(os.WEXITSTATUS(status), text))


def _lay_out(case: Case, world: World, folder: Path) -> None:
    parts = {word.split("/")[0] for word in (*case.words, *case.files)} | {"model"}
    for part in ("model", "run", "odd"):
        if part in parts:
            shutil.copytree(world.folder / part, folder / part)
    for name, content in case.files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


def _become(case: Case, folder: Path, printed: Path) -> None:
    """Run the command in this process and end it: 99 stands for a traceback."""
    code = 99
    try:
        descriptor = os.open(printed, os.O_CREAT | os.O_WRONLY)
        for number in (1, 2):
            os.dup2(descriptor, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # pytest's are others
        faulthandler.enable(sys.stderr)
        faulthandler.register(signal.SIGUSR1, sys.stderr)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, held + _MEMORY))
        os.chdir(folder)
        with pytest.MonkeyPatch.context() as patch:
            run(patch, *case.words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(child: int, limit: float) -> tuple[bool, int]:
    """Wait for a child; one that does not end in time says where it is, and is killed."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return True, status
        time.sleep(0.005)
    os.kill(child, signal.SIGUSR1)
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    return False, os.waitpid(child, 0)[1]


def _judged(code: int, printed: str) -> tuple[str, str]:
    """The end of a case by its exit status and what it printed."""
    if code == 99 or "Traceback (most recent call last)" in printed:
        return "traceback", printed
    if code == 0:
        return "done", printed
    if code == 2 and "Usage:" in printed:  # typer's own
        return "message", printed.strip().splitlines()[-1]
    _, prefix, message = printed.partition("skipwise: ")
    message = message.strip()
    return ("message" if prefix and is_clear(message) else "poor"), message or printed


def is_clear(message: str) -> bool:
    """Whether a message ends, is no longer than a paragraph, and advises nothing dangerous."""
    return not message.endswith(":") and 15 < len(message) < _LONGEST and not any(bad in message for bad in _NEVER)


# --- the table ---


def prepared_world(folder: Path) -> World:
    """Valid input in ``folder``, and a process in which every command is imported, so that forks start at once."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SKIPWISE_CACHE": str(folder / "cache")}
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # it has read the environment when it was imported
    import skipwise.cli
    import skipwise.data.text
    import skipwise.engines.check
    import skipwise.engines.export
    import skipwise.evaluation.benchmarks
    import skipwise.evaluation.evaluate
    import skipwise.evaluation.single
    import skipwise.extend
    import skipwise.report.figures
    import skipwise.training.plan

    world = World(folder)
    files = [(path.name, path) for path in sorted(world.text.iterdir())]
    skipwise.data.text._stdlib_files = lambda: files  # stands for hundreds of modules, read in half a minute
    gc.collect()
    gc.freeze()
    return world


def _group(one: Outcome) -> str:
    """What outcomes of one cause have in common: the error and its last place, or the words of the message."""
    lines = [line.strip() for line in one.text.strip().splitlines() if line.strip()]
    if one.end == "traceback":
        places = [line for line in lines if line.startswith("File ")]
        ours = [place for place in places if "/skipwise/" in place]
        return " | ".join([lines[-1][:160], *ours[-1:], *places[-1:]])
    if one.end == "hang":
        return next((line for line in lines if "/skipwise/" in line), lines[-1] if lines else "")
    return " ".join(lines)[:200]


def main() -> None:
    """Print a table of the ends by kind, and one example of each cause that is not a clear message."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--messages", action="store_true", help="print every message")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the commands that start engines or draw figures"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        world = prepared_world(Path(name))
        if asked.only is not None:
            one = outcome(make(world, asked.seed, asked.only), world, 60)
            print(one.case, one.end, one.text, sep="\n")
            return
        counts: Counter[tuple[str, str]] = Counter()
        causes: dict[str, list[int]] = {}
        for index in range(asked.first, asked.first + asked.cases):
            case = make(world, asked.seed, index)
            if asked.quick and case.words[0] in (*_SLOW, "evaluate", "report"):
                continue
            one = outcome(case, world)
            counts[one.case.kind, one.end] += 1
            if one.end not in ("done", "message"):
                cause = f"{one.end}: {_group(one)}"
                if cause not in causes:
                    print(f"{index} {one.case.kind} {cause}\n    {one.case.words} {one.case.changes}", flush=True)
                causes.setdefault(cause, []).append(index)
            elif asked.messages:
                print(
                    f"{index} {one.end}: {one.case.changes or one.case.words[1:]} -> {' '.join(one.text.split())[:400]}"
                )
        print_table(counts)
        for cause, indices in sorted(causes.items(), key=lambda item: -len(item[1])):
            print(f"{len(indices):4} {cause} (cases {indices[:6]})")
        raise SystemExit(1 if causes else 0)


def print_table(counts: Counter[tuple[str, str]]) -> None:
    """Print the number of cases by kind and end."""
    print(f"{'':10}" + "".join(f"{end:>11}" for end in ("cases", *_ENDS)))
    for kind in (*CASES, "all"):
        found = [sum(n for (k, e), n in counts.items() if kind in (k, "all") and e == end) for end in _ENDS]
        print(f"{kind:10}" + "".join(f"{number:11,}" for number in (sum(found), *found)))


if __name__ == "__main__":
    main()

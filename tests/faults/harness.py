"""Run commands in forks of one warm process, and judge how each case ends.

A fork starts in milliseconds, because torch and transformers are imported already. Everything lies below one folder:

    base/ gptj/ text/    what the commands read
    stages/NAME/         what a command left, as the cases begin with it
    work/                where the commands of a case run, always under the same path; work/cache is their cache
"""

import gc
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.results import difference, fruits

LIMIT = 60.0  # seconds, many times what any command takes here
_MEMORY = 3 * 2**30  # bytes that a command may take; what reads /dev/zero would take all
_TRACEBACK = 70  # exit status of a child that ended in an exception


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), and what it printed."""

    status: int
    text: str
    hung: bool = False

    @property
    def broken(self) -> str:
        """TRACEBACK or HANG, or nothing."""
        if self.hung:
            return "HANG"
        return "TRACEBACK" if self.status == _TRACEBACK or "Traceback (most recent" in self.text else ""

    @property
    def message(self) -> str:
        """The sentence of a refusal on one line; nothing if there is none."""
        return " ".join(self.text.partition("skipwise: ")[2].split())

    @property
    def refused(self) -> bool:
        return not self.broken and self.status == 1 and len(self.message) > 30

    @property
    def last_words(self) -> str:
        """What tells two failures apart, on one line."""
        if self.broken == "TRACEBACK":
            lines = [line.strip() for line in self.text.strip().splitlines()]
            ours = [line for line in lines if "/skipwise/" in line][-2:]
            return " | ".join([lines[-1][:200], *ours])
        return self.message[:400] or " ".join(self.text.split())[-300:]


@dataclass(frozen=True)
class Job:
    """A command, the command that a user repeats after a failure, and the files that it makes."""

    name: str
    begin: list[str]
    again: list[str]
    makes: tuple[str, ...]
    needs: str = ""  # stage that it begins with


@dataclass
class World:
    """Inputs, the folder of the cases, and a random generator."""

    root: Path
    rng: Random
    short: bool
    log: Callable[[str], None]
    references: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    def fresh(self, stage: str = "") -> Path:
        """Empty the folder of the cases, or lay out a stage in it."""
        for path in self.work.iterdir() if self.work.exists() else ():
            remove(path)
        self.work.mkdir(exist_ok=True)
        if stage:
            shutil.copytree(self.root / "stages" / stage, self.work, symlinks=True, dirs_exist_ok=True)
        return self.work

    def store(self, stage: str) -> None:
        """Keep what lies in the folder of the cases as a stage."""
        shutil.copytree(self.work, self.root / "stages" / stage, symlinks=True)

    def reference(self, job: Job) -> dict[str, str]:
        """What the job makes where nothing goes wrong; kept as the stage of its name."""
        if job.name not in self.references:
            if job.needs:
                self.reference(JOBS[job.needs])
            self.fresh(job.needs)
            ended = run(job.begin, self.work, limit=300)
            assert ended.status == 0, f"{job.name}: {ended.text}"
            self.references[job.name] = fruits(self.work, job.makes)
            self.store(job.name)
        return self.references[job.name]


_SETTINGS = {
    "method": "null",
    "target": 256,
    "data.held_out": 0.3,
    "training.max_steps": 4,
    "training.batch_size": 2,
    "training.learning_rate": 1e-3,
    "training.logging_steps": 1,
    "training.save_steps": 1,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[64]",
    "evaluation.prompt_lengths": "[256]",
    "evaluation.prompt_trials": 1,
    "evaluation.segments": 1,
    "evaluation.arms": "[trained]",
}


def _extend(out: str, *more: str, **changes: object) -> list[str]:
    words = ["extend", "../base", "--data", "../text", "--out", out]
    for key, value in {**_SETTINGS, **changes}.items():
        words += ["--set", f"{key}={value}"]
    return [*words, *more]


def _job(name: str, begin: list[str], *makes: str, again: list[str] | None = None, needs: str = "") -> Job:
    return Job(name, begin, again or begin, makes, needs)


_BEST = {"evaluation.steps": "[2]", "evaluation.keep": "best"}
_PLAIN, _LORA = _extend("run"), _extend("run", "--lora", **_BEST)
_MEASURES = "run/model --precision float32"
_EVALUATE = (
    f"evaluate {_MEASURES} --data ../text --lengths 256 --documents 2 --tasks passkey --trials 2 --out evaluation"
)
_PERPLEXITY = f"evaluate {_MEASURES} --only perplexity --data ../text --lengths 64,128 --documents 2 --out perplexity"
_PASSKEY = f"evaluate {_MEASURES} --only prompts --tasks passkey --lengths 256 --trials 6 --out keys"
_EXPORT = "export run/model --type f32 --no-check --out x.gguf"
JOBS = {
    job.name: job
    for job in (
        _job("extend", _PLAIN, "run", "cache/tokens", again=[*_PLAIN, "--resume"]),
        _job("extend LoRA, keep best", _LORA, "run", "cache/tokens", again=[*_LORA, "--resume"]),
        _job("evaluate", _EVALUATE.split(), "evaluation", needs="extend"),
        _job("perplexity", _PERPLEXITY.split(), "perplexity", needs="extend"),
        _job("passkey", _PASSKEY.split(), "keys", needs="extend"),
        _job("tokenising", _extend("run", "--dry-run"), "cache/tokens"),
        _job("convert", ["convert", "../gptj", "converted"], "converted"),
        _job("report", ["report", "run"], "run", needs="extend"),
        _job("export", _EXPORT.split(), "x.gguf", needs="extend"),
    )
}


def jobs() -> tuple[str, ...]:
    """The names of the jobs that can be done here; the GGUF converter comes with an extra."""
    return tuple(name for name in JOBS if name != "export" or (find_spec("conversion") and find_spec("xllamacpp")))


# --- one command ---


def prepared_world(root: Path, seed: int, short: bool, log: Callable[[str], None]) -> World:
    """Make the inputs, and import in this process all that the commands import."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SKIPWISE_CACHE": str(root / "work" / "cache"),
        "HOME": str(root / "home"),
        "COLUMNS": "200",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
    }
    (root / "home").mkdir(parents=True)
    pid = os.fork()  # torch computes in children alone: threads do not survive a fork
    if pid == 0:
        _make_inputs(root)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    _import_everything()
    gc.collect()
    gc.freeze()
    return World(root, Random(seed), short, log)


def _make_inputs(root: Path) -> None:
    from transformers import GPTJConfig, GPTJForCausalLM

    from tests import tiny

    tiny.checkpoint(root / "base", window=64)
    tiny.corpus(root / "text", documents=24, words=150)
    GPTJForCausalLM(
        GPTJConfig(vocab_size=257, n_embd=64, n_layer=2, n_head=2, rotary_dim=8, n_positions=64)
    ).save_pretrained(root / "gptj")
    tiny.byte_tokenizer().save_pretrained(root / "gptj")


def _import_everything() -> None:
    import torch

    import skipwise.cli
    import skipwise.data.tokenising
    import skipwise.engines.check
    import skipwise.engines.export
    import skipwise.evaluation.evaluate
    import skipwise.extend
    import skipwise.model.convert
    import skipwise.report.page
    import skipwise.training.run

    with suppress(ImportError):  # accelerate imports it wherever it is installed; once is enough
        import deepspeed  # noqa: F401
    with suppress(ImportError):
        import peft  # noqa: F401
    torch.set_num_threads(1)
    # Batches and blocks of a size that a tiny text and a tiny model have several of.
    skipwise.data.tokenising._BATCH_DOCUMENTS = 8
    skipwise.report.page.draw_figures = lambda *_: []  # seconds; they decide nothing


def start(
    words: Sequence[str], folder: Path, printed: Path, before: Callable[[], None] | None = None, **more: str
) -> int:
    """Start a command in a fork of this process, and return its number; ``before`` runs in the child, before it."""
    pid = os.fork()
    if pid:
        return pid
    code = _TRACEBACK
    try:
        os.setsid()
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, held + _MEMORY))
        descriptor = os.open(printed, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(folder)
        os.environ |= more
        sys.argv = ["skipwise", *words]
        from skipwise.cli import main

        if before:
            before()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, printed: Path, limit: float = LIMIT) -> Ended:
    """Wait for a command; one that does not end in time is killed."""
    watched = os.pidfd_open(pid)
    try:
        hung = not select.select([watched], [], [], limit)[0]
    finally:
        os.close(watched)
    if hung:
        os.killpg(pid, signal.SIGKILL)  # with what it started
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(status, printed.read_text(errors="replace") if printed.exists() else "", hung)


def run(
    words: Sequence[str], folder: Path, before: Callable[[], None] | None = None, limit: float = LIMIT, **more: str
) -> Ended:
    """Run a command to its end."""
    printed = folder.parent / "printed.txt"
    return wait(start(words, folder, printed, before, **more), printed, limit)


def repeated(job: Job, world: World, limit: float = LIMIT) -> tuple[str, str]:
    """Repeat a job as a user would after a failure; it must end in what an undisturbed one makes."""
    wanted = world.references[job.name]
    ended = run(job.again, world.work, limit=limit)
    if ended.refused and "leave --resume out" in ended.message:
        ended = run(job.begin, world.work, limit=limit)
    if ended.broken:
        return ended.broken, ended.last_words
    if ended.status:
        return "UNUSABLE", ended.last_words
    if found := difference(fruits(world.work, job.makes), wanted):
        return "SILENT", found
    return "ok", ""


def remove(path: Path) -> None:
    """Remove whatever lies there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_root() -> Iterator[Path]:
    """A folder in memory where there is one: flushing to a disk takes most of a case."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def every(cases: Sequence[Any], most: int | None, rng: Random) -> list[Any]:
    """All cases, or ``most`` of them drawn at random, in order."""
    if most is None or len(cases) <= most:
        return list(cases)
    return [cases[i] for i in sorted(rng.sample(range(len(cases)), most))]


class Clock:
    """Says whether a group's budget of seconds is used up."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

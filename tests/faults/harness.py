"""Run commands in forks of one warm process, disturb them, and compare what they leave with an undisturbed run.

A fork starts in milliseconds, because torch and transformers are imported already. Everything lies below one folder:

    base/ text/     what the commands read
    stages/NAME/    what a command left
    work/           where the commands of a case run, always under the same path; work/cache is their cache
"""

import gc
import hashlib
import json
import os
import re
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Case = tuple[str, Callable[[], str]]  # its name, and what says what went wrong, or nothing
_LIMIT = 60.0  # seconds, many times what any command takes here
_TRACEBACK = 70  # exit status of a child that ended in an exception
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# What two equal runs differ in: fields of results.jsonl and of run.json, and whole files.
_TIMES = {"seconds", "tokens_per_second", "created", "command", "training"}
_VARIES = {"report.html", "README.md", "trainer_state.json", "training_args.bin", "complete.json"}


@dataclass(frozen=True)
class Job:
    """A command, the command that a user repeats after a failure, what it makes, and the job that it begins after."""

    name: str
    begin: list[str]
    again: list[str]
    makes: tuple[str, ...]
    needs: str = ""


_SETTINGS = {
    "target": 256,
    "data.held_out": 0.3,
    "training.max_steps": 4,
    "training.global_batch_size": 2,
    "training.learning_rate": 1e-3,
    "training.logging_steps": 1,
    "training.save_steps": 1,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[64]",
    "evaluation.prompt_lengths": "[256]",
    "evaluation.num_prompts": 1,
    "evaluation.models": "[trained]",
    "evaluation.other_texts": "false",
}
_EXTEND = ["extend", "../base", "--data", "../text", "--out", "run"]
_EXTEND += [word for key, value in _SETTINGS.items() for word in ("--set", f"{key}={value}")]
_EVALUATE = ["evaluate", "run/model", "--precision", "float32", "--data", "../text", "--out", "evaluation"]
_EVALUATE += ["--lengths", "256", "--documents", "2", "--tasks", "passkey", "--num-prompts", "2"]
_TOKENS = [*_EXTEND, "--dry-run"]
JOBS = {
    "extend": Job("extend", _EXTEND, [*_EXTEND, "--resume"], ("run", "cache/tokens")),
    "evaluate": Job("evaluate", _EVALUATE, _EVALUATE, ("evaluation",), "extend"),
    "tokenising": Job("tokenising", _TOKENS, _TOKENS, ("cache/tokens",)),
}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), and what it printed."""

    status: int
    text: str

    @property
    def message(self) -> str:
        """The sentence of a refusal on one line; nothing if there is none."""
        return " ".join(self.text.partition("skipwise: ")[2].split()) if self.status == 1 else ""

    @property
    def problem(self) -> str:
        """What is wrong with this end; nothing if the command did its work or refused to."""
        return "" if self.status == 0 or self.message else f"status {self.status}: {self.text[-1000:]}"


@dataclass
class World:
    """Inputs, the folder of the cases, and what the jobs make where nothing goes wrong."""

    root: Path
    references: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    def fresh(self, stage: str = "") -> None:
        """Empty the folder of the cases, or lay out a stage in it."""
        for path in self.work.iterdir():
            shutil.rmtree(path)
        if stage:
            shutil.copytree(self.root / "stages" / stage, self.work, dirs_exist_ok=True)

    def prepare(self) -> None:
        """Make the inputs, run every job undisturbed, and import in this process all that the commands import."""
        self.work.mkdir(parents=True)
        os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        os.environ |= {"SKIPWISE_CACHE": str(self.work / "cache"), "HOME": str(self.root), "COLUMNS": "200"}
        pid = os.fork()  # torch computes in children alone: threads do not survive a fork
        if pid == 0:
            from tests import tiny

            tiny.checkpoint(self.root / "base", window=64, attention_dropout=0.2)  # a resume must draw the same
            tiny.corpus(self.root / "text", documents=24, words=150)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        _import_everything()
        gc.collect()
        gc.freeze()
        for job in JOBS.values():
            self.fresh(job.needs)
            ended = self.run(job.begin)
            assert ended.status == 0, ended.text
            self.references[job.name] = fruits(self.work, job.makes)
            shutil.copytree(self.work, self.root / "stages" / job.name)

    def start(self, words: Sequence[str], before: Callable[[], None] | None = None, printed: str = "printed") -> int:
        """Start a command in a fork of this process, and return its number; ``before`` runs in the child, before it."""
        pid = os.fork()
        if pid:
            return pid
        code = _TRACEBACK
        try:
            os.setsid()
            descriptor = os.open(self.root / printed, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.chdir(self.work)
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

    def wait(self, pid: int, printed: str = "printed") -> Ended:
        """Wait for a command; one that does not end in time is killed."""
        watched = os.pidfd_open(pid)
        if not select.select([watched], [], [], _LIMIT)[0]:
            os.killpg(pid, signal.SIGKILL)
        os.close(watched)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(status, (self.root / printed).read_text(errors="replace"))

    def run(self, words: Sequence[str], before: Callable[[], None] | None = None) -> Ended:
        """Run a command to its end."""
        return self.wait(self.start(words, before))

    def repeated(self, job: Job) -> list[str]:
        """The command with which a user goes on."""
        return job.again if (self.work / "run" / "recipe.yaml").exists() else job.begin

    def gone_on(self, job: Job) -> str:
        """Repeat a job as a user would after a failure; say what differs from an undisturbed one, or nothing."""
        ended = self.run(self.repeated(job))
        return self.difference(job) if ended.status == 0 else f"cannot go on: {ended.message or ended.problem}"

    def difference(self, job: Job, but: str = "") -> str:
        """The files, but one, that are not as an undisturbed job makes them."""
        got, wanted = fruits(self.work, job.makes), self.references[job.name]
        differ = sorted(name for name in {*got, *wanted} - {but} if got.get(name) != wanted.get(name))
        return f"differs in {', '.join(differ)}" if differ else ""

    def changes(self, job: Job) -> list[str]:
        """All changes of the disk that a job makes, in order."""
        self.fresh(job.needs)
        log = self.root / "changes.txt"
        assert self.run(job.begin, Watcher(self.work, "none", lambda: None, log=log)).status == 0
        return log.read_text().splitlines()


def _import_everything() -> None:
    import torch

    import skipwise.cli
    import skipwise.data.store
    import skipwise.evaluation.evaluate
    import skipwise.extend
    import skipwise.report.page
    import skipwise.training.run

    for name in ("deepspeed", "peft"):  # accelerate imports them wherever they are installed; once is enough
        with suppress(ImportError):
            __import__(name)
    torch.set_num_threads(1)
    skipwise.data.store._BATCH_DOCUMENTS = 8  # so that a tiny text has several batches
    skipwise.report.page.draw_figures = lambda *_: []  # seconds; they decide nothing


def fruits(folder: Path, makes: Sequence[str]) -> dict[str, str]:
    """Return each result file with a hash of what two equal runs have in common; hidden files are no results."""
    files = [path for name in makes for path in (folder / name).rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: _hash(path) for name, path in names.items() if "/." not in name}


def _hash(path: Path) -> str:
    data = path.read_bytes()
    if path.name in _VARIES:
        data = b"" if data else b"empty"
    elif path.name in ("results.jsonl", "run.json"):
        with suppress(ValueError):  # damaged: its bytes
            made = [json.loads(line) for line in (data.splitlines() if path.suffix == ".jsonl" else [data])]
            lines = (json.dumps({k: v for k, v in one.items() if k not in _TIMES}, sort_keys=True) for one in made)
            data = "\n".join(sorted(lines)).encode()
    return hashlib.sha256(data).hexdigest()


class Watcher:
    """Numbers this process's changes of the disk below ``root``, and acts before the first that ``at`` matches.

    A change reads ``17 flush run/results.jsonl``. Python's own changes are seen by its audit events, flushes and native
    writers by functions put around them. Where ``torn``, half of what was written is cut off before a flush.
    """

    def __init__(
        self, root: Path, at: str, act: Callable[[], None], torn: bool = False, log: Path | None = None
    ) -> None:
        self.root, self.at, self.act, self.torn = str(root), re.compile(at), act, torn
        self.log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) if log else None
        self.sizes: dict[str, int] = {}  # of files as they were opened
        self.number, self.acted = 0, False

    def __call__(self) -> None:
        """Watch this process from now on."""
        import safetensors.torch
        import torch
        from transformers import PreTrainedTokenizerFast

        self.owner = os.getpid()
        os.fsync = self._before_flush(os.fsync)
        torch.save = self._after(torch.save)
        safetensors.torch.serialize_file = self._after(safetensors.torch.serialize_file)
        PreTrainedTokenizerFast._save_pretrained = self._after(PreTrainedTokenizerFast._save_pretrained)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str | os.PathLike) and args[2] & _WRITES:
            path = os.path.abspath(args[0])
            new = args[2] & os.O_TRUNC or not os.path.exists(path)
            self.sizes[path] = 0 if new else os.path.getsize(path)
            self._count("open", path)
        elif event in _CHANGES:
            self._count(event, _named(args, event))

    def _before_flush(self, flush: Callable) -> Callable:
        def wrapped(descriptor: int) -> None:
            self._count("flush", os.readlink(f"/proc/self/fd/{descriptor}"))
            flush(descriptor)

        return wrapped

    def _after(self, save: Callable) -> Callable:
        """A native writer, whose path comes second."""

        def wrapped(*args: Any, **options: Any) -> Any:
            result = save(*args, **options)
            to = args[1] if len(args) > 1 else next(iter(options.values()), "")
            self._count("flush", str(to))
            return result

        return wrapped

    def _count(self, what: str, path: str) -> None:
        path = os.path.abspath(path)
        if not path.startswith(self.root) or os.getpid() != self.owner:
            return
        self.number += 1
        change = f"{self.number} {what} {os.path.relpath(path, self.root)}"
        if self.log is not None:
            os.write(self.log, f"{change}\n".encode())
        if not self.acted and self.at.search(change):
            self.acted = True
            if self.torn and what == "flush" and os.path.isfile(path):
                os.truncate(path, (self.sizes.get(path, 0) + os.path.getsize(path)) // 2)
            self.act()


def _named(args: tuple, event: str) -> str:
    """The path of an audit event; with a folder's descriptor it is relative to that."""
    if isinstance(args[0], int):
        return os.readlink(f"/proc/self/fd/{args[0]}")
    path = os.fsdecode(args[0])
    folder = args[-1] if event in ("os.remove", "os.rmdir") and isinstance(args[-1], int) else -1
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path) if folder >= 0 else path

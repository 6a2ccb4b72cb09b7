"""The commands whose results are kept: a short run of the demo, one that keeps its best step, and what measures them.

Skipwise is reached by its command line alone: nothing here knows a module inside the package.
"""

import gc
import io
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from matplotlib.figure import Figure

from skipwise.evaluation.specification import Specification, specification_of
from skipwise.recipes.schema import Recipe
from tests.golden import examples, read
from tests.golden.corpus import write_text

TEXT = "text"
COPY = "copy"  # the same documents at another place
UNKNOWN = "stock/demo"  # holds the model without skipwise.json, so that no command knows what it was trained on
_FLOAT32 = ("--precision", "float32")
_LENGTHS = "256,512"
_LOGGED = {"logging_steps": 1, "precision": "float32"}

# The recipe nano in windows of 256 and its first examples in their order, four a step where it takes sixteen: 20 steps of sixteen would
# take longer than all else here.
DEMO = {
    "training": {
        "max_steps": 20,
        "global_batch_size": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 8e-4,
        **_LOGGED,
    },
    "evaluation": {"documents": 2, "windows": "[256, 512]"}
    | {"prompt_lengths": "[256, 512]", "num_prompts": 2, "tokens_per_document": 640},
}

# Step 1 of the warm-up has a rate of 0, step 2 is the best, at step 3 the rate is too high; gradients of two
# micro-batches are added up.
BEST = {
    "training": {"max_steps": 3, "global_batch_size": 2, "per_device_train_batch_size": 1, **_LOGGED}
    | {"learning_rate": 0.02, "warmup_steps": 3},
    "positions": {"chunks": 3},
    "evaluation": {"models": "[trained]", "documents": 1, "windows": "[512]", "num_prompts": 0}
    | {"tokens_per_document": 640, "eval_steps": "[1, 2]", "save_best": True},
}

_PERPLEXITY: list[object] = ["evaluate", f"{UNKNOWN}/model", "--only", "perplexity", "--data", COPY]
_PERPLEXITY += ["--lengths", _LENGTHS, "--documents", 3]
_EVALUATED = ["--lengths", _LENGTHS, "--documents", 4, "--tasks", "passkey,keys,lines", "--num-prompts", 3]
_SLIDING = ["--set", "evaluation.stride=192", "--set", "evaluation.tokens_per_document=1024"]
_PASSKEY = ["--only", "prompts", "--tasks", "passkey", "--lengths", _LENGTHS, "--num-prompts", 3, "--seed", 1]


def _extend(out: str, sections: dict[str, dict[str, object]], *more: str) -> list[object]:
    settings = [f"{name}.{key}={value}" for name, section in sections.items() for key, value in section.items()]
    changes = [word for setting in (*settings, *more) for word in ("--set", setting)]
    return ["extend", "nano", "--recipe", "nano", "--set", "train_length=256", "--data", TEXT, "--out", out, *changes]


# The words of each command, and the one whose files it reads.
COMMANDS: dict[str, tuple[list[object], str | None]] = {
    "extend": (_extend("demo", DEMO, "interpolation=yarn"), None),
    "extend, best step": (_extend("best", BEST, "target=512", "interpolation=linear"), None),
    "evaluate": (["evaluate", "demo/model", "--data", TEXT, *_EVALUATED, *_FLOAT32, "--out", "evaluation"], "extend"),
    "report": (["report", "evaluation", "--out", "report"], "evaluate"),
    "perplexity, sliding": ([*_PERPLEXITY, *_SLIDING, *_FLOAT32, "--out", "sliding"], "extend"),
    "perplexity, by-position": ([*_PERPLEXITY, *_FLOAT32, "--out", "by-position"], "extend"),
    "passkey": (["evaluate", "demo/model", *_PASSKEY, *_FLOAT32, "--out", "passkey"], "extend"),
}


class Commands:
    """The commands in the folder that is worked in: each is run once, when it is first asked for."""

    def __init__(self) -> None:
        write_text(Path(TEXT))
        write_text(Path(COPY))
        self._printed: dict[str, str] = {}

    def printed(self, name: str) -> str:
        """What a command prints."""
        if name not in self._printed:
            words, before = COMMANDS[name]
            if before:
                self.printed(before)
            if UNKNOWN in str(words) and not Path(UNKNOWN).exists():
                shutil.copytree("demo/model", f"{UNKNOWN}/model", ignore=shutil.ignore_patterns("skipwise.json"))
            self._printed[name] = skipwise(*words)
        return self._printed[name]


def skipwise(*words: object) -> str:
    """Do what ``python -m skipwise WORDS`` does, in this process, which has torch loaded; return what it prints."""
    printed, code = io.StringIO(), None
    with patch.object(sys, "argv", ["skipwise", *map(str, words)]), redirect_stdout(printed), redirect_stderr(printed):
        try:
            runpy.run_module("skipwise", run_name="__main__")
        except SystemExit as end:
            code = end.code
    assert not code, printed.getvalue()
    return printed.getvalue()


@contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """A folder to work in by relative names, a token cache of its own, wide lines, one thread, and blank figures."""
    clean = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    clean |= {"SKIPWISE_CACHE": str(folder / "cache"), "COLUMNS": "200", "NO_COLOR": "1"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # training collects garbage when it starts: spare it all that is imported
    try:
        with (
            patch.dict(os.environ, clean, clear=True),
            chdir(folder),
            patch.object(Figure, "savefig", _blank),
            patch("skipwise.evaluation.evaluate.specification_of", _by_position),
        ):
            yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def _by_position(recipe: Recipe, *rest: Any) -> Specification:
    """The demo also reads two segments of 512 tokens, as the reproduction does."""
    asked = specification_of(recipe, *rest)
    lengths = [] if recipe.evaluation.save_best else [512]
    return asked.model_copy(update={"segment_lengths": lengths, "segments": 2})


def _blank(figure: Figure, file: Any, *args: object, **options: object) -> None:
    """Figures are not compared, and to draw them would take a fifth of the time."""
    blank = b"<svg ></svg>"
    file.write(blank) if hasattr(file, "write") else Path(file).write_bytes(blank)


Part = Callable[[Commands], Any]


def _after(command: str, reader: Callable[[Path], Any], *place: str) -> Part:
    """What ``reader`` finds in a file or folder once the command has been run."""

    def part(commands: Commands) -> Any:
        commands.printed(command)
        return reader(Path(*place))

    return part


def _measured(command: str, folder: str, edges: Sequence[int] = (), window: int | None = None) -> Part:
    return _after(command, lambda file: read.measured(file, edges, window), folder, "results.jsonl")


def _printed(command: str) -> Part:
    return lambda commands: read.printed_tables(commands.printed(command))


# What is kept of every command, by golden file, and in it by part.
GOLDENS: dict[str, dict[str, Part]] = {
    "plans": {"plans": lambda _: examples.plans(Path("plans"))},
    "batches": {"batches": lambda _: examples.batches(Path(TEXT))},
    "losses": {"extend": _after("extend", read.losses, "demo", "results.jsonl")},
    "results": {
        "extend": _measured("extend", "demo"),
        "extend, best step": _measured("extend, best step", "best"),
        "extend, which step": _after("extend, best step", read.kept, "best"),
        "evaluate": _measured("evaluate", "evaluation"),
        "perplexity, sliding": _measured("perplexity, sliding", "sliding", [1, 1024]),
        "perplexity, truncated": _measured("perplexity, by-position", "by-position", [1, 256, 512], 512),
        "perplexity, by-position": _measured("perplexity, by-position", "by-position", [1, 256, 512]),
        "passkey": _measured("passkey", "passkey"),
    },
    "tables": {
        "extend": _printed("extend"),
        "model card": _after("extend", read.markdown_table, "demo", "model", "README.md"),
        "evaluate": _printed("evaluate"),
        "numbers of report": _after("report", read.csv_lines, "report", "numbers.csv"),
    },
}

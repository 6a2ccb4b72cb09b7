"""The commands whose results are kept: a short run of the demo, one that keeps its best step, and what measures them."""

import shutil
from pathlib import Path

from tests.golden.command import settings, skipwise
from tests.golden.corpus import write_text

TEXT = "text"
COPY = "copy"  # the same documents at another place
UNKNOWN = "stock/demo"  # holds the model without skipwise.json, so that no command knows what it was trained on
_FLOAT32 = ("--precision", "float32")
_LENGTHS = "256,512"

# The recipe nano-pose and its first examples in their order, four a step where it takes sixteen: 20 steps of sixteen would
# take longer than all else here.
DEMO = {
    "training.max_steps": 20,
    "training.batch_size": 4,
    "training.per_device_train_batch_size": 4,
    "training.logging_steps": 1,
    "training.precision": "float32",
    "evaluation.documents": 2,
    "evaluation.windows": "[256, 512]",
    "evaluation.tokens_per_document": 640,
    "evaluation.segment_lengths": "[512]",
    "evaluation.segments": 2,
    "evaluation.prompt_lengths": "[256, 512]",
    "evaluation.prompt_trials": 2,
}

# Step 1 of the warm-up has a rate of 0, step 2 is the best, at step 3 the rate is too high; gradients of two
# micro-batches are added up.
BEST = {
    "target": 512,
    "interpolation": "linear",
    "positions.chunks": 3,
    "training.max_steps": 3,
    "training.batch_size": 2,
    "training.per_device_train_batch_size": 1,
    "training.learning_rate": 0.02,
    "training.warmup_steps": 3,
    "training.logging_steps": 1,
    "training.precision": "float32",
    "evaluation.arms": "[trained]",
    "evaluation.documents": 1,
    "evaluation.windows": "[512]",
    "evaluation.tokens_per_document": 640,
    "evaluation.segments": 2,
    "evaluation.prompt_trials": 0,
    "evaluation.steps": "[1, 2]",
    "evaluation.keep": "best",
}


_PERPLEXITY = [
    "evaluate",
    f"{UNKNOWN}/model",
    "--only",
    "perplexity",
    "--data",
    COPY,
    "--lengths",
    _LENGTHS,
    "--documents",
    3,
]
_EVALUATED = ["--lengths", _LENGTHS, "--documents", 4, "--tasks", "passkey,keys,lines", "--trials", 3]
_SLIDING = ["--stride", 192, "--tokens-per-document", 1024]
_PASSKEY = ["--only", "prompts", "--tasks", "passkey", "--lengths", _LENGTHS, "--trials", 3, "--seed", 1]

# The words of each command, and the one whose files it reads.
COMMANDS: dict[str, tuple[list[object], str | None]] = {
    "extend": (["extend", "nano", "--recipe", "nano-pose", "--data", TEXT, "--out", "demo", *settings(DEMO)], None),
    "extend, best step": (
        ["extend", "nano", "--recipe", "nano-pose", "--data", TEXT, "--out", "best", *settings(BEST)],
        None,
    ),
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
        self._ended: dict[str, str | AssertionError] = {}

    def printed(self, name: str) -> str:
        """What a command prints; one that failed is not run again, and fails again."""
        if name not in self._ended:
            self._ended[name] = self._run(name)
        ended = self._ended[name]
        if isinstance(ended, AssertionError):
            raise ended
        return ended

    def _run(self, name: str) -> str | AssertionError:
        words, before = COMMANDS[name]
        try:
            if before:
                self.printed(before)
            if UNKNOWN in str(words) and not Path(UNKNOWN).exists():
                shutil.copytree("demo/model", f"{UNKNOWN}/model", ignore=shutil.ignore_patterns("skipwise.json"))
            return skipwise(*words)
        except AssertionError as error:
            return error

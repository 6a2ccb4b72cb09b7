"""The text that the base writes to be trained on: written once, and kept in the run folder for the run's whole life.

A resumed run and every process of a run read the same text, on any machine: drawn anew, it would be another text on
another processor.
"""

import hashlib
import io
import math
from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.errors import RunError
from skipwise.model.teacher import Teacher
from skipwise.progress import progress
from skipwise.results.files import replacing

NAME = "written text"  # of its fingerprint
_MOST_TOKENS = 2**16  # written; examples take them again
_LONGEST = 512  # tokens of one text: what a base knows shows in short texts too, and long ones take long to write


def write(
    path: Path,
    teacher: Teacher,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tokens: int,
    train_length: int,
    seed: int,
    console: Console,
) -> None:
    """Write about ``tokens`` tokens of text of the base to ``path``, as texts of at most ``train_length`` tokens."""
    length = min(train_length, _LONGEST)
    texts = math.ceil(min(tokens, _MOST_TOKENS) / length)
    with progress("the base writes text", texts * (length - 1), console) as advance:
        written = teacher.write(_start(tokenizer), texts, length, seed, advance)
    file = io.BytesIO()
    np.save(file, written.astype(np.int32), allow_pickle=False)
    with replacing(path) as to:
        to.write(file.getvalue())


def read(path: Path) -> tuple[np.ndarray, str]:
    """Return the texts, int64 [texts, tokens], and the fingerprint of the file.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        content = path.read_bytes()
        texts = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it, or begin a run with another --out") from None
    return texts.astype(np.int64), hashlib.sha256(content).hexdigest()


def _start(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that a text begins with: BOS, or what ends the document before, or a line's end."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return int(tokenizer("\n", add_special_tokens=False)["input_ids"][0])

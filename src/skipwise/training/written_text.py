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
from skipwise.recipes.schema import Recipe
from skipwise.results.files import replacing

NAME = "written text"  # of its fingerprint
_MOST_TOKENS = 2**18  # written; examples take them again, and too few texts leave to chance what they hold
_LONGEST = 512  # tokens of one text: what a base knows shows in short texts too, and long ones take long to write


def write(
    path: Path,
    teacher: Teacher,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tokens: int,
    longest: int,
    seed: int,
    console: Console,
) -> None:
    """Write about ``tokens`` tokens of text of the base to ``path``, as texts of at most ``longest`` tokens."""
    length = min(longest, _LONGEST)
    starts = _starts(tokenizer, teacher.vocabulary, math.ceil(tokens / length), seed)
    with progress("the base writes text", starts.shape[0] * (length - starts.shape[1]), console) as work:
        written = teacher.write(starts, length, seed, work.advance)
    file = io.BytesIO()
    np.save(file, written.astype(np.int32), allow_pickle=False)
    with replacing(path) as to:
        to.write(file.getvalue())


def tokens_of(recipe: Recipe, window: int) -> int:
    """Return how many tokens the base writes for a run of examples of ``window`` tokens: at least one example, which holds no
    text twice."""
    share = recipe.teacher.written if recipe.teacher else 0.0
    if not share:
        return 0
    examples = recipe.training.max_steps * recipe.training.batch_size
    return max(min(math.ceil(share * examples * window), _MOST_TOKENS), window)


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


def _starts(tokenizer: PreTrainedTokenizerBase, vocabulary: int, texts: int, seed: int) -> np.ndarray:
    """Begin each text with a token drawn from the whole vocabulary, behind BOS where there is one: int64 [texts, 1 or 2].

    From BOS alone a base writes what most of its documents begin with, and other kinds of text are rare. Tokens that were
    added to a tokenizer may have no row among the base's ``vocabulary``.
    """
    special = set(tokenizer.all_special_ids)
    words = np.array([token for token in range(min(len(tokenizer), vocabulary)) if token not in special])
    drawn = np.random.default_rng(seed).choice(words, (texts, 1))
    bos = tokenizer.bos_token_id
    return drawn if bos is None or bos >= vocabulary else np.concatenate([np.full_like(drawn, bos), drawn], axis=1)

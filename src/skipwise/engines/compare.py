"""One checkpoint read by several engines: do they predict the same?

Next-token log-probabilities are compared with those of this environment's transformers, in float32, at eight places
each at three depths: inside the original window, beyond it, and near the target. Where it was tried, a wrong RoPE moved
them by 0.03 to 13 nats; float32 operations in another order move them by 1e-5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from skipwise.data.documents import open_corpus
from skipwise.engines.request import Engine, Request
from skipwise.errors import EngineError
from skipwise.recipes.schema import Data

_PLACES = 8  # at each depth
COMPARED = 20  # the reference's likeliest tokens at each place
TOLERANCE = 2e-4  # of the mean at each depth, in nats
# On prose and code every token must be equal; pre-tokenizers differ in rare white space, signs and scripts too.
TEXTS = (
    "The captain's log, year 1984: it's 12345678 miles (or 3.14159 x 10^9), they'll say; WE'VE SEEN IT, haven't we?\n"
    "def read(self, path='data.txt'):\n    return {k: v for k, v in zip(self.keys(), range(100))}\n\n\n"
    "Naïve café — “quoted” … straße, Ελληνικά, русский текст, http://example.org/a_b?c=d&e=%20 <b>x</b> #tag @user\n",
    " It begins with a space, colour and all",
    "\tTabs\t and  double   spaces \n \n  end.   \r\n日本語の文章、中文标点。 한국어 हिन्दी العربية 🦙🚀 e\u0301 ½ ² ™\n"
    "    x = 1    # twice\n\t\tif x:\n\n \n\t  return\x0b\x0c'S 's \u00a0non\u2003breaking 1,000,000 ۱۲۳ ........\n",
)
_PLAIN = 2  # of the texts
# llama.cpp's CPU code looks GELU up in a table of float16, so even with float32 weights it is further away.
GGUF_TOLERANCES = {"f32": 1e-3, "f16": 1e-2, "bf16": 5e-2, "q8_0": 2e-1, "q6_k": 2e-1, "q5_k": 3e-1, "q4_k": 5e-1}


@dataclass(frozen=True)
class Comparison:
    """What an engine read, against the reference; differences in nats."""

    engine: Engine
    depths: dict[int, tuple[float, float]]  # tokens: largest and mean difference
    same_greedy: bool
    tolerance: float
    problem: str = ""  # why the engine read nothing, or other tokens
    note: str = ""  # what differs and is allowed to

    @property
    def agrees(self) -> bool:
        return not self.problem and all(mean <= self.tolerance for _, mean in self.depths.values())


def plan_request(model: str | Path, tokenizer: PreTrainedTokenizerBase, original: int, target: int) -> Request:
    """Plan what is asked of a model: the standard library of this Python is the text, so any machine has it."""
    depths = depths_of(original, target)
    text = _text(tokenizer, depths[-1])
    places = [place for depth in depths for place in range(depth - _PLACES + 1, depth + 1)]
    greedy_from = max(1, depths[-1] - Request.greedy)
    return Request(
        str(model), text, places, greedy_from=greedy_from, max_length=target, texts=TEXTS, tokens=tokens_of(tokenizer)
    )


def tokens_of(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The tokens of ``TEXTS``, with those that the tokenizer puts before and after a text."""
    return [list(tokenizer(text, verbose=False).input_ids) for text in TEXTS]


def differing(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many of our tokens theirs lack: on prose and code, and on the hard text."""
    lost = [
        len(mine)
        - sum(block.size for block in SequenceMatcher(None, mine, other, False).get_matching_blocks())
        + max(len(other) - len(mine), 0)
        for mine, other in zip(ours, theirs, strict=True)
    ]
    return sum(lost[:_PLAIN]), sum(lost[_PLAIN:])


def depths_of(original: int, target: int) -> list[int]:
    """Three depths in tokens: the middle of the original window, the middle of what is beyond it, and the end."""
    beyond = (original + target) // 2 if target > original else 3 * original // 4
    return [original // 2, beyond, target - 1]


def compare(reference: dict[str, Any], engine: Engine, request: Request, tolerance: float) -> Comparison:
    """Ask an engine and compare its answer with the reference's; of a GGUF file the tokens of texts too.

    Raises:
        EngineError: the reference itself gives no numbers.
    """
    if not all(value is not None and np.isfinite(value) for place in reference["places"] for _, value in place):
        raise EngineError(
            f"{request.model}: what transformers itself predicts is not finite, so its weights are damaged or overflow; "
            "copy the model again, or train again"
        )
    try:
        answer = engine.answer(request)
    except EngineError as error:
        return Comparison(engine, {}, False, tolerance, str(error))
    differences: dict[int, list[float]] = {}
    for place, ours, theirs in zip(request.places, reference["places"], answer["places"], strict=True):
        depth = next(depth for depth in request.places[_PLACES - 1 :: _PLACES] if place <= depth)
        differences.setdefault(depth, []).extend(_differences(ours[:COMPARED], theirs))
    depths = {depth: (float(np.max(found)), float(np.mean(found))) for depth, found in differences.items()}
    plain, hard = differing(request.tokens, answer["tokens"]) if "tokens" in answer else (0, 0)
    problem = (
        f"its tokenizer gives other tokens: {plain} of {_count(request.tokens[:_PLAIN])} on prose and code"
        if plain
        else ""
    )
    note = (
        f"{hard} of {_count(request.tokens[_PLAIN:])} tokens differ on odd white space and rare signs" if hard else ""
    )
    return Comparison(engine, depths, reference["greedy"] == answer["greedy"], tolerance, problem, note)


def _count(tokens: Sequence[Sequence[int]]) -> int:
    return sum(map(len, tokens))


def _differences(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Iterator[float]:
    """Absolute differences by token; what the engine does not tell is at most as likely as the least that it tells."""
    told = {int(token): float("nan") if value is None else value for token, value in theirs}
    least = min(told.values())
    for token, value in ours:
        yield abs(value - told.get(int(token), least))


def _text(tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[int]:
    """The first so many tokens of the standard library's modules, with the tokenizer's own beginning."""
    ids: list[int] = []
    for document, _ in open_corpus(Data()).read(None):
        ids += tokenizer(document.text, add_special_tokens=not ids, verbose=False).input_ids
        if len(ids) >= tokens:
            return ids[:tokens]
    raise EngineError(f"the standard library has {len(ids):,} tokens, and {tokens:,} are to be read; lower --length")

"""What an interpolation costs an untrained model: text in one window, text after a skip, answers after a skip.

One contiguous window of two to four original lengths ranks interpolations for 16 times the window nearly as a window of 64k
does (docs/method.md), but cannot see distances beyond itself. Two chunks with a skip between them can, at the cost of a short window.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.prompts import answer_ids, passkey_prompt
from skipwise.evaluation.perplexity import inference, not_finite, sliding_scores
from skipwise.evaluation.windows import position_buckets

_CHUNK, _MOVED = 512, 2048  # tokens of a chunk, at most half the original window; tokens of all that are moved
_PROMPTS, _PROMPT = 6, 512  # passkey prompts; tokens of one, at most the original window


@dataclass(frozen=True)
class Windows:
    """What every candidate reads; token ids are int64, lengths in tokens."""

    original: int
    target: int
    documents: list[np.ndarray]  # contiguous text, the longest first, each [dense] once it is shortened
    chunks: np.ndarray  # contiguous text with its second half moved away, [rows, 2 chunk]
    prompts: list[tuple[list[int], int]]  # passkey prompts with their answers, and the tokens of the answer
    bos: bool = False  # whether documents and chunks begin with a BOS

    @property
    def dense(self) -> int:
        return len(self.documents[0])

    def shortened(self, documents: int, dense: int) -> "Windows":
        """Return fewer and shorter contiguous windows; chunks and prompts stay."""
        long = [document for document in self.documents if len(document) >= dense]
        return replace(self, documents=[self.part(each, (len(each) - dense) // 2, dense) for each in long[:documents]])

    def part(self, tokens: np.ndarray, begin: int, size: int) -> np.ndarray:
        """Return a part of a document or a chunk, with its BOS."""
        part = tokens[begin : begin + size].copy()
        part[: self.bos] = tokens[0]
        return part

    @property
    def skips(self) -> list[int]:
        """By how much the second chunk is moved: to a quarter, half and all of the target."""
        return [self.target // part - self.chunks.shape[1] for part in (4, 2, 1)]


@dataclass(frozen=True)
class Score:
    """What one interpolation costs, in nats per token; None where it was not measured."""

    skipped: dict[int, float]  # by distance: the loss of a chunk after a skip less the loss of that chunk alone
    places: dict[int, float] | None = None  # the loss by the last token of each place in the contiguous window
    answers: dict[int, float] | None = None  # by distance: the loss of a passkey's digits

    def harm(self, beyond: int) -> float:
        """Return the largest loss by the chunk before a skip of more than ``beyond`` tokens; at least 0."""
        return max([0.0, *(loss for distance, loss in self.skipped.items() if distance > beyond)])


def draw_windows(
    documents: list[np.ndarray], tokenizer: PreTrainedTokenizerBase, original: int, target: int, seed: int
) -> Windows:
    """Draw what every candidate reads; a function of the arguments alone."""
    rng, half = np.random.default_rng([seed, original, target]), min(_CHUNK, original // 2)
    windows = Windows(original, target, documents, np.empty(0), [], bool(documents[0][0] == tokenizer.bos_token_id))
    rows = []
    for row in range(max(4, _MOVED // half)):
        document = documents[row % len(documents)]
        begin = int(rng.integers(0, len(document) - 2 * half + 1))
        rows.append(windows.part(document, begin, 2 * half))
    prompts = []
    for depth in np.linspace(0.1, 0.6, _PROMPTS):  # the number is before the part that is moved
        prompt = passkey_prompt(tokenizer, min(_PROMPT, original), rng, float(depth))
        answer = answer_ids(tokenizer, prompt.answer)
        prompts.append(([*prompt.ids, *answer], len(answer)))
    return replace(windows, chunks=np.stack(rows), prompts=prompts)


def skipped(model: PreTrainedModel, windows: Windows, precision: str) -> dict[int, float]:
    """Return by distance what a chunk loses by the chunk before the skip."""
    half = windows.chunks.shape[1] // 2
    later = np.stack([windows.part(row, half, half) for row in windows.chunks])
    alone = _loss(model, later, half - 1, 0, half, precision)
    return {
        skip + half: _loss(model, windows.chunks, half - 1, skip, half, precision) - alone for skip in windows.skips
    }


def by_place(model: PreTrainedModel, windows: Windows, precision: str, window: int) -> dict[int, float]:
    """Return the mean loss in each place, in windows that do not overlap."""
    scores = sliding_scores(model, windows.documents, window=window, stride=window, precision=precision)
    edges = position_buckets(windows.dense, windows.original)
    sums = np.sum([score.buckets(edges)[0] for score in scores], axis=0)
    return dict(zip(edges[1:], (sums / np.diff(edges) / len(windows.documents)).tolist(), strict=True))


def answer_losses(model: PreTrainedModel, windows: Windows, precision: str) -> dict[int, float]:
    """Return by distance the mean loss of a passkey's digits with the question moved away; 0: not moved."""
    losses = {}
    for skip in (0, *windows.skips):
        each = []
        for ids, answer in windows.prompts:
            moved = max(len(ids) // 4, answer + 1)
            each.append(_loss(model, np.array([ids]), answer, skip, moved, precision))
        losses[skip] = float(np.mean(each))
    return losses


def _loss(model: PreTrainedModel, rows: np.ndarray, scored: int, skip: int, moved: int, precision: str) -> float:
    """Return the mean loss of the last ``scored`` tokens, the last ``moved`` tokens ``skip`` positions on."""
    losses = []
    for row in rows:  # one at a time: the logits of a large vocabulary are what takes the memory
        ids = torch.from_numpy(row)[None].to(model.device)
        positions = torch.arange(ids.shape[1], device=ids.device)[None].clone()
        positions[:, -moved:] += skip
        with inference(model, precision):
            logits = model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=torch.ones_like(ids),  # without it transformers cuts attention where positions skip
                logits_to_keep=scored + 1,
                use_cache=False,
            ).logits[0, :-1]
        losses.append(float(cross_entropy(logits.float(), ids[0, -scored:])))
    if not np.isfinite(losses).all():
        raise not_finite()
    return float(np.mean(losses))

"""Losses by place and behind skips against a model called by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from skipwise.fit.result import Candidate, Fit
from skipwise.fit.score import Score, Windows, answer_losses, by_place, draw_windows, skipped
from skipwise.method.interpolation import Rope
from skipwise.model.extension import Extension
from tests.tiny import byte_tokenizer, llama

WINDOW, TARGET, DENSE = 256, 4096, 640


@pytest.fixture(scope="module")
def windows() -> Windows:
    text = np.random.default_rng(0).integers(1, 257, size=(2, DENSE))
    return draw_windows(list(text), byte_tokenizer(), WINDOW, TARGET, seed=0)


def total(score: Score) -> float:
    found = Fit("model", "", "", "", WINDOW, TARGET, seed=0, documents=2, dense=DENSE, base={})
    return found.total(Candidate("fitted", Extension(Rope(10_000.0, 16, WINDOW), TARGET, "power"), score))


def by_hand(model, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the loss of every token but the first, by one call of the model."""
    tokens, at = torch.from_numpy(ids)[None], torch.from_numpy(positions)[None]
    with torch.no_grad():
        logits = model(input_ids=tokens, position_ids=at, attention_mask=torch.ones_like(tokens)).logits[0]
    return cross_entropy(logits[:-1], tokens[0, 1:], reduction="none").numpy()


def test_places_are_means_of_token_losses_in_one_window(windows: Windows) -> None:
    model = llama(WINDOW)
    losses = [by_hand(model, document, np.arange(DENSE)) for document in windows.documents]
    found = by_place(model, windows, "float32", DENSE)
    assert list(found) == [64, 128, 256, 512, 640]
    for begin, end in pairwise([1, *found]):
        assert found[end] == pytest.approx(np.mean([loss[begin - 1 : end - 1] for loss in losses]), rel=1e-5)
    far = np.mean([loss[WINDOW - 1 :] for loss in losses])
    assert total(Score({}, places=found)) == pytest.approx(far, rel=2e-3)  # targets 256..639


def test_a_skip_moves_the_second_chunk_alone(windows: Windows) -> None:
    model, half = llama(WINDOW), windows.chunks.shape[1] // 2
    found = skipped(model, windows, "float32")
    assert list(found) == [TARGET // 4 - half, TARGET // 2 - half, TARGET - half]
    for distance, harm in found.items():
        at = np.arange(2 * half)
        at[half:] += distance - half
        together = [by_hand(model, row, at)[half:] for row in windows.chunks]
        alone = [by_hand(model, row[half:], np.arange(half)) for row in windows.chunks]
        assert harm == pytest.approx(np.mean(together) - np.mean(alone), abs=1e-4)


def test_answers_are_read_behind_the_skip(windows: Windows) -> None:
    model = llama(WINDOW)
    found = answer_losses(model, windows, "float32")
    assert list(found) == [0, *windows.skips]
    ids, answer = windows.prompts[0]
    near = [by_hand(model, np.array(i), np.arange(len(i)))[-a:].mean() for i, a in windows.prompts]
    assert found[0] == pytest.approx(np.mean(near), abs=1e-4)
    assert byte_tokenizer().decode(ids[-answer:]).strip().isdigit()


def test_harm_counts_where_the_window_does_not_reach() -> None:
    level = dict.fromkeys((64, 128, 256, 512, 640), 2.0)
    assert total(Score({300: 5.0, 4000: 0.25}, places=level)) == pytest.approx(2.1)
    assert total(Score({4000: -1.0}, places=level)) == pytest.approx(2.0)

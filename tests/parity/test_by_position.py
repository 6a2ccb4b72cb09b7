"""Loss and hits by position against a loop over single tokens, and against sliding perplexity of the same window."""

import numpy as np
import pytest
import torch

from skipwise.errors import DataError
from skipwise.evaluation import perplexity
from skipwise.evaluation.by_position import far_loss, position_buckets, score_by_position
from skipwise.evaluation.perplexity import sliding_perplexity
from tests.tiny import llama


@pytest.fixture(scope="module")
def model():
    return llama(64)


def segments(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 257, (count, length))


@pytest.mark.parametrize("edges", [[1, 8, 16, 48], [1, 48], [1, 2, 47, 48]])
def test_every_bucket_equals_a_loop_over_tokens(model, edges, monkeypatch) -> None:
    monkeypatch.setattr(perplexity, "_PER_BATCH", {"cpu": 96})  # batches of two, the last of one
    rows = segments(3, 48)
    fed: list[int] = []
    score = score_by_position(model, rows, edges, on_progress=fed.append)
    nll, hits = np.zeros((3, len(edges) - 1)), np.zeros((3, len(edges) - 1), dtype=int)
    for number, row in enumerate(rows):
        for target in range(1, 48):
            with torch.inference_mode():
                logits = model(torch.from_numpy(row[None, :target])).logits[0, -1].double()
            bucket = np.searchsorted(edges, target, side="right") - 1
            nll[number, bucket] -= torch.log_softmax(logits, -1)[row[target]].item()
            hits[number, bucket] += int(logits.argmax()) == row[target]
    np.testing.assert_allclose(score.nll, nll, rtol=1e-5)
    np.testing.assert_array_equal(score.hits, hits)
    assert sum(fed) == rows.size


def test_the_sum_is_sliding_perplexity_of_one_window(model) -> None:
    rows = segments(4, 40)
    score = score_by_position(model, rows, [1, 10, 40])
    whole = sliding_perplexity(model, list(rows), window=40, stride=20)
    assert score.nll.sum() == pytest.approx(whole.nll, rel=1e-6)


def test_a_prefix_does_not_depend_on_what_follows(model) -> None:
    rows = segments(2, 48)
    long = score_by_position(model, rows, [1, 16, 48]).nll[:, 0]
    np.testing.assert_allclose(long, score_by_position(model, rows[:, :16], [1, 16]).nll[:, 0], rtol=1e-5)


def test_far_loss_is_the_mean_beyond_the_original_window(model) -> None:
    rows = segments(3, 48)
    with torch.inference_mode():
        likelihoods = torch.log_softmax(model(torch.from_numpy(rows)).logits.double(), -1)
    far = [-likelihoods[n, t - 1, rows[n, t]].item() for n in range(3) for t in range(16, 48)]
    assert far_loss(model, rows, 16) == pytest.approx(np.mean(far), rel=1e-5)


def test_buckets_double_from_a_quarter_of_the_original_length() -> None:
    assert position_buckets(2048, 256) == [1, 64, 128, 256, 512, 1024, 2048]
    assert position_buckets(256, 256) == [1, 64, 128, 256]
    assert position_buckets(1000, 256) == [1, 64, 128, 256, 512, 1000]
    assert position_buckets(3, 4) == [1, 2, 3]


def test_nothing_to_read_and_foreign_tokens_are_refused(model) -> None:
    with pytest.raises(DataError, match="no segment to score by position; give longer documents"):
        score_by_position(model, segments(0, 16), [1, 16])
    with pytest.raises(DataError, match="token 300 >= vocabulary 257"):
        score_by_position(model, np.full((1, 16), 300), [1, 16])

"""Perplexity, and loss and hits by position, against a brute-force oracle: one forward a token, with its window as context."""

import math
from copy import deepcopy
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import LlamaForCausalLM

from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation import perplexity
from skipwise.evaluation.perplexity import fed_tokens, sliding_perplexity, sliding_scores
from skipwise.evaluation.windows import sliding_windows
from tests.tiny import llama

VOCABULARY, BOS = 61, 0


@pytest.fixture(scope="module")
def model():
    """Its window is shorter than most here, on purpose; attention is far from uniform, so that positions matter."""
    return llama(8, vocab_size=VOCABULARY, hidden_size=16, initializer_range=0.7)


def documents_of(lengths):
    rng = np.random.default_rng(1)
    return [rng.integers(0, VOCABULARY, n).astype(np.uint16) for n in lengths]


def context_begin(target, tokens, window, stride):
    """First token of the window that scores ``target``, from the definition: the first window that has it."""
    end, step = min(window, tokens), min(stride, window - 1)
    while end <= target:
        end += step
    return max(0, min(end, tokens) - window)


@torch.no_grad()
def brute_force(model, document, window, stride):
    """Negative log-likelihood and hit of every target of a document: float64 and bool [tokens - 1]."""
    nll, hits = [], []
    for target in range(1, len(document)):
        begin = context_begin(target, len(document), window, stride)
        context = torch.tensor(document[begin:target].astype(np.int64))[None]
        if document[0] == BOS:  # each window begins with it
            context[0, 0] = BOS
        logits = model(input_ids=context, attention_mask=torch.ones_like(context)).logits[0, -1]
        nll.append(-logits.double().log_softmax(-1)[int(document[target])].item())
        hits.append(int(logits.argmax()) == document[target])
    return np.array(nll), np.array(hits, dtype=bool)


@st.composite
def evaluations(draw):
    window = draw(st.integers(2, 14))
    lengths = draw(st.lists(st.integers(0, 26), min_size=1, max_size=3).filter(lambda ls: max(ls) > 1))
    at_once = draw(
        st.sampled_from([(1, 3), (40, 16384), (16384, 16384)])
    )  # tokens fed, logits in multiples of the vocabulary
    return lengths, window, draw(st.integers(1, window)), at_once, draw(st.booleans())


@settings(max_examples=25, deadline=None)
@given(evaluations())
def test_every_token_scores_what_one_forward_scores(model, evaluation):
    lengths, window, stride, (fed, logits), begun = evaluation
    documents, steps = documents_of(lengths), []
    for document in documents:
        document[:1] = BOS if begun else document[:1]
    with (
        patch.dict(perplexity._PER_BATCH, cpu=fed),
        patch.dict(perplexity._LOGITS, cpu=logits * VOCABULARY),
        patch.object(perplexity, "_FEWEST_ROWS", 1),
    ):
        scores = list(sliding_scores(model, documents, window=window, stride=stride, on_progress=steps.append))
    assert sum(steps) == fed_tokens(documents, window, stride)
    assert len(scores) == len(documents)
    for document, score in zip(documents, scores, strict=True):
        nll, hits = brute_force(model, document, window, stride)
        np.testing.assert_allclose(score.nll, nll, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(score.hits, hits)


def test_the_sum_over_documents_is_exact_and_counts_every_token_once(model):
    documents = documents_of([26, 1, 13, 0, 8])
    score = sliding_perplexity(model, documents, window="8", stride=3)
    expected = sum(brute_force(model, document, 8, 3)[0].sum() for document in documents)
    assert score.nll == pytest.approx(expected, rel=1e-5)
    assert (score.documents, score.tokens) == (3, 25 + 12 + 7)
    assert score.perplexity == pytest.approx(math.exp(expected / score.tokens), rel=1e-5)


@pytest.mark.parametrize("edges", [[1, 8, 16, 30], [1, 2, 29, 30]])
def test_every_bucket_of_positions_sums_its_own_tokens(model, edges):
    [document] = documents_of([30])
    [score] = sliding_scores(model, [document], window=30, stride=15)
    summed, counted = score.buckets(edges)
    for exact, found in zip(brute_force(model, document, 30, 30), (summed, counted), strict=True):
        wanted = [exact[begin - 1 : end - 1].sum() for begin, end in pairwise(edges)]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_logits_exist_only_where_a_token_is_scored(model, monkeypatch):
    seen, forward = [], LlamaForCausalLM.forward

    def spy(self, **arguments):
        output = forward(self, **arguments)
        assert arguments["attention_mask"].all()
        seen.append(output.logits.shape[:2].numel())
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", spy)
    documents = documents_of([50, 31, 5])
    score = sliding_perplexity(model, documents, window=12, stride=4)
    assert sum(seen) == score.tokens == 49 + 30 + 4
    assert len(seen) < len([w for d in documents for w in sliding_windows(len(d), 12, 4)])  # batched


def test_precision_is_that_of_the_forward_pass_and_the_mode_is_restored(model):
    documents = documents_of([60])
    exact = sliding_perplexity(model, documents, window=20, stride=5).nll
    model.train()
    rounded = sliding_perplexity(model, documents, window=20, stride=5, precision="bf16").nll
    assert model.training
    model.eval()
    assert exact != rounded
    assert exact == pytest.approx(rounded, rel=0.05)


def test_documents_may_be_lists_arrays_or_tensors(model):
    ids = documents_of([20])[0].tolist()
    kinds = (ids, np.array(ids, dtype=np.uint16), torch.tensor(ids), torch.tensor(ids, dtype=torch.int32))
    assert len({sliding_perplexity(model, [one], window=8, stride=4).nll for one in kinds}) == 1
    assert sliding_perplexity(model, torch.tensor([ids, ids]), window=8, stride=4).documents == 2


@pytest.mark.parametrize(
    ("documents", "options", "error"),
    [
        ([7, 8, 9], {}, DataError),
        ([[1, 2], [1, 2.5]], {}, DataError),
        ([[[1, 2]]], {}, DataError),
        ([[1, 2], [1, -100]], {}, DataError),
        ([[1, 2], [1, VOCABULARY]], {}, DataError),
        ([[1], []], {}, DataError),
        ([[1, 2, 3]], {"stride": 9}, RecipeError),
        ([[1, 2, 3]], {"precision": "bfloat16"}, RecipeError),
        ([[1, 2, 3]], {"precision": "fp16"}, RecipeError),  # needs a GPU
    ],
)
def test_what_cannot_be_scored_is_refused(model, documents, options, error):
    with pytest.raises(error):
        sliding_perplexity(model, documents, **({"window": 8, "stride": 4} | options))


def test_a_loss_that_is_not_a_number_is_refused(model):
    broken = deepcopy(model)
    torch.nn.init.constant_(broken.lm_head.weight, math.nan)
    with pytest.raises(EvaluationError):
        sliding_perplexity(broken, documents_of([20]), window=8, stride=4)

"""Perplexity, and loss and hits by position, against a brute-force oracle: one forward a token, with its window as context."""

import math
from copy import deepcopy
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation import perplexity
from skipwise.evaluation.perplexity import Score, fed_tokens, require_vocabulary, sliding_perplexity, sliding_scores
from skipwise.evaluation.windows import sliding_windows
from tests.tiny import llama

VOCABULARY = 61


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8,  # shorter than most windows here: evaluation goes beyond it on purpose
        initializer_range=0.7,  # attention far from uniform, so that context and positions matter
    )
    return LlamaForCausalLM(config).eval()


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
        logits = model(input_ids=context, attention_mask=torch.ones_like(context)).logits[0, -1]
        nll.append(-logits.double().log_softmax(-1)[int(document[target])].item())
        hits.append(int(logits.argmax()) == document[target])
    return np.array(nll), np.array(hits, dtype=bool)


def fed_together(tokens: int):
    """In this context so many tokens are fed at a time."""
    return patch.dict(perplexity._PER_BATCH, cpu=tokens)


def total(scores):
    return sum(float(score.nll.sum()) for score in scores)


@st.composite
def evaluations(draw):
    window = draw(st.integers(2, 14))
    lengths = draw(st.lists(st.integers(0, 26), min_size=1, max_size=3).filter(lambda ls: max(ls) > 1))
    return lengths, window, draw(st.integers(1, window)), draw(st.sampled_from([1, 40, 16384]))


@settings(max_examples=25, deadline=None)
@given(evaluations())
def test_every_token_scores_what_one_forward_scores(model, evaluation):
    lengths, window, stride, tokens_per_batch = evaluation
    documents = documents_of(lengths)
    with fed_together(tokens_per_batch):
        scores = list(sliding_scores(model, documents, window=window, stride=stride))
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


@pytest.mark.parametrize("edges", [[1, 8, 16, 30], [1, 30], [1, 2, 29, 30]])
def test_every_bucket_of_positions_sums_its_own_tokens(model, edges):
    documents = documents_of([30, 30, 30])
    with fed_together(60):  # two at a time, then one
        scores = list(sliding_scores(model, documents, window=30, stride=15))
    for document, score in zip(documents, scores, strict=True):
        nll, hits = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1, dtype=int)
        exact, right = brute_force(model, document, 30, 30)
        for target in range(1, 30):
            bucket = next(i for i in range(len(edges) - 1) if edges[i] <= target < edges[i + 1])
            nll[bucket] += exact[target - 1]
            hits[bucket] += right[target - 1]
        summed, counted = score.buckets(edges)
        np.testing.assert_allclose(summed, nll, rtol=1e-5)
        np.testing.assert_array_equal(counted, hits)


def test_the_loss_of_a_prefix_does_not_depend_on_what_follows(model):
    documents = documents_of([26])
    [whole] = sliding_scores(model, documents, window=26, stride=13)
    [prefix] = sliding_scores(model, [documents[0][:10]], window=10, stride=5)
    np.testing.assert_allclose(whole.nll[:9], prefix.nll, rtol=1e-5)


def test_logits_exist_only_where_a_token_is_scored(model, monkeypatch):
    seen, inputs = [], []
    forward = LlamaForCausalLM.forward

    def spy(self, **arguments):
        output = forward(self, **arguments)
        inputs.append(arguments)
        seen.append(output.logits.shape[:2].numel())
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", spy)
    documents = documents_of([50, 31, 5])
    score = sliding_perplexity(model, documents, window=12, stride=4)
    assert sum(seen) == score.tokens == 49 + 30 + 4
    assert len(seen) < len([w for d in documents for w in sliding_windows(len(d), 12, 4)])  # batched
    for call in inputs:
        assert call["attention_mask"].shape == call["input_ids"].shape
        assert call["attention_mask"].all()
        assert call["use_cache"] is False
        width = call["input_ids"].shape[1]
        assert call["position_ids"].tolist() == [list(range(width))] * len(call["input_ids"])


def test_the_batch_does_not_change_the_result(model):
    documents = documents_of([60, 33, 33, 7])
    sums = []
    for tokens in (1, 25, 16384):
        with fed_together(tokens):
            sums.append(total(sliding_scores(model, documents, window=10, stride=3)))
    one, small, large = sums
    assert one == pytest.approx(small, rel=1e-6)
    assert one == pytest.approx(large, rel=1e-6)


def test_slicing_the_logits_does_not_change_the_result(model, monkeypatch):
    documents = documents_of([60])
    whole = sliding_perplexity(model, documents, window=20, stride=5).nll
    monkeypatch.setitem(perplexity._LOGITS, "cpu", 3 * VOCABULARY)
    assert sliding_perplexity(model, documents, window=20, stride=5).nll == pytest.approx(whole, rel=1e-6)


def test_progress_counts_the_tokens_fed(model):
    documents, steps = documents_of([60, 33, 1]), []
    with fed_together(40):
        list(sliding_scores(model, documents, window=10, stride=3, on_progress=steps.append))
    assert len(steps) > 2
    assert sum(steps) == fed_tokens(documents, 10, 3)


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_restored(model, training):
    model.train(training)
    sliding_perplexity(model, documents_of([9]), window=4, stride=2)
    assert model.training is training
    model.eval()


def test_precision_is_that_of_the_forward_pass(model):
    documents = documents_of([60])
    exact = sliding_perplexity(model, documents, window=20, stride=5).nll
    rounded = sliding_perplexity(model, documents, window=20, stride=5, precision="bf16").nll
    assert exact != rounded
    assert exact == pytest.approx(rounded, rel=0.05)


def test_an_exploded_model_has_infinite_perplexity():
    assert Score(documents=1, tokens=1, nll=1e4, seconds=0.0).perplexity == math.inf


@pytest.mark.parametrize("lengths", [[], [1, 0]])
def test_nothing_to_score_is_explained(model, lengths):
    with pytest.raises(DataError, match=rf"no token to score in {len(lengths)} documents?; give one of two"):
        sliding_perplexity(model, documents_of(lengths), window=8, stride=4)


def test_documents_may_be_lists_arrays_or_tensors(model):
    ids = documents_of([20])[0].tolist()
    kinds = (ids, np.array(ids, dtype=np.uint16), torch.tensor(ids), torch.tensor(ids, dtype=torch.int32))
    assert len({sliding_perplexity(model, [one], window=8, stride=4).nll for one in kinds}) == 1
    assert sliding_perplexity(model, torch.tensor([ids, ids]), window=8, stride=4).documents == 2


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([7, 8, 9], "document 0 holds 7, not a list of token ids; give one list of whole numbers for each document"),
        (torch.tensor([7, 8, 9]), r"document 0 holds tensor\(7\), not a list"),
        ([[1, 2], [1, 2.5]], r"document 1 holds \[1, 2.5\], not a list"),
        ([torch.tensor([1.0, 2.0], dtype=torch.bfloat16)], r"document 0 holds tensor\(.*, not a list"),
        ([[[1, 2]]], "document 0 holds several rows, not a list"),
        ([[1, 2], [1, -100]], "document 1 has token -100, and the vocabulary has"),
    ],
)
def test_what_is_no_document_of_token_ids_is_explained(model, documents, message):
    with pytest.raises(DataError, match=message):
        sliding_perplexity(model, documents, window=8, stride=4)


@pytest.mark.parametrize(
    ("precision", "message"),
    [("bfloat16", "'bfloat16' is unknown.*choose one of auto, bf16, fp16, float32"), ("fp16", "'fp16' needs a GPU")],
)
def test_a_precision_that_cannot_be_had_is_refused(model, precision, message):
    with pytest.raises(RecipeError, match=message):
        sliding_perplexity(model, documents_of([20]), window=8, stride=4, precision=precision)


def test_a_loss_that_is_not_a_number_is_refused(model):
    broken = deepcopy(model)
    torch.nn.init.constant_(broken.lm_head.weight, math.nan)
    with pytest.raises(EvaluationError, match="logits are not finite"):
        sliding_perplexity(broken, documents_of([20]), window=8, stride=4)


def test_a_token_beyond_the_vocabulary_is_explained(model):
    documents = [*documents_of([5]), np.array([1, 2, 200])]
    with pytest.raises(DataError, match="document 1 has token 200"):
        sliding_perplexity(model, documents, window=8, stride=4)


def test_a_stride_wider_than_the_window_is_refused(model):
    with pytest.raises(RecipeError, match="stride 9 must not exceed the window 8"):
        sliding_perplexity(model, documents_of([20]), window=8, stride=9)


def test_the_first_id_beyond_the_vocabulary_is_refused() -> None:
    require_vocabulary(llama(), [np.array([256])])
    with pytest.raises(DataError, match="token 257, and the vocabulary has 257"):
        require_vocabulary(llama(), [np.array([257])])

"""Retrieval: prompts by seed and number, greedy answers, what prompts share, and when an answer is right."""

from dataclasses import replace

import pytest
import torch

from skipwise.errors import EvaluationError, RecipeError
from skipwise.evaluation import retrieval
from skipwise.evaluation.retrieval import answers, draw_prompt, is_hit, question_of, retrieval_accuracy
from tests import tiny

LENGTH = 420


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.byte_tokenizer()


@pytest.fixture(scope="module")
def llama():
    """Its window is much shorter than the prompts: it is measured beyond it on purpose."""
    return tiny.llama(64, initializer_range=0.3)


@torch.no_grad()
def greedy(model, prompt, new_tokens):
    """No cache, no batch, no generate: the definition of greedy decoding."""
    ids = torch.tensor([prompt])
    for _ in range(new_tokens):
        following = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, following[:, None]], 1)
    return ids[0, len(prompt) :].tolist()


def prompts_of(tokenizer, trials):
    return [draw_prompt("passkey", tokenizer, LENGTH, 0, trial, "random") for trial in range(trials)]


def test_equals_greedy_decoding_without_cache_or_batch_beyond_the_models_length(llama, tokenizer):
    prompts = prompts_of(tokenizer, 8)
    questions = [question_of(prompt, tokenizer) for prompt in prompts]
    found = {answer.number: answer.text for answer in answers(llama, tokenizer, questions)}
    assert sorted(found) == list(range(8))
    for number, prompt in enumerate(prompts):
        written = greedy(llama, prompt.ids, 7)
        if tokenizer.eos_token_id in written:
            written = written[: written.index(tokenizer.eos_token_id)]
        assert found[number] == tokenizer.decode(written).strip()
    assert len(set(found.values())) > 1


@pytest.mark.parametrize(
    ("continuation", "hit"),
    [(" 81501. Remember", True), ("81501 2", True), ("815012", False), ("is 81501", False), ("", False)],
)
def test_a_hit_is_five_digits_and_no_sixth(continuation, hit):
    assert is_hit(continuation, "81501") is hit


@pytest.mark.parametrize("memory", [1, 2**22, 2**24])
def test_long_answers_are_the_same_alone_and_together(llama, tokenizer, monkeypatch, memory):
    """Memory for none of the others, for some, or for all."""
    prompts = prompts_of(tokenizer, 7)
    questions = [replace(question_of(prompt, tokenizer), most=20 + n) for n, prompt in enumerate(prompts)]
    alone = {n: "".join(a.text for a in answers(llama, tokenizer, [q])) for n, q in enumerate(questions)}
    monkeypatch.setattr(retrieval, "machine_memory", lambda device: memory)
    assert {answer.number: answer.text for answer in answers(llama, tokenizer, questions)} == alone


def test_logits_that_are_not_numbers_are_no_answer(tokenizer):
    broken = tiny.llama()
    torch.nn.init.constant_(broken.lm_head.weight, float("nan"))
    with pytest.raises(EvaluationError):
        retrieval_accuracy(broken, tokenizer, length=LENGTH, trials=2)
    for settings in ({"trials": 0}, {"precision": "fp16"}, {"task": "vt"}):
        with pytest.raises(RecipeError):
            retrieval_accuracy(broken, tokenizer, **{"length": LENGTH, "trials": 1, **settings})

"""Retrieval: prompts by seed and number, greedy answers, what prompts share, and when an answer is right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skipwise.data.passkey import passkey_prompt
from skipwise.errors import EvaluationError, RecipeError
from skipwise.evaluation import retrieval
from skipwise.evaluation.retrieval import answers, draw_prompt, is_hit, question_of, retrieval_accuracy, retrieve

LENGTH = 420


@pytest.fixture(scope="module")
def tokenizer():
    """A token a byte; ids 256 and 257 are EOS and BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")


@pytest.fixture(scope="module")
def llama(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,  # much shorter than the prompts: measured beyond it on purpose
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def greedy(model, prompt, new_tokens):
    """No cache, no batch, no generate: the definition of greedy retrieval."""
    ids = torch.tensor([prompt])
    for _ in range(new_tokens):
        following = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, following[:, None]], 1)
    return ids[0, len(prompt) :].tolist()


def prompts_of(tokenizer, trials, seed=0, depths="random", task="passkey"):
    return [draw_prompt(task, tokenizer, LENGTH, seed, trial, depths) for trial in range(trials)]


def texts(model, tokenizer, prompts):
    """What the model writes after each prompt, in the order of the prompts."""
    answers = sorted(retrieve(model, tokenizer, prompts), key=lambda answer: answer.number)
    assert [answer.number for answer in answers] == list(range(len(prompts)))
    return [answer.text for answer in answers]


def test_prompts_are_drawn_from_seed_length_and_number(tokenizer):
    drawn = prompts_of(tokenizer, 6, seed=3)
    rngs = [np.random.default_rng([3, LENGTH, trial]) for trial in range(6)]
    assert drawn == [passkey_prompt(tokenizer, LENGTH, rng) for rng in rngs]
    assert drawn == prompts_of(tokenizer, 9, seed=3)[:6]
    assert [p.answer for p in drawn] != [p.answer for p in prompts_of(tokenizer, 6, seed=4)]


def test_equals_greedy_decoding_without_cache_or_batch_beyond_the_models_length(llama, tokenizer):
    prompts = prompts_of(tokenizer, 8)
    answers = texts(llama, tokenizer, prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        written = greedy(llama, prompt.ids, 7)
        if tokenizer.eos_token_id in written:
            written = written[: written.index(tokenizer.eos_token_id)]
        assert answer == tokenizer.decode(written).strip()
    assert len(set(answers)) > 1


def test_what_prompts_share_is_read_once_and_changes_nothing(llama, tokenizer, monkeypatch):
    fed = []
    forward = type(llama).forward

    def spy(self, **arguments):
        fed.append(arguments["input_ids"].shape[1])
        return forward(self, **arguments)

    monkeypatch.setattr(type(llama), "forward", spy)
    prompts = prompts_of(tokenizer, 12, seed=1)
    tokens = sum(len(prompt.ids) for prompt in prompts)
    shared, shared_tokens = texts(llama, tokenizer, prompts), sum(fed)
    fed.clear()
    monkeypatch.setattr(retrieval.Reader, "_common", lambda self, prompt: 0)
    assert texts(llama, tokenizer, prompts) == shared
    assert tokens * 0.4 < shared_tokens < tokens * 0.8
    assert sum(fed) >= tokens


@pytest.mark.parametrize(
    ("continuation", "hit"),
    [
        ("81501", True),
        (" 81501. Remember", True),
        ("\n81501\n", True),
        ("81501 2", True),
        ("815012", False),
        ("8150", False),
        ("08150", False),
        ("81502", False),
        ("is 81501", False),
        ("81 501", False),
        ("", False),
    ],
)
def test_a_hit_is_five_digits_and_no_sixth(continuation, hit):
    assert is_hit(continuation, "81501") is hit


@pytest.mark.parametrize(
    "settings",
    [{"trials": 0}, {"trials": 2.5}, {"seed": -1}, {"precision": "bfloat16"}, {"precision": "fp16"}, {"task": "vt"}],
)
def test_settings_that_break_their_rule_are_refused(llama, tokenizer, settings):
    with pytest.raises(RecipeError):
        retrieval_accuracy(llama, tokenizer, **{"length": LENGTH, "trials": 1, **settings})


@pytest.mark.parametrize("memory", [None, 1, 2**22, 2**24])
def test_long_answers_are_the_same_alone_and_together(llama, tokenizer, monkeypatch, memory):
    """Memory for none of the others, for some, or for all."""
    prompts = prompts_of(tokenizer, 7, seed=1)
    questions = [replace(question_of(prompt, tokenizer), most=20 + n) for n, prompt in enumerate(prompts)]
    alone = {n: "".join(a.text for a in answers(llama, tokenizer, [q])) for n, q in enumerate(questions)}
    monkeypatch.setattr(retrieval, "machine_memory", lambda device: memory)
    assert {answer.number: answer.text for answer in answers(llama, tokenizer, questions)} == alone


def test_logits_that_are_not_numbers_are_no_answer(tokenizer):
    broken = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1)
    )
    torch.nn.init.constant_(broken.lm_head.weight, float("nan"))
    with pytest.raises(EvaluationError, match="logits are not finite"):
        retrieval_accuracy(broken, tokenizer, length=LENGTH, trials=2)


def test_a_full_score_ends_the_answer(llama, tokenizer):
    [prompt] = prompts_of(tokenizer, 1)
    question = replace(question_of(prompt, tokenizer), most=40, score=lambda text: float(len(text) >= 5))
    [whole] = answers(llama, tokenizer, [question])
    [ended] = answers(llama, tokenizer, [replace(question, settled=True)])
    assert len(ended.text) < len(whole.text)
    assert whole.text.startswith(ended.text)
    assert ended.score == whole.score == 1

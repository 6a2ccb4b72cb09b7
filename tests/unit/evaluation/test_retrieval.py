"""Retrieval: prompts by seed and number, greedy answers, what prompts share, and when an answer is right."""

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skipwise.data.passkey import passkey_prompt
from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation import decoding, retrieval
from skipwise.evaluation.retrieval import (
    answers,
    draw_prompt,
    is_hit,
    question_of,
    retrieval_accuracy,
    retrieve,
    tenth_of,
)
from skipwise.model.key_value_cache import CACHE

LENGTH = 420


@pytest.fixture(scope="module")
def tokenizer():
    """A token a byte; ids 256 and 257 are EOS and BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")


class Scripted:
    """Stands for a model: ``reply`` writes the continuation of each prompt's text."""

    device, training, config = torch.device("cpu"), False, LlamaConfig(num_hidden_layers=1)

    def __init__(self, tokenizer, reply):
        self.tokenizer, self.reply, self.ids, self.fed = tokenizer, reply, [], []

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode

    def get_input_embeddings(self):
        return torch.nn.Embedding(len(self.tokenizer), 1)

    def __call__(self, input_ids, position_ids, logits_to_keep, **rest):
        rest[CACHE].update(*torch.zeros(2, 1, 1, input_ids.shape[1], 1), 0)  # older ones cannot go back when empty
        self.fed.append(input_ids.shape[1])
        self.ids[position_ids[0, 0] :] = input_ids[0].tolist()
        logits = torch.zeros(1, logits_to_keep, len(self.tokenizer))
        for place in range(logits_to_keep):
            read = self.ids[: len(self.ids) - logits_to_keep + 1 + place]
            prompt, question, written = self.tokenizer.decode(read).rpartition("? The pass key is")
            if not written:
                self.writes = self.tokenizer(self.reply(prompt + question) + "</s>")["input_ids"]
            number = len(self.tokenizer(written)["input_ids"])
            logits[0, place, self.writes[min(number, len(self.writes) - 1)]] = 1
        return SimpleNamespace(logits=logits)


def recall(text):
    return " " + re.search(r"The pass key is (\d{5})\.", text).group(1) + "</s>"


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
    """No cache, no batch, no generate: the definition of greedy decoding."""
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


def test_a_model_that_recalls_finds_every_number(tokenizer):
    model, prompts = Scripted(tokenizer, recall), prompts_of(tokenizer, 20)
    assert retrieval_accuracy(model, tokenizer, length=LENGTH, trials=20) == 1.0
    written = texts(model, tokenizer, prompts)
    assert written == [prompt.answer for prompt in prompts]
    assert all(re.fullmatch(r"\d{5}", text) for text in written)
    assert len(set(written)) == 20
    # a token a byte: no sentence is longer than 23 of them, and the answer takes 6
    assert all(LENGTH - 6 - 23 < len(prompt.ids) <= LENGTH - 6 for prompt in prompts)


def test_a_model_that_guesses_finds_none(tokenizer):
    rng = np.random.default_rng(0)
    guess = Scripted(tokenizer, lambda text: f" {rng.integers(10000, 100000)}")
    assert retrieval_accuracy(guess, tokenizer, length=LENGTH, trials=30) == 0


def test_a_number_that_goes_on_is_seen_and_missed(tokenizer):
    longer = Scripted(tokenizer, lambda text: recall(text).replace("</s>", "7"))
    assert retrieval_accuracy(longer, tokenizer, length=LENGTH, trials=5) == 0


def test_a_random_model_finds_nothing(llama, tokenizer):
    assert retrieval_accuracy(llama, tokenizer, length=LENGTH, trials=4) == 0


def test_prompts_are_drawn_from_seed_length_and_number(tokenizer):
    drawn = prompts_of(tokenizer, 6, seed=3)
    rngs = [np.random.default_rng([3, LENGTH, trial]) for trial in range(6)]
    assert drawn == [passkey_prompt(tokenizer, LENGTH, rng) for rng in rngs]
    assert drawn == prompts_of(tokenizer, 9, seed=3)[:6]
    assert [p.answer for p in drawn] != [p.answer for p in prompts_of(tokenizer, 6, seed=4)]


def test_spread_prompts_hide_the_number_in_the_tenth_of_their_trial(tokenizer):
    drawn = [draw_prompt("passkey", tokenizer, 1500, 0, trial, "spread") for trial in range(10)]
    assert [int(min(prompt.depth, 0.999) * 10) for prompt in drawn] == [tenth_of(trial) for trial in range(10)]


@pytest.mark.parametrize("task", ["keys", "lines"])
def test_every_task_draws_its_own_prompts(tokenizer, task):
    drawn = [draw_prompt(task, tokenizer, 700, 0, trial, "random") for trial in range(3)]
    assert len({tuple(prompt.ids) for prompt in drawn}) == 3
    assert all(re.fullmatch(r"\d{5}", prompt.answer) for prompt in drawn)
    assert all(len(prompt.ids) <= 700 - 6 for prompt in drawn)


def test_an_unknown_task_is_refused(tokenizer):
    with pytest.raises(RecipeError, match=r"task 'line' is unknown \(did you mean lines\?\)"):
        draw_prompt("line", tokenizer, LENGTH, 0, 0, "random")


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
    monkeypatch.setattr(decoding.Reader, "_common", lambda self, prompt: 0)
    assert texts(llama, tokenizer, prompts) == shared
    assert tokens * 0.4 < shared_tokens < tokens * 0.8
    assert sum(fed) >= tokens


def test_reading_after_the_cache_a_few_tokens_at_a_time_changes_nothing(llama, tokenizer, monkeypatch):
    prompts = prompts_of(tokenizer, 6, seed=1)
    whole = texts(llama, tokenizer, prompts)
    monkeypatch.setattr(decoding, "_AT_ONCE", 50)
    assert texts(llama, tokenizer, prompts) == whole


def test_the_checkpoints_own_generation_settings_do_not_count(llama, tokenizer):
    prompts = prompts_of(tokenizer, 4)
    plain = texts(llama, tokenizer, prompts)
    own = llama.generation_config
    changed = type(own)(do_sample=True, temperature=9.0, repetition_penalty=5.0, top_k=3, max_length=5)
    llama.generation_config = changed
    try:
        assert texts(llama, tokenizer, prompts) == plain
        assert llama.generation_config is changed
    finally:
        llama.generation_config = own


def test_a_length_beyond_the_models_own_passes_without_a_warning(llama, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        retrieval_accuracy(llama, tokenizer, length=LENGTH, trials=2)


def test_only_the_logits_of_the_answer_are_computed(llama, tokenizer):
    widths = []
    hook = llama.lm_head.register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    retrieval_accuracy(llama, tokenizer, length=LENGTH, trials=3)
    hook.remove()
    assert set(widths) <= {1, 7}  # the six ids of an answer in bytes, and one more


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_restored(llama, tokenizer, training):
    llama.train(training)
    retrieval_accuracy(llama, tokenizer, length=LENGTH, trials=1, precision="bf16")
    assert llama.training is training
    llama.eval()


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
    ("settings", "message"),
    [
        ({"trials": 0}, "trials 0 must be at least 1 and a whole number; correct it"),
        ({"trials": 2.5}, "trials 2.5 must be at least 1 and a whole number"),
        ({"seed": -1}, "seed -1 must be at least 0"),
        ({"precision": "bfloat16"}, "'bfloat16' is unknown.*choose one of auto, bf16, fp16, float32"),
        ({"precision": "fp16"}, "'fp16' needs a GPU"),
        ({"task": "vt"}, "task 'vt' is unknown; choose one of passkey, keys, lines"),
    ],
)
def test_settings_that_break_their_rule_are_refused(llama, tokenizer, settings, message):
    with pytest.raises(RecipeError, match=message):
        retrieval_accuracy(llama, tokenizer, **{"length": LENGTH, "trials": 1, **settings})


def test_a_tokenizer_larger_than_the_model_is_explained(tokenizer):
    model = Scripted(tokenizer, recall)
    model.get_input_embeddings = lambda: torch.nn.Embedding(50, 1)
    with pytest.raises(DataError, match=r"token \d+ >= vocabulary 50; another model's tokenizer"):
        retrieval_accuracy(model, tokenizer, length=LENGTH, trials=2)


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

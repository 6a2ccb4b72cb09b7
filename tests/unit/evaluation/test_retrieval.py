import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skipwise.data.passkey import passkey_prompt
from skipwise.errors import DataError, RecipeError
from skipwise.evaluation import retrieval
from skipwise.evaluation.retrieval import _Reading, is_hit, passkey_accuracy

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

    def __call__(self, input_ids, position_ids, logits_to_keep, **_):
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


def retrieve(text):
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


def test_a_model_that_retrieves_gets_every_trial(tokenizer):
    score = passkey_accuracy(Scripted(tokenizer, retrieve), tokenizer, length=LENGTH, trials=20, seed=0)
    assert score.accuracy == 1.0
    assert all(re.fullmatch(r"\d{5}", answer) for answer in score.answers)
    assert len(set(score.answers)) == 20
    # a token a byte: no sentence is longer than 23 of them, and the answer takes 6
    assert all(LENGTH - 6 - 23 < tokens <= LENGTH - 6 for tokens in score.prompt_tokens)


def test_a_model_that_guesses_gets_none(tokenizer):
    rng = np.random.default_rng(0)
    guess = Scripted(tokenizer, lambda text: f" {rng.integers(10000, 100000)}")
    assert passkey_accuracy(guess, tokenizer, length=LENGTH, trials=30, seed=0).accuracy == 0


def test_a_number_that_goes_on_is_seen_and_missed(tokenizer):
    longer = Scripted(tokenizer, lambda text: retrieve(text).replace("</s>", "7"))
    assert passkey_accuracy(longer, tokenizer, length=LENGTH, trials=5, seed=0).accuracy == 0


def test_a_random_model_finds_nothing(llama, tokenizer):
    assert passkey_accuracy(llama, tokenizer, length=LENGTH, trials=8, seed=0).accuracy == 0


def test_trials_are_drawn_from_seed_length_and_number(tokenizer):
    model = Scripted(tokenizer, retrieve)
    score = passkey_accuracy(model, tokenizer, length=LENGTH, trials=6, seed=3)
    longer = passkey_accuracy(model, tokenizer, length=LENGTH, trials=9, seed=3)
    other = passkey_accuracy(model, tokenizer, length=LENGTH, trials=6, seed=4)
    prompts = [passkey_prompt(tokenizer, LENGTH, np.random.default_rng([3, LENGTH, i])) for i in range(6)]
    assert score.answers == [p.answer for p in prompts] == longer.answers[:6]
    assert score.depths == [p.depth for p in prompts] == longer.depths[:6]
    assert score.answers != other.answers


def test_equals_greedy_decoding_without_cache_or_batch_beyond_the_models_length(llama, tokenizer):
    score = passkey_accuracy(llama, tokenizer, length=LENGTH, trials=8, seed=0)
    for i, answer in enumerate(score.answers):
        prompt = passkey_prompt(tokenizer, LENGTH, np.random.default_rng([0, LENGTH, i]))
        written = greedy(llama, prompt.ids, 7)
        if tokenizer.eos_token_id in written:
            written = written[: written.index(tokenizer.eos_token_id)]
        assert answer == tokenizer.decode(written).strip()
    assert len(set(score.answers)) > 1


def test_what_prompts_share_is_read_once_and_changes_nothing(llama, tokenizer, monkeypatch):
    fed = []
    forward = type(llama).forward

    def spy(self, **arguments):
        fed.append(arguments["input_ids"].shape[1])
        return forward(self, **arguments)

    monkeypatch.setattr(type(llama), "forward", spy)
    shared = passkey_accuracy(llama, tokenizer, length=LENGTH, trials=12, seed=1)
    shared_tokens = sum(fed)
    fed.clear()
    monkeypatch.setattr(_Reading, "_common", lambda self, prompt: 0)
    alone = passkey_accuracy(llama, tokenizer, length=LENGTH, trials=12, seed=1)
    assert shared.answers == alone.answers
    assert sum(shared.prompt_tokens) * 0.4 < shared_tokens < sum(shared.prompt_tokens) * 0.8
    assert sum(fed) >= sum(alone.prompt_tokens)


def test_reading_behind_the_cache_a_few_tokens_at_a_time_changes_nothing(llama, tokenizer, monkeypatch):
    whole = passkey_accuracy(llama, tokenizer, length=LENGTH, trials=6, seed=1).answers
    monkeypatch.setattr(retrieval, "_AT_ONCE", 50)
    assert passkey_accuracy(llama, tokenizer, length=LENGTH, trials=6, seed=1).answers == whole


def test_progress_counts_the_prompts(tokenizer):
    steps = []
    score = passkey_accuracy(
        Scripted(tokenizer, retrieve), tokenizer, length=LENGTH, trials=7, seed=0, on_progress=steps.append
    )
    assert steps == [1] * 7
    assert score.accuracy == 1.0


def test_the_checkpoints_own_generation_settings_do_not_count(llama, tokenizer):
    plain = passkey_accuracy(llama, tokenizer, length=LENGTH, trials=4, seed=0).answers
    own = llama.generation_config
    changed = type(own)(do_sample=True, temperature=9.0, repetition_penalty=5.0, top_k=3, max_length=5)
    llama.generation_config = changed
    try:
        assert passkey_accuracy(llama, tokenizer, length=LENGTH, trials=4, seed=0).answers == plain
        assert llama.generation_config is changed
    finally:
        llama.generation_config = own


def test_a_length_beyond_the_models_own_passes_without_a_warning(llama, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passkey_accuracy(llama, tokenizer, length=LENGTH, trials=2, seed=0)


def test_prefill_computes_the_last_positions_logits_only(llama, tokenizer):
    widths = []
    hook = llama.lm_head.register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    passkey_accuracy(llama, tokenizer, length=LENGTH, trials=3, seed=0)
    hook.remove()
    assert set(widths) <= {1, 7}  # the six ids of an answer in bytes, and one more


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_restored(llama, tokenizer, training):
    llama.train(training)
    passkey_accuracy(llama, tokenizer, length=LENGTH, trials=1, seed=0, precision=torch.bfloat16)
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


def test_no_trials_are_refused(llama, tokenizer):
    with pytest.raises(RecipeError, match="trials 0 must be at least 1"):
        passkey_accuracy(llama, tokenizer, length=LENGTH, trials=0, seed=0)


def test_a_tokenizer_larger_than_the_model_is_explained(tokenizer):
    model = Scripted(tokenizer, retrieve)
    model.get_input_embeddings = lambda: torch.nn.Embedding(50, 1)
    with pytest.raises(DataError, match=r"token \d+ >= vocabulary 50; another model's tokenizer"):
        passkey_accuracy(model, tokenizer, length=LENGTH, trials=2, seed=0)

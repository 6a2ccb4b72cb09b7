"""Logits a slice at a time, and greedy decoding behind a shared cache, against whole forward passes, for every family."""

import numpy as np
import pytest
import torch

from skipwise.evaluation import decoding
from skipwise.evaluation.decoding import Reader, go_on_together
from tests import families

_WRITTEN = 7  # tokens


@torch.no_grad()
def whole_logits(model, ids):
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


def prompts_and_answers(model, tokens: int) -> list[tuple[list[int], list[int]]]:
    """Prompts that share beginnings, and what greedy decoding without a cache writes after them."""
    draw = np.random.default_rng(0)
    spine = draw.integers(1, 97, 50).tolist()
    prompts = [spine[:n] + draw.integers(1, 97, 55 - n).tolist() for n in (3, 20, 41, 50)] + [spine, spine[:30]]
    pairs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(tokens):
            ids = torch.cat([ids, whole_logits(model, ids)[:, -1:].argmax(-1)], 1)
        pairs.append((prompt, ids[0, len(prompt) :].tolist()))
    return pairs


def drafts(written: list[int]) -> list[list[int]]:
    """Drafts of three ids that agree with what is written none, one, two or three ids far."""
    return [[id if i < agreed else (id + 1) % 97 for i, id in enumerate(written[:3])] for agreed in range(4)]


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("at_once", [1024, 4])
def test_decoding_behind_what_was_read_before(name, at_once, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "_AT_ONCE", at_once)
    # With tied embeddings a random model repeats its last token, whatever stands before.
    model = families.model(name, tie_word_embeddings=False).eval()
    reader = Reader(model)
    for number, (prompt, written) in enumerate(prompts_and_answers(model, _WRITTEN)):
        for agreed, draft in enumerate(drafts(written)):
            with torch.inference_mode():
                begun = reader.begin(prompt, draft)
                assert begun == written[: agreed + 1], (number, agreed)
                assert reader.go_on(prompt, begun, lambda ids: len(ids) == _WRITTEN) == written, (number, agreed)


@pytest.mark.parametrize("name", [name for name in families.NAMES if name not in ("gemma2", "gemma3")])
def test_answers_that_are_written_together_are_those_written_alone(name: str) -> None:
    """Prompts of several lengths, answers that end at different places: each whole, whatever stands beside it."""
    model = families.model(name, tie_word_embeddings=False).eval()
    reader = Reader(model)
    assert reader.goes_back
    begun, wanted = [], []
    with torch.inference_mode():
        for number, (prompt, written) in enumerate(prompts_and_answers(model, 9)):
            most = 9 - number
            wanted.append(written[:most])
            first = reader.begin(prompt, drafts(written)[number % 3])
            begun.append(reader.keep(prompt, first[:most], most, lambda ids, most=most: len(ids) == most))
        assert go_on_together(model, begun) == wanted


def test_a_cache_that_cannot_go_back_says_so() -> None:
    assert not Reader(families.model("gemma3")).goes_back


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_long_answer_reads_each_token_once(name: str) -> None:
    """A cache that cannot go back is begun anew where the draft was wrong, and not at each token after it."""
    model = families.model(name).eval()
    fed, prompt = [], list(range(1, 30))
    model.register_forward_pre_hook(lambda _m, _a, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    with torch.inference_mode():
        reader = Reader(model)
        reader.go_on(prompt, reader.begin(prompt, [1, 2, 3]), lambda ids: len(ids) == 12)
    assert fed[2:] == [1] * 10

"""Logits a slice at a time, and greedy decoding behind a shared cache, against whole forward passes, for every family."""

import numpy as np
import pytest
import torch

from skipwise.evaluation import logits as logits_module
from skipwise.evaluation import retrieval
from skipwise.evaluation.logits import logits_at
from tests import families
from tests.tiny import cut_attention

_WRITTEN = 7  # tokens


@torch.no_grad()
def whole_logits(model, ids):
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("at_once", [3 * 97, 2**25])
def test_slices_are_the_whole(name, at_once, monkeypatch) -> None:
    monkeypatch.setitem(logits_module._AT_ONCE, "cpu", at_once)
    model = families.model(name).eval()
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        slices = list(logits_at(model, ids, range(5, 38)))
    torch.testing.assert_close(
        torch.cat([some for some, _ in slices], 1), whole_logits(model, ids)[:, 5:38], rtol=1e-5, atol=1e-5
    )
    assert torch.equal(torch.cat([following for _, following in slices], 1), ids[:, 6:39])
    assert len(slices) == (33 if at_once < 300 else 1)
    assert "forward" not in vars(model.base_model)


def test_the_layers_run_once_however_many_slices(monkeypatch) -> None:
    monkeypatch.setitem(logits_module._AT_ONCE, "cpu", 97)
    model, runs = families.model("llama").eval(), []
    model.base_model.layers[0].register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        assert len(list(logits_at(model, torch.zeros(1, 9, dtype=torch.long), range(0, 8)))) == 8
    assert runs == [1]


def test_what_the_model_does_to_its_inputs_is_done_in_every_slice(monkeypatch) -> None:
    monkeypatch.setitem(logits_module._AT_ONCE, "cpu", 3 * 97)
    whole, cut = families.model("llama").eval(), cut_attention(families.model("llama").eval(), block=8)
    ids = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        of_cut = torch.cat([some for some, _ in logits_at(cut, ids, range(0, 39))], 1)
        monkeypatch.setitem(logits_module._AT_ONCE, "cpu", 2**25)
        [(wanted, _)] = logits_at(cut, ids, range(0, 39))
        assert not torch.allclose(wanted, whole_logits(whole, ids)[:, :39], atol=1e-3)
    torch.testing.assert_close(of_cut, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("at_once", [1024, 4])
def test_decoding_behind_what_was_read_before(name, at_once, monkeypatch) -> None:
    monkeypatch.setattr(retrieval, "_AT_ONCE", at_once)
    # With tied embeddings a random model repeats its last token, whatever stands before.
    model = families.model(name, tie_word_embeddings=False).eval()
    draw = np.random.default_rng(0)
    spine = draw.integers(1, 97, 50).tolist()
    prompts = [spine[:n] + draw.integers(1, 97, 55 - n).tolist() for n in (3, 20, 41, 50)] + [spine, spine[:30]]
    read = retrieval._CachedModel(model)
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        for _ in range(_WRITTEN):
            ids = torch.cat([ids, whole_logits(model, ids)[:, -1:].argmax(-1)], 1)
        written = ids[0, len(prompt) :].tolist()
        for agreed in range(4):  # what is expected agrees so far, and no further
            expected = [id if i < agreed else (id + 1) % 97 for i, id in enumerate(written[:3])]
            with torch.inference_mode():
                assert read.decode(prompt, expected, _WRITTEN, None) == written, (number, agreed)


def test_an_end_stops_decoding() -> None:
    model = families.model("llama").eval()
    prompt = list(range(1, 30))
    with torch.inference_mode():
        written = retrieval._CachedModel(model).decode(prompt, [1, 2, 3], 4, None)
        for place, end in enumerate(written):
            if end in written[:place]:
                continue
            for expected in ([1, 2, 3], written[:3]):
                assert retrieval._CachedModel(model).decode(prompt, expected, 4, end) == written[:place]


def test_decoding_stops_when_it_is_enough() -> None:
    model = families.model("llama").eval()
    read, prompt = retrieval._CachedModel(model), list(range(1, 30))
    with torch.inference_mode():
        written = read.decode(prompt, [], 12, None)
        assert len(written) == 12
        assert read.decode(prompt, [], 12, None, lambda ids: len(ids) == 5) == written[:5]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_long_answer_reads_each_token_once(name: str) -> None:
    """A cache that cannot go back is begun anew where the draft was wrong, and not at each token after it."""
    model = families.model(name).eval()
    fed = []
    model.register_forward_pre_hook(lambda _m, _a, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    with torch.inference_mode():
        retrieval._CachedModel(model).decode(list(range(1, 30)), [1, 2, 3], 12, None)
    assert fed[2:] == [1] * 10

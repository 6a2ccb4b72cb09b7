"""Logits a slice at a time, and greedy decoding behind a shared cache, against whole forward passes, for every family."""

import numpy as np
import pytest
import torch

from skipwise.evaluation import perplexity, retrieval
from skipwise.evaluation.perplexity import inference, logits_at
from skipwise.evaluation.retrieval import Reader, go_on_together
from skipwise.model.forward import stock_model
from skipwise.model.lora import adapt
from skipwise.recipes.schema import Lora
from tests import families

_WRITTEN = 7  # tokens


@torch.no_grad()
def whole_logits(model, ids):
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


@pytest.mark.parametrize("name", [*families.NAMES, "adapted"])
def test_slices_are_the_whole_and_the_layers_run_once(name, monkeypatch) -> None:
    monkeypatch.setitem(perplexity._LOGITS, "cpu", 3 * 97)
    monkeypatch.setattr(perplexity, "_FEWEST_ROWS", 1)
    # peft's wrapper holds the layers and the output layer; only the layers may run once.
    model = adapt(families.model("llama"), Lora(r=2)).eval() if name == "adapted" else families.model(name).eval()
    runs, layers = [], stock_model(model).base_model
    layers.layers[0].register_forward_hook(lambda *_: runs.append(1))
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        slices = list(logits_at(model, ids, range(5, 38)))
    assert (len(slices), runs) == (33, [1])
    assert "forward" not in vars(layers)
    torch.testing.assert_close(
        torch.cat([some for some, _ in slices], 1), whole_logits(model, ids)[:, 5:38], rtol=1e-5, atol=1e-5
    )
    assert torch.equal(torch.cat([following for _, following in slices], 1), ids[:, 6:39])


@torch.no_grad()
def greedy(model, prompt: list[int], tokens: int) -> list[int]:
    """What greedy decoding without a cache writes."""
    ids = torch.tensor([prompt])
    for _ in range(tokens):
        ids = torch.cat([ids, whole_logits(model, ids)[:, -1:].argmax(-1)], 1)
    return ids[0, len(prompt) :].tolist()


def prompts_and_answers(model, tokens: int) -> list[tuple[list[int], list[int]]]:
    """Prompts that share beginnings, with their answers."""
    draw = np.random.default_rng(0)
    spine = draw.integers(1, 97, 50).tolist()
    prompts = [spine[:n] + draw.integers(1, 97, 55 - n).tolist() for n in (3, 20, 41, 50)] + [spine, spine[:30]]
    return [(prompt, greedy(model, prompt, tokens)) for prompt in prompts]


def drafts(written: list[int]) -> list[list[int]]:
    """Drafts of three ids that agree with what is written none, one, two or three ids far."""
    return [[id if i < agreed else (id + 1) % 97 for i, id in enumerate(written[:3])] for agreed in range(4)]


@pytest.mark.parametrize("name", families.NAMES)
def test_decoding_behind_what_was_read_before(name, monkeypatch) -> None:
    monkeypatch.setattr(retrieval, "_AT_ONCE", 4)
    # With tied embeddings a random model repeats its last token, whatever stands before.
    model = families.model(name, tie_word_embeddings=False).eval()
    reader, read, answers = Reader(model), [], prompts_and_answers(model, _WRITTEN)
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: read.append(inputs[0].numel()))
    assert reader.goes_back == (name not in ("gemma2", "gemma3"))
    for number, (prompt, written) in enumerate(answers):
        for agreed, draft in enumerate(drafts(written)):
            read.clear()
            with torch.inference_mode():
                begun = reader.begin(prompt, draft)
                assert begun == written[: agreed + 1 if reader.goes_back else 1], (number, agreed)
                assert reader.go_on(prompt, begun, lambda ids: len(ids) == _WRITTEN) == written, (number, agreed)
            assert sum(read) <= len(prompt) + 3 + _WRITTEN  # no prompt is read twice


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi", "mixtral"])
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


def test_answers_are_written_together_under_autocast() -> None:
    """Then keys are float32, because RoPE makes them so, and values bfloat16."""
    model = families.model("llama").eval()
    reader, prompt = Reader(model), list(range(1, 30))
    with inference(model, "bf16"):
        first = reader.begin(prompt, [])
        begun = [reader.keep(prompt, first, 6, lambda ids, most=most: len(ids) == most) for most in (3, 6)]
        assert [len(ids) for ids in go_on_together(model, begun)] == [3, 6]


def test_frequencies_that_change_with_the_length_change_in_an_answer_too() -> None:
    """A cache of keys under the short factors is of no use beyond the original length."""
    short, long = [1.0] * 8, [2.0, 4.0, 8.0, 16.0] * 2
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "original_max_position_embeddings": 32}
    model, equal = (
        families.model("llama", rope_parameters=rope | {"long_factor": factors}, initializer_range=0.5).eval()
        for factors in (long, short)
    )
    reader = Reader(model)
    assert not reader.goes_back
    assert Reader(equal).goes_back
    prompt = np.random.default_rng(0).integers(1, 97, 29).tolist()
    with torch.no_grad():
        written = reader.go_on(prompt, reader.begin(prompt, [1, 2]), lambda ids: len(ids) == 8)
    assert written == greedy(model, prompt, 8)

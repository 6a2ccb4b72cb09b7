"""Logits a slice at a time, and greedy decoding behind a shared cache, against whole forward passes, for every family."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from benchmarks.cut_attention import in_blocks
from skipwise.evaluation import perplexity, retrieval
from skipwise.evaluation.perplexity import inference, logits_at
from skipwise.evaluation.retrieval import Reader, go_on_together
from skipwise.model.lora import adapt
from skipwise.recipes.schema import Lora
from tests import families

_WRITTEN = 7  # tokens


@torch.no_grad()
def whole_logits(model, ids):
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("at_once", [3 * 97, 2**25])
def test_slices_are_the_whole(name, at_once, monkeypatch) -> None:
    monkeypatch.setitem(perplexity._LOGITS, "cpu", at_once)
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
    monkeypatch.setitem(perplexity._LOGITS, "cpu", 97)
    model, runs = families.model("llama").eval(), []
    model.base_model.layers[0].register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        assert len(list(logits_at(model, torch.zeros(1, 9, dtype=torch.long), range(0, 8)))) == 8
    assert runs == [1]


def test_slices_are_the_whole_while_low_rank_additions_are_trained(monkeypatch) -> None:
    """peft's wrapper holds the layers and the output layer; only the layers may run once."""
    monkeypatch.setitem(perplexity._LOGITS, "cpu", 5 * 97)
    model = adapt(families.model("llama"), Lora(rank=2)).eval()
    ids = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = torch.cat([some for some, _ in logits_at(model, ids, range(0, 39))], 1)
    torch.testing.assert_close(whole, whole_logits(model, ids)[:, :39], rtol=1e-5, atol=1e-5)


def test_what_the_model_does_to_its_inputs_is_done_in_every_slice(monkeypatch) -> None:
    monkeypatch.setitem(perplexity._LOGITS, "cpu", 3 * 97)
    whole, cut = families.model("llama").eval(), in_blocks(families.model("llama").eval(), block=8)
    ids = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        of_cut = torch.cat([some for some, _ in logits_at(cut, ids, range(0, 39))], 1)
        monkeypatch.setitem(perplexity._LOGITS, "cpu", 2**25)
        [(wanted, _)] = logits_at(cut, ids, range(0, 39))
        assert not torch.allclose(wanted, whole_logits(whole, ids)[:, :39], atol=1e-3)
    torch.testing.assert_close(of_cut, wanted, rtol=1e-5, atol=1e-5)


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
    monkeypatch.setattr(retrieval, "_AT_ONCE", at_once)
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
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 4.0, 8.0, 16.0],
        "original_max_position_embeddings": 32,
    }
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = Phi3ForCausalLM(
        Phi3Config(
            vocab_size=97, **sizes, rope_parameters=rope, max_position_embeddings=128, original_max_position_embeddings=32,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.5,
        )
    ).eval()  # fmt: skip
    reader = Reader(model)
    assert not reader.goes_back
    equal = Phi3Config(**sizes, rope_parameters=rope | {"long_factor": rope["short_factor"]}, pad_token_id=0)
    assert Reader(SimpleNamespace(config=equal)).goes_back
    prompt = np.random.default_rng(0).integers(1, 97, 29).tolist()
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat([ids, whole_logits(model, ids)[:, -1:].argmax(-1)], 1)
        written = reader.go_on(prompt, reader.begin(prompt, [1, 2]), lambda ids: len(ids) == 8)
    assert written == ids[0, 29:].tolist()


def test_a_cache_that_cannot_go_back_says_so() -> None:
    assert not Reader(families.model("gemma3")).goes_back


@torch.no_grad()
def test_a_cache_of_states_cannot_go_back() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_value_heads": 4}
    states = {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 0}
    layers = ["linear_attention", "full_attention"]
    model = Qwen3NextForCausalLM(
        Qwen3NextConfig(**sizes, **heads, **states, layer_types=layers, mlp_only_layers=[0, 1])
    ).eval()
    reader = Reader(model)
    assert not reader.goes_back
    for prompt in (list(range(1, 30)), list(range(1, 20))):
        ids = torch.tensor([prompt])
        for _ in range(3):
            ids = torch.cat([ids, whole_logits(model, ids)[:, -1:].argmax(-1)], 1)
        written = reader.go_on(prompt, reader.begin(prompt, [1]), lambda ids: len(ids) == 3)
        assert written == ids[0, len(prompt) :].tolist()


def test_keys_are_not_copied_while_an_answer_is_written(monkeypatch) -> None:
    model, seen = families.model("llama").eval(), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query, keys, *rest, **options):
        seen.append(keys.data_ptr())
        return attend(query, keys, *rest, **options)

    prompt = list(range(1, 30))
    with inference(model, "float32"):
        reader = Reader(model)
        first = reader.begin(prompt, [])
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
        alone = reader.go_on(prompt, first, lambda ids: len(ids) == 30)
        assert len(set(seen)) == model.config.num_hidden_layers
        seen.clear()
        begun = [reader.keep(prompt, first, 30, lambda ids: len(ids) == 30) for _ in range(2)]
        assert go_on_together(model, begun) == [alone, alone]
        assert len(set(seen)) == model.config.num_hidden_layers


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

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from skipwise.errors import ModelError
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, round_weights, save_extended
from tests.tiny import byte_tokenizer, checkpoint


@pytest.fixture
def extended(tmp_path):
    folder = checkpoint(tmp_path / "base", window=64)
    extension = plan_extension(load_config(str(folder)), interpolation="yarn")
    return load_model(str(folder), extension), extension


def test_a_checkpoint_that_reloads_otherwise_is_refused(extended, tmp_path) -> None:
    model, extension = extended
    positions = []
    model.register_forward_pre_hook(lambda _, args, given: positions.append(given["position_ids"]), with_kwargs=True)
    hook = model.lm_head.register_forward_hook(lambda module, args, logits: logits + 1e-3)
    with pytest.raises(ModelError, match=r"0\.001"):
        save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert positions[0].max() == 511
    hook.remove()
    hook = model.lm_head.register_forward_hook(lambda module, args, logits: logits * float("nan"))
    with pytest.raises(ModelError, match="nan"):
        save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    hook.remove()
    (tmp_path / "model.partial" / "stale.bin").touch()
    model.train()
    save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    assert model.training
    assert not (tmp_path / "model.partial").exists()
    assert not (tmp_path / "model" / "stale.bin").exists()


def test_the_stock_generate_reads_a_prompt_of_the_target(extended, tmp_path) -> None:
    model, extension = extended
    model.generation_config.max_length = 64  # as checkpoints have it that stop at their window
    save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert stock.generate(torch.full((1, 500), 7), do_sample=False).shape[1] > 500


def test_settings_of_sampling_that_greedy_decoding_ignores_do_not_stop_saving(tmp_path) -> None:
    """transformers reads such a file, and refuses to write it."""
    base = checkpoint(tmp_path / "base", window=64)
    settings = {"temperature": 0.9, "top_p": 0.6, "max_length": 64, "eos_token_id": 1}
    (base / "generation_config.json").write_text(json.dumps(settings))
    extension = plan_extension(load_config(base), target_length=512, interpolation="linear")
    model = load_model(base, extension)
    model.save_pretrained(tmp_path / "step-1")  # as a checkpoint of training
    save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    saved = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert saved.items() >= (settings | {"max_length": 512}).items()  # as other programs read them


def test_rounded_weights_are_saved_in_their_type_and_the_frequencies_stay_float32(extended, tmp_path) -> None:
    model, extension = extended
    trained = {name: weight.clone() for name, weight in model.state_dict().items()}
    round_weights(model, torch.bfloat16)
    save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(weight, trained[name].bfloat16()) for name, weight in saved.items())
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert stock.dtype == torch.bfloat16
    assert torch.equal(stock.model.rotary_emb.inv_freq, load_model(str(tmp_path / "model")).model.rotary_emb.inv_freq)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32

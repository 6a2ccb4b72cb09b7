import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from skipwise.errors import ModelError, RecipeError, RunError
from skipwise.model import lora
from skipwise.model.config import Origin, load_config, weights_fingerprint, write_seal
from skipwise.model.extension import Extension, plan_extension
from skipwise.model.loading import load_model, save_extended
from skipwise.recipes.schema import Data, Lora
from skipwise.report.numbers import ReportData
from skipwise.report.sharing import write_card
from tests.tiny import byte_tokenizer, checkpoint

TARGET = 256
ALL = Lora(r=2, modules_to_save=["embeddings", "norms"])


def extension(name: str) -> Extension:
    return plan_extension(load_config(name), target_length=TARGET, interpolation="yarn")


def adapted(name: str, rules: Lora, **options: object) -> PeftModel:
    """Extended and adapted, with every trained weight drawn at random: peft begins with B = 0."""
    model = lora.adapt(load_model(name, extension(name), **options), rules)  # type: ignore[arg-type]
    torch.manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.05 * torch.randn_like(weight)
    return model.eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    """At the last positions of the target."""
    ids = torch.arange(48)[None] * 5 % 257
    positions = torch.arange(TARGET - 48, TARGET)[None]
    low = torch.bfloat16 in {weight.dtype for weight in model.parameters()}
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        return model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids)).logits.float()


@pytest.mark.parametrize(("rules", "tied"), [(Lora(r=2), False), (ALL, True)])
def test_merged_gives_the_logits_of_the_adapted_model(tmp_path: Path, rules: Lora, tied: bool) -> None:
    name = str(checkpoint(tmp_path / "base", tie_word_embeddings=tied))
    model = adapted(name, rules)
    wanted = logits(model)
    stock = lora.merged(model, load_model(name, extension(name))).eval()
    assert type(stock).__name__ == "LlamaForCausalLM"
    torch.testing.assert_close(logits(stock), wanted, rtol=0, atol=2e-5)
    save_extended(stock, byte_tokenizer(), extension(name), tmp_path / "model")
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(logits(alone), wanted, rtol=0, atol=2e-5)


def test_all_but_the_output_layer_by_default_and_what_is_trained_is_float32(tmp_path: Path) -> None:
    name = str(checkpoint(tmp_path / "base"))
    model = lora.adapt(load_model(name, extension(name), dtype=torch.bfloat16), ALL)
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    assert {weight.dtype for key, weight in model.named_parameters() if key not in trained} == {torch.bfloat16}
    kinds = {part for key in trained for part in key.split(".") if part.endswith(("proj", "norm", "tokens", "head"))}
    linear = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert kinds == linear | {"input_layernorm", "post_attention_layernorm", "norm", "embed_tokens"}
    assert lora.trained_share(load_config(name), ALL)[0] == sum(weight.numel() for weight in trained.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_comes_back_on_its_base_and_merged(tmp_path: Path, dtype: torch.dtype) -> None:
    name = str(checkpoint(tmp_path / "base"))
    model = adapted(name, ALL, dtype=dtype)
    save_extended(model, byte_tokenizer(), extension(name), tmp_path / "model", adapter_of=name)
    assert load_config(str(tmp_path / "model")).dtype == load_config(name).dtype == torch.float32
    on_base = load_model(str(tmp_path / "model"), dtype=dtype, merge=False).eval()
    torch.testing.assert_close(logits(on_base), logits(model), rtol=0, atol=1e-6)
    merged = load_model(str(tmp_path / "model")).eval()
    assert isinstance(merged, PreTrainedModel)
    tolerance = 2e-5 if dtype == torch.float32 else 0.05 * logits(model).abs().max().item()
    torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=tolerance)


def test_an_adapter_is_not_put_on_an_unscaled_base_unnoticed(tmp_path: Path) -> None:
    name, folder = str(checkpoint(tmp_path / "base")), tmp_path / "model"
    save_extended(adapted(name, Lora(r=2)), byte_tokenizer(), extension(name), folder, adapter_of=name)
    for loader in (AutoModelForCausalLM, AutoPeftModelForCausalLM):
        with pytest.raises(OSError, match=r"."):
            loader.from_pretrained(folder)
    with pytest.warns(UserWarning, match="rope_parameters"):
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(name), folder)


def test_the_cards_lines_load_an_adapter_without_skipwise(tmp_path: Path, monkeypatch) -> None:
    name, folder = str(checkpoint(tmp_path / "base")), tmp_path / "model"
    model = adapted(name, ALL)
    save_extended(model, byte_tokenizer(), extension(name), folder, adapter_of=name)
    write_card(folder, ReportData([]), "tiny", {})
    card = (folder / "README.md").read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "skipwise", None)
    loaded: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace("path/to/this/folder", str(folder)), loaded)
    torch.testing.assert_close(logits(loaded["model"].eval()), logits(model), rtol=0, atol=1e-5)


def test_targets_that_match_no_layer_and_missing_packages_are_named(tmp_path: Path, monkeypatch) -> None:
    config = load_config(checkpoint(tmp_path / "base"))
    with pytest.raises(RecipeError, match=r"o, nope.*q_proj"):  # peft would train q_proj alone
        lora.trained_share(config, Lora(target_modules=["q_proj", "o", "nope"]))
    for absent, rules in (("peft", Lora()), ("bitsandbytes", Lora(load_in_4bit=True))):
        monkeypatch.setattr(lora, "find_spec", lambda name, absent=absent: None if name == absent else object())
        with pytest.raises(RecipeError, match=absent):
            lora.require_installed(rules)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter without a manifest, in ``model`` next to its base."""
    name = str(checkpoint(tmp_path / "base"))
    save_extended(adapted(name, ALL), byte_tokenizer(), extension(name), tmp_path / "model", adapter_of=name)
    return tmp_path / "model"


def test_an_adapter_is_put_on_the_base_of_its_training(adapter: Path) -> None:
    base = adapter.parent / "base"
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base))).write(adapter)
    load_model(adapter)
    before = weights_fingerprint(str(adapter))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    assert weights_fingerprint(str(adapter)) != before
    with pytest.raises(ModelError, match="base"):
        load_model(adapter)


def test_a_damaged_base_with_a_manifest_is_refused_by_name(adapter: Path) -> None:
    """The bytes are checked where the adapter is loaded, because its fingerprint is taken from the manifest."""
    base = adapter.parent / "base"
    write_seal(base, {})
    load_model(adapter)
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(RunError, match=r"base/model\.safetensors"):
        load_model(adapter)


@pytest.mark.parametrize("text", ["{bad", '{"peft_type": "LORA"}', "R"])
def test_settings_that_are_damaged_or_do_not_fit_name_the_adapter(adapter: Path, text: str) -> None:
    settings = adapter / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"r": 4}) if text == "R" else text)
    with pytest.raises(ModelError, match="model"):
        load_model(adapter)

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from skipwise.errors import ModelError, RecipeError, RunError
from skipwise.model import lora
from skipwise.model.config import load_config
from skipwise.model.extension import Extension, plan_extension
from skipwise.model.loading import load_model, save_extended
from skipwise.model.origin import Origin, weights_fingerprint, write_seal
from skipwise.recipes.schema import Data, Lora
from skipwise.report.model_card import write_card
from tests.tiny import byte_tokenizer, checkpoint

TARGET = 256
ALL = Lora(rank=2, also=["embeddings", "norms"])


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


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rules", [Lora(rank=2), ALL])
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
    frozen = {weight.dtype for key, weight in model.named_parameters() if key not in trained}
    assert frozen == {torch.bfloat16}
    kinds = {part for key in trained for part in key.split(".") if part.endswith(("proj", "norm", "tokens"))}
    linear = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    norms = {"input_layernorm", "post_attention_layernorm", "norm"}
    assert kinds == linear | norms | {"embed_tokens"}
    assert not any("lm_head" in key for key in trained)
    counts = lora.trained_share(load_config(name), ALL)
    assert counts[0] == sum(weight.numel() for weight in trained.values())


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
    model = adapted(name, Lora(rank=2))
    save_extended(model, byte_tokenizer(), extension(name), folder, adapter_of=name)
    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(OSError, match="config"):
        AutoPeftModelForCausalLM.from_pretrained(folder)
    with pytest.warns(UserWarning, match="rope_parameters"):
        unscaled = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(name), folder)
    assert (logits(unscaled.eval()) - logits(model)).abs().max() > 1e-2


def test_the_cards_lines_load_an_adapter_without_skipwise(tmp_path: Path) -> None:
    name, folder = str(checkpoint(tmp_path / "base")), tmp_path / "model"
    model = adapted(name, ALL)
    save_extended(model, byte_tokenizer(), extension(name), folder, adapter_of=name)
    write_card(folder, title="tiny", headline="tiny", facts={})
    card = (folder / "README.md").read_text(encoding="utf-8")
    lines = card.split("```python\n")[1].split("```")[0].replace("path/to/this/folder", str(folder))
    torch.save(logits(model), tmp_path / "wanted.pt")
    program = f"""
import sys
sys.modules["skipwise"] = None
{lines}
import torch
wanted = torch.load({str(tmp_path / "wanted.pt")!r})
ids = torch.arange(48)[None] * 5 % 257
with torch.no_grad():
    found = model.eval()(input_ids=ids, position_ids=torch.arange({TARGET - 48}, {TARGET})[None],
        attention_mask=torch.ones_like(ids)).logits
print((found - wanted).abs().max().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1e-5


def test_targets_that_match_no_layer_are_named(tmp_path: Path) -> None:
    config = load_config(checkpoint(tmp_path / "base"))
    with pytest.raises(RecipeError, match=r"lora\.targets.*: o, nope.*q_proj"):  # peft would train q_proj alone
        lora.trained_share(config, Lora(targets=["q_proj", "o", "nope"]))


@pytest.mark.parametrize(("absent", "rules"), [("peft", Lora()), ("bitsandbytes", Lora(base="4bit"))])
def test_a_missing_package_is_named(absent: str, rules: Lora, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(RecipeError, match=absent):
        lora.require_installed(rules)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter without a manifest, in ``model`` next to its base."""
    name = str(checkpoint(tmp_path / "base"))
    save_extended(adapted(name, ALL), byte_tokenizer(), extension(name), tmp_path / "model", adapter_of=name)
    return tmp_path / "model"


@pytest.mark.parametrize("recorded", [True, False])
def test_an_adapter_is_put_on_the_base_of_its_training(adapter: Path, recorded: bool) -> None:
    base = adapter.parent / "base"
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base)) if recorded else None).write(adapter)
    load_model(adapter)
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    if recorded:
        with pytest.raises(ModelError, match="base"):
            load_model(adapter)
    else:
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


@pytest.mark.parametrize("text", ["{bad", "[]", '{"peft_type": "LORA"}', "R", "TARGETS"])
def test_settings_that_are_damaged_or_do_not_fit_name_the_adapter(adapter: Path, text: str) -> None:
    settings = adapter / "adapter_config.json"
    changes = {"R": {"r": 4}, "TARGETS": {"target_modules": ["nope"]}}.get(text)
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes) if changes else text)
    with pytest.raises(ModelError, match="model"):
        load_model(adapter)


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_a_gpu_has_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate refuses 4-bit weights on "cuda" in a process with GPU "cuda:3"."""
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    for device, placed in (("cuda", "cuda:3"), (torch.device("cuda:1"), "cuda:1"), ("cpu", "cpu")):
        assert lora.four_bit_settings(torch.bfloat16, device)["device_map"] == {"": torch.device(placed)}

import json
import subprocess
import sys
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
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.loading import load_model
from skipwise.model.origin import Origin
from skipwise.model.saving import save_extended
from skipwise.model.sealed import write_seal
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


@pytest.mark.parametrize("alpha", [None, 8.0])
def test_an_addition_is_alpha_over_rank_times_b_a(tmp_path: Path, alpha: float | None) -> None:
    name = str(checkpoint(tmp_path / "base"))
    rules = Lora(rank=2, alpha=alpha, targets=["q_proj", "up_proj"])
    model = adapted(name, rules)
    by_hand = load_model(name, extension(name)).eval()
    before = logits(by_hand)
    weights, additions = dict(by_hand.named_modules()), dict(model.base_model.model.named_modules())
    changed = [key for key, part in additions.items() if hasattr(part, "lora_A")]
    assert len(changed) == 4  # two a layer, two layers
    for key in changed:
        a, b = additions[key].lora_A.default.weight, additions[key].lora_B.default.weight
        weights[key].weight.data += (alpha or 4.0) / 2 * (b @ a)
    torch.testing.assert_close(logits(model), logits(by_hand), rtol=0, atol=2e-5)
    assert (logits(model) - before).abs().max() > 1e-2


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
    # The base's own, whatever it had in training: a loader that is told none takes it.
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
    with pytest.raises(OSError, match=r"config\.json of this adapter"):
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


def test_targets_that_match_nothing_are_named_with_what_there_is(tmp_path: Path) -> None:
    name = str(checkpoint(tmp_path / "base"))
    rules = Lora(targets=["query_key_value"])
    wanted = r"lora\.targets: 'query_key_value' is no layer.*called down_proj, gate_proj, .*q_proj"
    with pytest.raises(RecipeError, match=wanted):
        lora.trained_share(load_config(name), rules)
    with pytest.raises(RecipeError, match=r"'o', 'nope' are no layer"):  # the others would be trained alone
        lora.trained_share(load_config(name), Lora(targets=["q_proj", "o", "nope"]))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_addition_to_one_end_of_a_tied_model_is_refused(tmp_path: Path, target) -> None:
    tied = load_config(str(checkpoint(tmp_path / "tied", tie_word_embeddings=True)))
    rules = Lora(targets=["q_proj", target])
    with pytest.raises(RecipeError, match=f"{target} shares its weight with the other embedding .*also=.embeddings."):
        lora.trained_share(tied, rules)
    untied = load_config(str(checkpoint(tmp_path / "untied", tie_word_embeddings=False)))
    assert lora.trained_share(untied, rules)[0] > 0


def test_an_embedding_trained_whole_gets_no_addition_besides(tmp_path: Path) -> None:
    untied = load_config(str(checkpoint(tmp_path / "untied", tie_word_embeddings=False)))
    with pytest.raises(RecipeError, match=r"all weights of model.embed_tokens are trained by lora.also"):
        lora.trained_share(untied, Lora(targets=["embed_tokens", "q_proj"], also=["embeddings"]))


@pytest.mark.parametrize(
    ("absent", "rules", "message"),
    [
        ("peft", Lora(), r"lora needs the peft package: pip install 'peft>=0.18', or leave lora out"),
        (
            "bitsandbytes",
            Lora(base="4bit"),
            r"lora\.base = '4bit' needs the bitsandbytes package: pip install 'bitsandbytes>=",
        ),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    absent: str, rules: Lora, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(RecipeError, match=message):
        lora.require_installed(rules)


def test_another_programs_adapter_is_refused(tmp_path: Path) -> None:
    name, folder = str(checkpoint(tmp_path / "base")), tmp_path / "model"
    save_extended(adapted(name, Lora(rank=2)), byte_tokenizer(), extension(name), folder, adapter_of=name)
    described = json.loads((folder / "adapter_config.json").read_text())
    del described["skipwise_base"]
    (folder / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match=r"is an adapter of .* merge it into that model first"):
        load_model(str(folder))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter without a seal, in ``model`` beside its base."""
    name = str(checkpoint(tmp_path / "base"))
    save_extended(adapted(name, ALL), byte_tokenizer(), extension(name), tmp_path / "model", adapter_of=name)
    return tmp_path / "model"


@pytest.fixture
def settings(adapter: Path) -> Path:
    return adapter / "adapter_config.json"


def with_settings(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("recorded", [True, False])
def test_an_adapter_is_put_on_the_base_that_it_was_trained_on(adapter: Path, recorded: bool) -> None:
    base = adapter.parent / "base"
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base)) if recorded else None).write(adapter)
    load_model(str(adapter))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    if not recorded:  # as beside an adapter that Skipwise did not train
        load_model(str(adapter))
        return
    wanted = r"base \S+/base of adapter \S+/model is not the one that it was trained on \(its files changed\); restore"
    with pytest.raises(ModelError, match=wanted):
        load_model(str(adapter))


def test_a_damaged_base_with_a_manifest_is_refused_by_name(adapter: Path) -> None:
    """Its fingerprint is taken from the manifest, so the bytes are checked where the adapter is loaded."""
    base = adapter.parent / "base"
    write_seal(base, {})
    load_model(str(adapter))
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(RunError, match=r"base/model\.safetensors"):
        load_model(str(adapter))


def test_a_base_on_the_hub_is_compared_by_its_commit(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings(adapter / "adapter_config.json", skipwise_base="someone/base")
    config = load_config(str(adapter))
    config._commit_hash = "new"
    monkeypatch.setattr("skipwise.model.fingerprint.load_config", lambda name: config)
    Origin("someone/base", 32, Data(), base_fingerprint="old").write(adapter)
    with pytest.raises(ModelError, match=r"the base someone/base of adapter \S+ is not the one"):
        load_model(str(adapter))


LACKED = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"


@pytest.mark.parametrize(
    ("lost", "new", "said"),
    [
        (LACKED, None, r"it lacks 1 of its weights \(\S+layers\.1\.mlp\.up_proj\.lora_B\S+, \.\.\.\)"),
        (None, "another.weight", r"1 of its weights are of no layer \(another\.weight, \.\.\.\)"),
        ("base_model.model.model.norm.weight", None, r"KeyError: '?base_model\.model\.model\.norm\.weight"),
        (LACKED, LACKED, "RuntimeError: .*size mismatch"),
    ],
)
def test_an_adapter_of_other_weights_than_its_settings_ask_for_is_refused(
    adapter: Path, lost: str | None, new: str | None, said: str
) -> None:
    weights = load_file(adapter / "adapter_model.safetensors")
    if lost:
        del weights[lost]
    if new:
        weights[new] = torch.zeros(3, 3)
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"adapter \S+/model cannot be put on its base: {said}.*; fetch the adapter"):
        load_model(str(adapter))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{bad", "cannot be read"),
        (b"", "cannot be read"),
        (b"[]", r"cannot be read \(it holds a list"),
        (b"null", r"cannot be read \(it holds a NoneType"),
        (b"\xff{}", "cannot be read"),
        (b'{"skipwise_base": 5}', "has skipwise_base 5, which names no model"),
        (b'{"skipwise_base": " "}', "has skipwise_base ' ', which names no model"),
        (b'{"skipwise_base": "BASE"}', "has no settings that peft can read"),
    ],
)
def test_damaged_settings_of_an_adapter_name_their_file(settings: Path, text: bytes, said: str) -> None:
    settings.write_bytes(text.replace(b"BASE", str(settings.parent.with_name("base")).encode()))
    with pytest.raises(ModelError, match=rf"model/adapter_config\.json {said}.*; fetch the adapter again"):
        load_model(str(settings.parent))


def test_an_adapter_is_no_base(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settings.parent
    monkeypatch.setenv("HOME", str(folder.parent))
    for base in (str(folder), "~/model"):
        with_settings(settings, skipwise_base=base)
        for read in (load_model, weights_fingerprint):
            with pytest.raises(ModelError, match=rf"skipwise_base '{base}', which is an adapter, and .* a whole model"):
                read(str(folder))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"r": 0}, "ValueError: .*should be a positive integer"),
        ({"r": 4}, "RuntimeError: .*size mismatch"),
        ({"lora_alpha": "x"}, "TypeError: "),
        ({"target_modules": ["nope"]}, "(NoMatchingPeftModule|Value)Error: .*[Tt]arget.modules"),
    ],
)
def test_settings_that_do_not_fit_are_explained(settings: Path, changes: dict[str, object], said: str) -> None:
    with_settings(settings, **changes)
    with pytest.raises(ModelError, match=rf"adapter \S+/model cannot be put on its base: {said}.*; fetch the adapter"):
        load_model(str(settings.parent))

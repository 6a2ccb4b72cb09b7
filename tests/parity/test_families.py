"""Every family whose stock class takes ``rope_parameters`` is extended by no line that names it.

Frequencies of whole models against the independent formulas, logits of saved against loaded models beyond the
original window, and the layers that slide left as they were.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM

from skipwise.method.interpolation import Rope
from skipwise.model.config import load_config, rope_of
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, save_extended
from tests import families
from tests.parity.test_interpolation import oracle
from tests.tiny import byte_tokenizer

FACTOR = 8


def rotary(model: torch.nn.Module, prefix: str) -> tuple[np.ndarray, float]:
    (module,) = [part for part in model.modules() if hasattr(part, f"{prefix}inv_freq")]
    scaling = getattr(module, f"{prefix}attention_scaling")
    return getattr(module, f"{prefix}inv_freq").double().numpy(), float(scaling)


CASES = [(family, "yarn") for family in families.NAMES] + [
    (family, interpolation)
    for family in ("qwen2", "phi", "gemma3")
    for interpolation in ("linear", "ntk", "yarn-revised")
]


@pytest.mark.parametrize(("family", "interpolation"), CASES)
def test_frequencies_are_the_formulas_and_survive_a_stock_reload(
    family: str, interpolation: str, tmp_path: Path
) -> None:
    if family == "gemma3" and interpolation == "yarn-revised" and Version(transformers.__version__) < Version("5.21"):
        pytest.skip("refused with this transformers")
    families.model(family).save_pretrained(tmp_path / "base")
    config = load_config(str(tmp_path / "base"))
    extension = plan_extension(
        config, target_length=FACTOR * families.WINDOW, original_length=families.WINDOW, interpolation=interpolation
    )
    model = load_model(str(tmp_path / "base"), extension).eval()
    assert model.config.model_type == families.config(family).model_type
    theta = rope_of(families.config(family))["rope_theta"]
    dim = families.ROTATED.get(family, 16)
    expected, attention = oracle(interpolation, Rope(theta, dim, families.WINDOW), FACTOR)
    prefix = "full_attention_" if family == "gemma3" else ""
    found, scaling = rotary(model, prefix)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert scaling == pytest.approx(attention, rel=1e-6)
    if family == "gemma3":
        own, one = rotary(model, "sliding_attention_")
        np.testing.assert_allclose(own, 1e4 ** (-np.arange(0, 16, 2) / 16), rtol=1e-6)
        assert one == 1.0
    save_extended(model, byte_tokenizer(), extension, tmp_path / "model")
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    np.testing.assert_allclose(rotary(alone, prefix)[0], expected, rtol=1e-6)
    ids = torch.arange(40)[None] * 7 % 97
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    far = torch.arange(40)[None] + FACTOR * families.WINDOW - 40
    with torch.no_grad():
        ours, theirs = (m(**batch, position_ids=far).logits for m in (model, alone))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)  # sliding layers of ours read in blocks
    assert alone.config.max_position_embeddings == FACTOR * families.WINDOW

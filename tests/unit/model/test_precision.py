from io import StringIO

import pytest
import torch

from skipwise.model import lora, precision
from skipwise.model.precision import choose_precision, weights_precision
from skipwise.recipes.schema import Lora
from tests.tiny import llama


@pytest.mark.parametrize(
    ("maker", "flags", "expected"),
    [
        ("GenuineIntel", "avx512f", "float32"),
        ("GenuineIntel", "avx512f avx512_bf16", "float32"),
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16", "bf16"),
        ("AuthenticAMD", "avx512f avx512_bf16", "bf16"),
        ("AuthenticAMD", "avx2", "float32"),
    ],
)
def test_precision_by_the_cpu(monkeypatch, maker, flags, expected):
    core = f"processor\t: 0\nvendor_id\t: {maker}\nflags\t\t: fpu {flags}\nbugs\t\t: amx_bf16\n"
    described = f"{core}\n{core.replace(flags, 'amx_bf16')}\n"
    monkeypatch.setattr(precision, "open", lambda *_, **__: StringIO(described), raising=False)
    assert choose_precision("auto", "cpu") == expected
    assert choose_precision("float32", "cpu") == "float32"
    assert choose_precision("bf16", "cpu") == "bf16"


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp16")])
def test_precision_by_the_gpu(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose_precision("auto", "cuda") == expected
    assert choose_precision("fp16", "cuda") == "fp16"
    assert choose_precision("auto", "mps") == "float32"


def test_the_precision_of_an_adapted_model_is_that_of_its_frozen_weights():
    model = llama().to(torch.bfloat16)
    assert weights_precision(llama()) == "float32"
    assert weights_precision(model) == "bf16"
    assert weights_precision(lora.adapt(model, Lora())) == "bf16"

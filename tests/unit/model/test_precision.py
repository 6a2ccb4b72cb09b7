"""The precision that a machine is fast at, and the autocast that a name stands for."""

import warnings
from io import StringIO

import pytest
import torch

from skipwise.errors import RecipeError
from skipwise.model import blocked_attention, lora, precision
from skipwise.model.precision import autocast, choose_precision, random_state_kept, weights_precision
from skipwise.recipes.schema import Lora
from tests.tiny import llama


@pytest.mark.parametrize(
    ("maker", "flags", "expected", "blocked"),
    [
        ("GenuineIntel", "avx512f", "float32", False),
        ("GenuineIntel", "avx512f avx512_bf16", "float32", False),
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16", "bf16", False),
        ("AuthenticAMD", "avx512f avx512_bf16", "bf16", True),
        ("AuthenticAMD", "avx2", "float32", False),
    ],
)
def test_precision_and_attention_by_the_cpu(monkeypatch, maker, flags, expected, blocked):
    core = f"processor\t: 0\nvendor_id\t: {maker}\nflags\t\t: fpu {flags}\nbugs\t\t: amx_bf16\n"
    described = f"{core}\n{core.replace(flags, 'amx_bf16')}\n"
    monkeypatch.setattr(precision, "open", lambda *_, **__: StringIO(described), raising=False)
    assert choose_precision("auto", "cpu") == expected
    assert choose_precision("float32", "cpu") == "float32"
    assert choose_precision("bf16", "cpu") == "bf16"
    assert blocked_attention.is_faster.__wrapped__() is blocked


def test_a_cpu_of_which_nothing_is_known_computes_in_float32(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(precision, "open", missing, raising=False)
    assert choose_precision("auto", "cpu") == "float32"


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp16")])
def test_precision_by_the_gpu(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose_precision("auto", "cuda") == expected
    assert choose_precision("fp16", "cuda") == "fp16"
    assert choose_precision("auto", "mps") == "float32"


def test_fp16_needs_a_gpu():
    with pytest.raises(RecipeError, match="'fp16' needs a GPU"):
        choose_precision("fp16", "cpu")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32)])
def test_a_forward_pass_computes_in_the_precision_named(name, dtype):
    with autocast("cpu", name):
        assert torch.nn.Linear(2, 2)(torch.ones(2)).dtype == dtype


def test_an_unknown_precision_is_refused():
    with pytest.raises(RecipeError, match=r"precision 'bf6' is unknown \(did you mean bf16\?\)"):
        autocast("cpu", "bf6")


def test_the_precision_of_an_adapted_model_is_that_of_its_frozen_weights():
    model = llama().to(torch.bfloat16)
    assert weights_precision(llama()) == "float32"
    assert weights_precision(model) == "bf16"
    assert weights_precision(lora.adapt(model, Lora())) == "bf16"


def test_the_random_state_is_kept_without_a_look_at_every_gpu(monkeypatch) -> None:
    def look(device: object = None) -> None:
        raise AssertionError("this GPU is not used")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_rng_state", look)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with random_state_kept(torch.device("cpu")):
            drawn = torch.rand(1)
    assert torch.rand(1) == drawn


def test_float32_is_float32_inside_another_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16), autocast("cpu", "float32"):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32

"""bitsandbytes' warnings on import are shown to runs that ask for 4 bits, and to no others."""

import logging
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from skipwise.model import four_bit

needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
# Stands for what bitsandbytes logs on import on some machines, so that the test does not depend on this one.
WARN = "import logging; logging.getLogger('bitsandbytes.backends.cpu.ops').warning('no kernel')"


def errors_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


@needs_bitsandbytes
def test_asking_for_4_bits_shows_them_and_importing_the_package_does_not() -> None:
    modules = "skipwise.training.trainer, skipwise.model.loading, skipwise.model.lora"
    program = f"from skipwise import PoseCollator; {WARN}; import sys, torch, {modules}, peft; {WARN}; "
    program += "print('imported', file=sys.stderr); "
    program += "from skipwise.model.four_bit import quantization_settings; "
    before, after = errors_of(program + "quantization_settings(torch.bfloat16, 'cpu')").split("imported")
    assert "kernel" not in before
    assert "bitsandbytes" not in before
    assert after.count("no kernel") == 2


def test_other_loggers_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    four_bit.hold_warnings()
    logging.getLogger("bitsandbytes.optim").warning("shown")
    assert "shown" in caplog.text


@needs_bitsandbytes
def test_a_gpu_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate refuses 4-bit weights on "cuda" in a process whose GPU is "cuda:3"."""
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    for device, placed in (("cuda", "cuda:3"), (torch.device("cuda:1"), "cuda:1"), ("cpu", "cpu")):
        settings = four_bit.quantization_settings(torch.bfloat16, device)
        assert settings["device_map"] == {"": torch.device(placed)}

"""Starting several processes: what would hang or fail later is refused before."""

import os
import time

import pytest

from skipwise.errors import RecipeError, TrainingError
from skipwise.training import launch


@pytest.mark.parametrize("folder", ["py311_cpu/deepspeed_shm_comm", "deepspeed_shm_comm"])
def test_the_lock_of_a_build_that_was_killed_is_refused(tmp_path, monkeypatch, folder) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "find_spec", lambda _: True)
    lock = tmp_path / folder / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert launch.processes_of("zero3", 2) == 2  # another process may be building
    hours = 3 * 3600
    os.utime(lock, (time.time() - hours,) * 2)
    with pytest.raises(TrainingError, match=rf"stopped 3\.0 hours ago .* rm '{lock}'"):
        launch.processes_of("zero3-offload", 2)
    assert launch.processes_of("ddp", 2) == 2


def test_deepspeed_must_be_installed(monkeypatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=r"zero3 needs the deepspeed package: pip install 'deepspeed>=.*' 'ninja'"):
        launch.processes_of("zero3", 2)


def test_two_processes_do_not_share_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert launch.processes_of("ddp", None) == 4
    with pytest.raises(RecipeError, match="--processes 8 needs as many GPUs, and this machine has 4: lower it"):
        launch.processes_of("ddp", 8)

"""Several processes of one run: how they start, share values and errors, and end."""

import pytest

from skipwise.errors import DataError, RecipeError, TrainingError
from skipwise.training import processes


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch):
    """Let this process gather these error messages."""

    def gather(*messages: str) -> None:
        monkeypatch.setenv("WORLD_SIZE", str(len(messages)))
        monkeypatch.setattr(processes, "gather_object", lambda own: list(messages))

    return gather


def test_the_error_of_one_process_ends_all(gathered) -> None:
    gathered("", "")
    with processes.together():
        pass
    gathered("", "no such text")
    with pytest.raises(TrainingError, match=r"process 1.*no such text"), processes.together():
        pass
    gathered("another", "own")
    with pytest.raises(DataError, match="own"), processes.together():
        raise DataError("own")


def test_a_single_process_waits_for_nobody(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(processes, "_state", None)
    with pytest.raises(DataError), processes.together(rank_0_first=True):
        raise DataError("own")
    assert processes.broadcast(3) == 3
    assert processes.is_first()


def test_launch_starts_one_process_for_each_gpu(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(processes, "find_spec", lambda _: None)
    assert processes.processes_of("ddp", None) == 4
    assert processes.processes_of("ddp", 2) == 2
    with pytest.raises(RecipeError, match="ddp"):
        processes.processes_of("ddp", 1)
    for engine, cause in (("zero", "zero"), ("zero3", "deepspeed"), ("fsdp", "GPUs")):
        with pytest.raises(RecipeError, match=cause):
            processes.choose_engine(engine)


def test_an_engine_is_set_up_in_several_processes_alone(monkeypatch) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda _: True)
    monkeypatch.setenv(processes.ENGINE, "")
    processes.choose_engine("zero3")
    assert not processes.engine_settings()  # a dry run
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert processes.sharding() == "zero3"
    assert processes.engine_settings()["deepspeed"]["zero_optimization"]["stage"] == 3

"""Several processes of one run: how one that is left alone ends."""

import socket
from datetime import timedelta

import pytest
import torch

from skipwise.errors import DataError, PeerError, TrainingError
from skipwise.training import processes


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of two, and the other never begins."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(processes, "MEETING", timedelta(seconds=1))
    monkeypatch.setattr(processes.PartialState, "_shared_state", {})  # an earlier test's trainer may have made one


def test_a_process_whose_peer_never_begins_ends_in_time(first_of_two: None) -> None:
    with pytest.raises(PeerError, match=r"of 2 processes not all have begun within 1 s; look at .* with --resume"):
        processes.is_first()


def test_a_store_that_does_not_wait_for_all_is_not_enough(first_of_two: None, monkeypatch) -> None:
    """As that of torchrun's agent, which is there before the processes are."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    with pytest.raises(PeerError, match="not all have begun"):
        processes.is_first()
    assert store.check(["skipwise/0"])


def test_processes_that_cannot_find_each_other_are_refused(first_of_two: None, monkeypatch) -> None:
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(
        TrainingError, match=r"one of 2 processes, but not how to find .*MASTER_ADDR.* with --launch, torchrun"
    ):
        processes.is_first()


def test_a_peer_that_dies_right_after_it_has_begun_is_told_of(monkeypatch) -> None:
    def lost(**_: object) -> None:
        raise torch.distributed.DistNetworkError("failed to recv, got 0 bytes")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "_meet", torch.distributed.HashStore)
    monkeypatch.setattr(processes.PartialState, "_shared_state", {})
    monkeypatch.setattr(processes.PartialState, "__init__", lambda self, **how: lost(**how))
    with pytest.raises(PeerError, match=r"the 2 processes have begun, but cannot join \(.*recv.* with --resume"):
        processes.is_first()


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch):
    """Let this process gather the errors that it is told."""

    def gather(*told: str) -> None:
        monkeypatch.setenv("WORLD_SIZE", str(len(told)))
        monkeypatch.setattr(processes, "_state", lambda: None)
        monkeypatch.setattr(processes, "gather_object", lambda own: list(told))

    return gather


def test_the_error_of_another_process_ends_this_one(gathered) -> None:
    gathered("", "no such text")
    with pytest.raises(TrainingError, match="process 1: no such text"):
        processes.end_together(None)


def test_a_process_ends_with_its_own_error(gathered) -> None:
    gathered("another", "own")
    with pytest.raises(DataError, match="own"):
        processes.end_together(DataError("own"))


def test_all_go_on_if_none_has_an_error(gathered) -> None:
    gathered("", "")
    processes.end_together(None)


def test_a_process_alone_asks_nobody(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(DataError):
        processes.end_together(DataError("own"))
    assert processes.told_by_first(3) == 3
    assert processes.is_first()


def test_a_process_says_that_the_first_has_ended(monkeypatch) -> None:
    def lost(values: list) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "_state", lambda: None)
    monkeypatch.setattr(processes, "is_first", lambda: False)
    monkeypatch.setattr(processes, "broadcast_object_list", lost)
    with pytest.raises(PeerError, match=r"process 0 has stopped: .* start all of them again, with --resume"):
        processes.told_by_first(None)


def test_a_compiled_engine_is_that_engine(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    wrapped = type("DistributedDataParallel", (torch.nn.Module,), {})()
    processes.require_engine(torch.compile(wrapped))
    with pytest.raises(TrainingError, match="ddp was asked for, and what trains is a Linear"):
        processes.require_engine(torch.compile(torch.nn.Linear(1, 1)))

"""Run ``skipwise`` under torchrun with FSDP2 on a CPU: accelerate would replace it by DDP there, torch would not."""

import os
import runpy

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from skipwise.training import processes

connect = AcceleratorState.__init__


def with_fsdp(self: AcceleratorState, *args: object, **options: object) -> None:
    processes._state()
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU  # of these accelerate makes FSDP
    connect(self, *args, **options)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_CPU
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP


def choose_engine(engine: str) -> None:
    os.environ[processes.ENGINE] = engine


AcceleratorState.__init__ = with_fsdp
processes.choose_engine = choose_engine
runpy.run_module("skipwise", run_name="__main__")

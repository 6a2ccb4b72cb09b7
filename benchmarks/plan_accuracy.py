"""How near ``skipwise plan`` comes: the memory that it foretells beside what training really takes, and how fast that is.

    python -m benchmarks.plan_accuracy [--tflops 989] [--out rows.jsonl]

On a CPU the embedded model is trained, each case in a process of its own, and the process's peak is read; glibc is told
to give freed blocks back, since tensors are what is planned. On a GPU a random model of LLaMA-7B's shape is trained as
well, all its weights or by LoRA, on windows of PoSE and on full-length ones of as many tokens a step; the allocator's peak
is read, and tokens a second and the share of the GPU's peak (``--tflops``, bf16, as its maker says or as measured) stand
beside it; then PoSE's windows again with Liger's kernels, with compiled layers, and without flash attention. Each row is
written to ``--out`` when it is measured, and the same command goes on after the last one.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by glibc when a worker starts
os.environ["MALLOC_TRIM_THRESHOLD_"] = "0"

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from reproduction.costs import most_held
from skipwise.data.examples import collate
from skipwise.model.config import load_config
from skipwise.model.forward import choose_precision
from skipwise.model.lora import adapt
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Recipe
from skipwise.training.plan import Hardware, estimate_cost
from skipwise.training.trainer import train

Changes = dict[str, object]


@dataclass(frozen=True)
class Case:
    """A run that is planned and trained: windows of ``window`` tokens, ``batch`` a step and ``micro`` at a time."""

    name: str
    window: int
    batch: int
    micro: int
    changes: Changes  # of the recipe
    flash: bool = True  # with flash attention, on a GPU


_LORA: Changes = {"lora": {}}
_CHECKPOINTED: Changes = {"training.gradient_checkpointing": True}
_LIGER: Changes = {"training.use_liger_kernel": True}
_COMPILED: Changes = {"training.torch_compile": True}
NANO = [
    Case("PoSE, 16 x 256", 256, 16, 16, {}),
    Case("full-length, 2 x 2k", 2048, 2, 2, {}),
    Case("full-length, 1 x 8k", 8192, 1, 1, {}),
    Case("full-length, 1 x 8k, checkpointing", 8192, 1, 1, _CHECKPOINTED),
    Case("full-length, 1 x 8k, LoRA", 8192, 1, 1, _LORA),
]


# What is trained, its window, windows in a pass, changes of the recipe, flash attention; all have 16,384 tokens a step.
_ARMS: list[tuple[str, int, int, Changes, bool]] = [
    ("PoSE, 2k", 2048, 1, {}, True),
    ("PoSE, 2k, 8 at once", 2048, 8, {}, True),  # the same step in an eighth of the kernels
    ("full-length 4k", 4096, 1, {}, True),
    ("8k", 8192, 1, {}, True),
    ("16k", 16384, 1, {}, True),
    ("PoSE, 2k, Liger", 2048, 1, _LIGER, True),
    ("PoSE, 2k, without flash attention", 2048, 1, {}, False),
    ("PoSE, 2k, compiled", 2048, 1, _COMPILED, True),
    ("PoSE, 2k, Liger, compiled", 2048, 1, _LIGER | _COMPILED, True),
]
SEVEN = [
    Case(f"7B, {what}, {arm}", window, 16384 // window, micro, _CHECKPOINTED | rules | changes, flash)
    for arm, window, micro, changes, flash in _ARMS
    for what, rules in (("LoRA", _LORA), ("all weights", Changes()))
]


class EnoughError(Exception):
    """Ends training before its checkpoint: that of a 7B model is 80 GB."""


def recipe_of(case: Case) -> Recipe:
    settings: dict[str, object] = {
        "method": None,
        "training.max_steps": 3,
        "training.save_steps": 100,
        "training.global_batch_size": case.batch,
        "training.per_device_train_batch_size": case.micro,
        "training.precision": choose_precision("auto"),  # the plan is of a GPU, and means bf16 by auto
    }
    if torch.cuda.is_available():
        settings["training.optim"] = "adamw_torch_fused"
    return load_recipe(None, settings | case.changes)


def measured(config: PretrainedConfig, window: int, recipe: Recipe, flash: bool) -> tuple[int, float]:
    """Bytes that training takes at its peak, the model's own included, and the seconds of its last step."""
    if not flash:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if recipe.lora else torch.float32
    with torch.device("cuda" if gpu else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if recipe.lora:
        model = adapt(model, recipe.lora)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    ids = torch.randint(0, config.vocab_size, (window,)).numpy()
    example = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(window).numpy()}
    examples = [{**example, "attention_mask": torch.ones(window, dtype=torch.long).numpy()}]
    examples *= recipe.training.max_steps * recipe.training.global_batch_size
    ends: list[float] = []

    def stepped(number: int) -> None:
        if gpu:
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        if number == recipe.training.max_steps:
            raise EnoughError

    before = most_held()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(EnoughError):
        train(
            model,
            examples,  # type: ignore[arg-type]
            collate,
            recipe.training,
            folder=Path(folder),
            seed=0,
            resume=False,
            on_step=stepped,
        )
    peak = torch.cuda.max_memory_allocated() if gpu else weights + most_held() - before
    return peak, ends[-1] - ends[-2]


def imported() -> None:
    """Does nothing: the process that runs it has imported this module."""


def started() -> ProcessPoolExecutor:
    """Return a process of its own, which imports torch while the case before is measured."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    pool.submit(imported)
    return pool


def measured_row(config: PretrainedConfig, case: Case, process: ProcessPoolExecutor) -> dict[str, object]:
    """Plan the case, train it in ``process``, and return what both say; the reason where it cannot be trained."""
    recipe = recipe_of(case)
    plan = estimate_cost(config, recipe, case.window, case.batch, Hardware())
    row: dict[str, object] = {
        "case": case.name,
        "planned": plan.memory,
        "operations": plan.operations,
        "tokens": case.batch * case.window,
    }
    with process:
        try:
            found = process.submit(measured, config, case.window, recipe, case.flash).result()
        except Exception as error:  # too little memory, a package is missing, a kernel fails: the other cases go on
            return row | {"failed": str(error).strip().partition("\n")[0][:80] or type(error).__name__}
    return row | dict(zip(("measured", "seconds"), found, strict=True))


def shown(rows: list[dict[str, Any]], tflops: float | None) -> Table:
    """The table of all rows."""
    table = Table(box=None)
    for column in ("case", "planned, MB", "measured, MB", "error", "tokens/s", "of the peak"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        planned, found = row["planned"], row.get("measured")
        if found is None:
            table.add_row(row["case"], f"{planned / 1e6:,.0f}", row["failed"])
            continue
        share = f"{row['operations'] / row['seconds'] / tflops / 1e12:.0%}" if tflops else "–"
        speed = row["tokens"] / row["seconds"]
        table.add_row(
            row["case"],
            f"{planned / 1e6:,.0f}",
            f"{found / 1e6:,.0f}",
            f"{planned / found - 1:+.1%}",
            f"{speed:,.0f}",
            share,
        )
    return table


def main() -> None:
    """Measure the cases that are not in --out yet, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tflops", type=float, help="of the GPU in bf16, as its maker says: 989 of an H100 or H200")
    parser.add_argument("--out", type=Path, help="file of the rows, a JSON object a line")
    parser.add_argument("--table", action="store_true", help="print the rows of --out; measure nothing")
    options = parser.parse_args()
    cases = [(load_config("nano"), case) for case in NANO]
    if torch.cuda.is_available():
        shape = LlamaConfig(max_position_embeddings=16384, bos_token_id=1, eos_token_id=2)
        cases = [(shape, case) for case in SEVEN] + cases
    kept = options.out.read_text(encoding="utf-8").splitlines() if options.out and options.out.exists() else []
    rows = [json.loads(line) for line in kept]
    missing = [] if options.table else [each for each in cases if all(row["case"] != each[1].name for row in rows)]
    following = started() if missing else None
    for number, (config, case) in enumerate(missing, 1):
        process, following = following, started() if number < len(missing) else None
        assert process is not None
        rows.append(measured_row(config, case, process))
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {device}, {sys.platform}")
    console.print(shown(rows, options.tflops))


if __name__ == "__main__":
    main()

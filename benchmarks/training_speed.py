"""Training speed of ``skipwise.training.trainer`` beside a bare loop over the same stock model, in one process.

    python benchmarks/training_speed.py [--steps 12] [--rounds 3]

Both sides train the embedded model on the same examples in the same order with the same optimizer, schedule
and precision; they take turns, round by round, so that a change of the machine's speed meets both. Checked: the
losses agree to 1e-3 (relative). Also measured: how much of a step the building of its batch takes.
"""

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

from skipwise.cli.allocator import keep_freed_memory

keep_freed_memory()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from transformers import PreTrainedModel, get_linear_schedule_with_warmup  # noqa: E402

from skipwise.data.examples import collate  # noqa: E402
from skipwise.model.loading import load_model  # noqa: E402
from skipwise.model.precision import AUTOCAST  # noqa: E402
from skipwise.recipes.schema import load_recipe  # noqa: E402
from skipwise.training.prepare import PreparedRun, prepare  # noqa: E402
from skipwise.training.trainer import train  # noqa: E402

WARM = 2  # steps of each round that are not counted


def fresh_model(job: PreparedRun) -> PreTrainedModel:
    """Load the base with the recipe's interpolation."""
    return load_model(job.recipe.model, job.extension, device=job.device).train()


def bare_loop(job: PreparedRun, steps: int) -> tuple[list[float], list[float]]:
    """Train without any framework; seconds and loss of each step."""
    model, data, rule = fresh_model(job), job.dataset(), job.recipe.training
    optimizer = torch.optim.AdamW(model.parameters(), lr=rule.learning_rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, int(rule.warmup_steps), steps)
    seconds, losses = [], []
    for step in range(steps):
        began = time.perf_counter()
        indices = range(step * rule.batch_size, (step + 1) * rule.batch_size)
        batch = {k: v.to(job.device) for k, v in collate(data.__getitems__(indices)).items()}
        with torch.autocast(job.device.type, AUTOCAST[job.precision], enabled=AUTOCAST[job.precision] is not None):
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return seconds, losses


def skipwise_loop(job: PreparedRun, steps: int) -> tuple[list[float], list[float]]:
    """Train by ``skipwise.training.trainer``; seconds between logs, a log a step, and their losses."""
    stamps, losses = [time.perf_counter()], []

    def stamp(log: dict[str, float]) -> None:
        stamps.append(time.perf_counter())
        losses.append(log["loss"])

    with tempfile.TemporaryDirectory() as folder:
        train(
            fresh_model(job),
            job.dataset(),
            collate,
            job.recipe.training,
            folder=Path(folder),
            seed=0,
            resume=False,
            on_log=stamp,
            progress=False,
        )
    return np.diff(stamps).tolist(), losses


def batch_seconds(job: PreparedRun, batches: int = 50) -> float:
    """Median time to build and collate one batch."""
    data, size, times = job.dataset(), job.recipe.training.batch_size, []
    for _ in range(batches):
        began = time.perf_counter()
        collate(data.__getitems__(range(size)))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    changes = {
        "training.max_steps": options.steps,
        "training.logging_steps": 1,
        "training.save_steps": 10**6,
        "training.weight_decay": 0.0,
    }
    job = prepare(load_recipe("nano", changes), Console(stderr=True))
    tokens = job.recipe.training.batch_size * job.train_length
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(options.rounds):
        seconds, reference = bare_loop(job, options.steps)
        bare += seconds[WARM:]
        seconds, losses = skipwise_loop(job, options.steps)
        ours += seconds[WARM:]
        np.testing.assert_allclose(losses, reference, rtol=1e-3)
    fast, slow = statistics.median(bare), statistics.median(ours)
    build = batch_seconds(job)
    print(f"{job.precision}, {torch.get_num_threads()} threads, {tokens:,} tokens a step; losses agree")
    print(f"bare loop   {tokens / fast:9,.0f} tokens/s   median step {fast:.3f} s")
    print(f"skipwise    {tokens / slow:9,.0f} tokens/s   median step {slow:.3f} s")
    print(f"ratio       {fast / slow:9.3f}")
    print(f"batch       {build * 1e3:9.2f} ms to build and collate = {build / slow:.2%} of a step")


if __name__ == "__main__":
    main()

"""Training speed of Skipwise beside a bare loop over the same stock model, and beside the released PoSE code, in one run.

    python -m benchmarks.training_speed [--steps 12] [--rounds 3]
    python -m benchmarks.training_speed smollm2 --window 1k --batch 4 --steps 4 [--released PoSE/src] [--precision bf16]

All sides train on the same examples in the same order with AdamW (fused in Skipwise alone) and the same schedule; they take
turns, round by round, each in a process of its own, so that a change of the machine's speed meets all. Checked: the losses agree
to 1e-3 in float32, 5e-3 in bf16, 2% between bf16 and float32. Beside the speed stands the share of the rate that this machine
reaches in products of the model's largest matrices, measured in the same processes. Also measured: how much of a step the
building of its batch takes.

``--precision`` is that of the bare loop and of the released code; Skipwise computes in what its recipe chooses (auto).
``--released`` is the folder ``src`` of https://github.com/dwzhu-pku/PoSE (read at a3d4ba8). Its model is trained by the
bare loop, with linear interpolation on both sides. Its attention calls xformers, which has no kernel for CPUs: torch's
own causal attention stands in. Its RoPE does not read theta; the model's is given to it.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from reproduction.costs import in_own_process, most_held
from skipwise.data.examples import collate
from skipwise.model.config import load_config
from skipwise.model.cost import step_cost
from skipwise.model.forward import autocast, choose_precision, dtype_of
from skipwise.model.loading import load_model
from skipwise.recipes.loading import load_recipe
from skipwise.training.prepare import PreparedRun, prepare
from skipwise.training.trainer import train

WARM = 2  # steps of each round that are not counted


def fresh_model(job: PreparedRun) -> PreTrainedModel:
    """Load the base with the recipe's interpolation."""
    return load_model(job.recipe.model, job.extension, device=job.device).train()


def released_model(job: PreparedRun, folder: Path) -> torch.nn.Module:
    """Load the base into the released code's model, with the same linear interpolation."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_bias: object) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    operators, package = types.ModuleType("xformers.ops"), types.ModuleType("xformers")
    vars(operators).update(LowerTriangularMask=object, memory_efficient_attention=attention)
    vars(package).update(ops=operators)
    sys.modules.update({"xformers": package, "xformers.ops": operators})
    sys.path.insert(0, str(folder))
    from my_modeling_llama import LlamaForCausalLM, LlamaLinearScalingRotaryEmbedding

    LlamaForCausalLM._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # a list in its day
    stock = fresh_model(job)
    config, rope = stock.config, stock.config.rope_parameters
    config._attn_implementation = "eager"  # it calls xformers whatever stands here
    config.rope_scaling, config.pretraining_tp = None, 1
    model = LlamaForCausalLM(config)
    model.load_state_dict(stock.state_dict())
    for layer in model.model.layers:
        layer.self_attn.rotary_emb = LlamaLinearScalingRotaryEmbedding(
            config.hidden_size // config.num_attention_heads,
            job.extension.target_length,
            rope["rope_theta"],
            scaling_factor=job.extension.factor,
        )
    return model.train()


def bare_loop(job: PreparedRun, steps: int, model: torch.nn.Module, precision: str) -> tuple[list[float], list[float]]:
    """Train without any framework; seconds and loss of each step."""
    data, rule = job.dataset, job.recipe.training
    betas = (0.9, (rule.model_extra or {})["adam_beta2"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rule.learning_rate, betas=betas, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, int(rule.warmup_steps), steps)
    seconds, losses = [], []
    for step in range(steps):
        began = time.perf_counter()
        indices = range(step * rule.global_batch_size, (step + 1) * rule.global_batch_size)
        batch = {k: v.to(job.device) for k, v in collate(data.__getitems__(indices)).items()}
        with autocast(job.device, precision):
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
    model, stamps, losses = fresh_model(job), [time.perf_counter()], []

    def stamp(log: dict[str, float]) -> None:
        stamps.append(time.perf_counter())
        losses.append(log["loss"])

    with tempfile.TemporaryDirectory() as folder:
        train(model, job.dataset, collate, job.recipe.training, folder=Path(folder), seed=0, resume=False, on_log=stamp)
    return np.diff(stamps).tolist(), losses


def batch_seconds(job: PreparedRun, batches: int = 50) -> float:
    """Median time to build and collate one batch."""
    data, size, times = job.dataset, job.recipe.training.global_batch_size, []
    for _ in range(batches):
        began = time.perf_counter()
        collate(data.__getitems__(range(size)))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def matrix_rate(job: PreparedRun, precision: str) -> float:
    """Return the operations a second of a product of the batch with the largest layer's weights."""
    config, dtype = load_config(job.recipe.model), dtype_of(precision)
    tokens = (job.recipe.training.per_device_train_batch_size or 1) * job.train_length
    rows = torch.ones(tokens, config.hidden_size, dtype=dtype, device=job.device)
    weights = torch.ones(config.intermediate_size, config.hidden_size, dtype=dtype, device=job.device)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weights)
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * rows.numel() * len(weights) / min(times)


def job_of(options: argparse.Namespace) -> PreparedRun:
    """Prepare the run that all sides train."""
    changes = {
        "model": options.model,
        "interpolation": "linear" if options.released else "yarn",
        "training.max_steps": options.steps,
        "training.global_batch_size": options.batch,
        "training.per_device_train_batch_size": options.micro or options.batch,
        "training.logging_steps": 1,
        "training.save_steps": 10**6,
        "training.weight_decay": 0.0,
        **({"train_length": options.window} if options.window else {}),
        **({"target": "16k", "training.learning_rate": 2e-5} if options.model != "nano" else {}),
    }
    return prepare(load_recipe("nano", {"train_length": None, **changes}), Console(stderr=True, quiet=True))


class Turn(NamedTuple):
    """One side's turn of a round."""

    precision: str
    seconds: list[float]  # of each step that is counted
    losses: list[float]
    rate: float  # of matrix products, operations a second
    held: int  # bytes at the most


def turn(options: argparse.Namespace, side: str) -> Turn:
    """Train a side from the base; to be called in a fresh process."""
    logging.disable(logging.WARNING)
    job = job_of(options)
    precision = job.precision if side == "skipwise" else choose_precision(options.precision, job.device)
    rate = matrix_rate(job, precision)
    if side == "skipwise":
        seconds, losses = skipwise_loop(job, options.steps)
    else:
        model = released_model(job, options.released) if side == "released" else fresh_model(job)
        seconds, losses = bare_loop(job, options.steps, model, precision)
    return Turn(precision, seconds[WARM:], losses, rate, most_held())


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", help="train length; default: the original length")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro", type=int, help="examples in one forward pass of Skipwise; default: --batch")
    parser.add_argument("--precision", default="auto", help="of the bare loop and the released code")
    parser.add_argument("--released", type=Path, help="the folder src of the released PoSE code")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} are not counted; give {WARM + 1} or more")
    rivals = ["stock", "released"] if options.released else ["stock"]
    turns: dict[str, list[Turn]] = {side: [] for side in [*rivals, "skipwise"]}
    for number in range(options.rounds):
        for side, own in turns.items():
            own.append(in_own_process(turn, options, side))
            now, stock = own[-1], turns["stock"][-1]
            # In bf16 the attention is not the stock model's, and each rounds by itself.
            tolerance = 2e-2 if now.precision != stock.precision else 5e-3 if now.precision == "bf16" else 1e-3
            np.testing.assert_allclose(now.losses, stock.losses, rtol=tolerance)
            step = statistics.median(now.seconds)
            print(f"round {number + 1}: {side}, {step:.2f} s a step", file=sys.stderr, flush=True)
    job = job_of(options)
    tokens = job.recipe.training.global_batch_size * job.train_length
    config, batch = load_config(options.model), job.recipe.training.global_batch_size
    operations = step_cost(config, job.train_length, batch).operations
    print(f"{options.model}, {torch.get_num_threads()} threads, {tokens:,} tokens a step; losses agree")
    print(
        "| | precision | tokens/s | median step, s | of the matrix rate | peak memory, MiB "
        "| Skipwise's speed, times this one's, by round |\n|---|---|---|---|---|---|---|"
    )
    steps = {side: [statistics.median(each.seconds) for each in own] for side, own in turns.items()}
    for side, own in turns.items():
        step, rate = statistics.median(steps[side]), statistics.median(each.rate for each in own)
        ratios = sorted(one / other for one, other in zip(steps[side], steps["skipwise"], strict=True))
        faster = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(
            f"| {side} | {own[0].precision} | {tokens / step:,.0f} | {step:.3f} "
            f"| {operations / step / rate:.0%} of {rate / 1e9:,.0f} GFLOP/s | {max(each.held for each in own) / 2**20:,.0f} | {faster} |"
        )
    build = batch_seconds(job)
    print(
        f"batch: {build * 1e3:.2f} ms to build and collate = {build / statistics.median(steps['skipwise']):.2%} of a step"
    )


if __name__ == "__main__":
    main()

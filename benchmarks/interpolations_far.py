"""SmolLM2 to 128k under several interpolations, untrained and trained by PoSE: loss by place in one window, and passkeys.

    python -m benchmarks.interpolations_far --train BOOKS --eval TEXTS --out far.jsonl     # 30 minutes of an H200
    python -m benchmarks.interpolations_far ... --target 16k --steps 2 --batch 2           # a trial on a CPU

A record that OUT has is not measured again. docs/fit.md has the table.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from skipwise import load_config, load_model, load_tokenizer, plan_extension
from skipwise.data.store import TokenStore
from skipwise.data.tokenising import tokenise
from skipwise.evaluation.perplexity import position_buckets, sliding_scores
from skipwise.evaluation.retrieval import retrieval_accuracy
from skipwise.method.interpolation import Rope, turns_of
from skipwise.method.lengths import parse_length
from skipwise.method.positions import pose
from skipwise.method.rng import Rng
from skipwise.model.extension import Extension, set_frequencies
from skipwise.model.precision import autocast, choose_precision, default_device

WINDOW, TRAINED = 8192, 2048
FITTED = {"beta_slow": turns_of(Rope(1e5, 64, WINDOW), 24), "power": 1.0, "attention_factor": 1.18}
ARMS = {  # name: interpolation, its settings, whether positions skip
    "yarn": ("yarn", {}, True),
    "ntk": ("ntk", {}, True),
    "power": ("power", {}, True),
    "fitted": ("power", FITTED, True),
    "fitted, no skips": ("power", FITTED, False),
}


def batches(
    store: TokenStore, target: int, steps: int, batch: int, seed: int, skips: bool
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Draw ids, positions and labels of PoSE's windows; the control has the same spans, a window anywhere in them, no skip."""
    long = np.flatnonzero(store.lengths >= TRAINED)
    lengths = store.lengths[long]
    for step in range(steps):
        draw = np.random.default_rng([seed, step])
        chosen = draw.choice(len(long), size=batch, p=lengths / lengths.sum())
        spans = np.minimum(lengths[chosen], target)
        begins = (draw.random(batch) * (lengths[chosen] - spans + 1)).astype(np.int64)
        plans = pose(Rng.of(seed=seed, epoch=step, indices=list(range(batch))), TRAINED, target, spans)
        positions, content = plans.position_ids(), plans.content_indices()
        if not skips:
            offsets = (draw.random(batch) * (spans - TRAINED + 1)).astype(np.int64)
            positions = np.tile(np.arange(TRAINED), (batch, 1))
            content = offsets[:, None] + positions
        ids = np.stack([store.document(int(long[d]))[b + c] for d, b, c in zip(chosen, begins, content, strict=True)])
        labels = torch.from_numpy(ids.astype(np.int64))
        jumps = labels.clone()
        if skips:  # the text before a jump does not announce what follows
            jumps[torch.arange(batch), torch.from_numpy(plans.lengths[:, 0])] = -100
        yield labels, torch.from_numpy(np.ascontiguousarray(positions)), jumps


def train(
    extension: Extension, data: Iterator[tuple[torch.Tensor, ...]], steps: int, micro: int, rate: float
) -> PreTrainedModel:
    """Train all weights with AdamW, a warm-up of six steps and a linear decay; gradients are clipped at 1."""
    device = default_device()
    model = load_model("smollm2", extension, device=device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step, (ids, positions, labels) in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 6) * max(0.02, 1 - step / steps)
        for some in torch.arange(len(ids)).split(micro):
            with autocast(device, choose_precision("auto", device)):
                one = ids[some].to(device)
                logits = model(one, position_ids=positions[some].to(device), attention_mask=torch.ones_like(one)).logits
            loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[some][:, 1:].flatten().to(device))
            (loss * len(some) / len(ids)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--eval", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=parse_length, default=parse_length("128k"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--micro", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    console, tokenizer, target = Console(), load_tokenizer("smollm2"), given.target
    text, read = tokenise(given.train, tokenizer, console), tokenise(given.eval, tokenizer, console)
    long = [i for i in range(len(read)) if read.lengths[i] >= target]
    documents = [np.asarray(read.document(i)[:target], dtype=np.int64) for i in long]
    names, edges = [read.names[i] for i in long], position_buckets(target, WINDOW)
    known = [json.loads(line)["key"] for line in given.out.read_text().splitlines()] if given.out.exists() else []

    def measure(key: str, model: PreTrainedModel, window: int, lengths: list[int], seed: int) -> None:
        if key in known:
            return
        began, precision = time.monotonic(), choose_precision("auto", default_device())
        scores = sliding_scores(model, documents, window=window, stride=window, precision=precision)
        sums = [np.add.reduceat(score.nll, np.array(edges[:-1]) - 1) / np.diff(edges) for score in scores]
        found = {
            n: retrieval_accuracy(model, tokenizer, length=n, trials=10, seed=seed, precision=precision)
            for n in lengths
        }
        places = {
            name: dict(zip(edges[1:], each.tolist(), strict=True)) for name, each in zip(names, sums, strict=True)
        }
        record = {"key": key, "places": places, "passkeys": found, "seconds": round(time.monotonic() - began)}
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        console.print(
            key, {end: round(math.exp(np.mean([p[end] for p in places.values()])), 1) for end in edges[1:]}, found
        )

    none = plan_extension(load_config("smollm2"), target_length=target)
    base = load_model("smollm2", none, device=default_device()).eval()
    measure("base, in its own window", base, WINDOW, [], 0)
    for name, (interpolation, rope, skips) in ARMS.items():
        extension = plan_extension(load_config("smollm2"), target_length=target, interpolation=interpolation, rope=rope)
        if skips:
            set_frequencies(base, extension)
            measure(f"{name}, untrained", base, target, [], 0)
    for seed in range(given.seeds):
        for name, (interpolation, rope, skips) in ARMS.items():
            key = f"{name}, seed {seed}"
            if key not in known:
                extension = plan_extension(
                    load_config("smollm2"), target_length=target, interpolation=interpolation, rope=rope
                )
                data = batches(text, target, given.steps, given.batch, seed, skips)
                model = train(extension, data, given.steps, given.micro, given.rate)
                measure(key, model, target, [target // 4, target // 2, target], seed)
                measure(f"{key}, in windows of {WINDOW}", model, WINDOW, [], seed)


if __name__ == "__main__":
    main()

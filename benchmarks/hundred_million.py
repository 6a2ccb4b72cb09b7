"""Does PoSE come within 3% of full-length training where the base's window is the paper's? The base, and the table.

    python -m benchmarks.hundred_million base FOLDER [--text TEXT] [--steps 1200]     # trains it, or goes on
    python -m benchmarks.hundred_million table REPRODUCTION [REPRODUCTION ...]        # of `python -m reproduction --out`

The base is a Llama of 102 million parameters (14 layers, 768 wide, the embedded model's tokenizer) with a window of 2,048
tokens, trained from nothing on TEXT less what is held out by name. ``benchmarks/gpu.sh`` runs the arms between the two.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from reproduction.bases import SmallBase, train_base
from reproduction.claims import seeds_interval
from reproduction.exhibits import TRAINED
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data, Training
from skipwise.results.records import ReadingRecord, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.results.statistics import loss


def make_base(folder: Path, options: argparse.Namespace) -> None:
    """Train the base, or finish its training; nothing is done where its model is there."""
    if (folder / "model" / "config.json").exists():
        return
    base = SmallBase("llama", options.window, {"tie_word_embeddings": True}, options.width, options.layers)
    batch = max(1, options.tokens // options.window)
    settings = {
        "max_steps": options.steps,
        "global_batch_size": batch,
        "per_device_train_batch_size": math.gcd(batch, 16),
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "adam_beta2": 0.95,
        "weight_decay": 0.1,
        "warmup_steps": min(100, options.steps),
        "optim": "adamw_torch_fused",
        "save_steps": 200,
    }
    Console().print(f"base: {options.steps:,} steps of {batch} x {base.window:,} tokens")
    train_base(base, Training.model_validate(settings), Data(source=options.text), folder)


def far_losses(out: Path) -> dict[tuple[str, int, str], dict[int, float]]:
    """Loss at the largest window in nats, by arm, tokens a step and text, and by seed."""
    found: dict[tuple[str, int, str], dict[int, float]] = {}
    for results in sorted(out.glob("arms/*/results.jsonl")):
        recipe = load_recipe(results.parent / "recipe.yaml")
        readings = [
            r for r in read_records(results) if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None
        ]
        arm = recipe.positions.scheme if recipe.evaluation.models == ["trained"] else recipe.evaluation.models[0]
        tokens = 0
        if arm in TRAINED:
            model = RunFolder(results.parent).read()["model"]
            tokens = (
                recipe.training.global_batch_size * model["target_length" if arm == "full_length" else "train_length"]
            )
        for text in sorted({reading.data for reading in readings}):
            of_text = [reading for reading in readings if reading.data == text]
            longest = max(reading.window for reading in of_text)
            far = loss([reading for reading in of_text if reading.window == longest])
            found.setdefault((arm, tokens, text), {})[recipe.seed] = far.mean
    return found


def table_of(folders: list[Path]) -> Table:
    """Perplexity at the target by arm, and its ratio to full-length training of as many tokens, over the seeds of both."""
    table = Table(box=None)
    for column in ("text", "arm", "tokens a step", "seeds", "perplexity at the target", "over full-length: mean [95%]"):
        table.add_column(column, justify="left" if column in ("text", "arm") else "right")
    losses: dict[tuple[str, int, str], dict[int, float]] = defaultdict(dict)
    for folder in folders:
        for key, seeds in far_losses(folder).items():
            losses[key] |= seeds
    equal = min((tokens for arm, tokens, _ in losses if arm == "full_length"), default=0)
    for (arm, tokens, text), seeds in sorted(losses.items(), key=lambda item: (item[0][2], item[0][0])):
        full = losses.get(("full_length", equal, text), {})
        apart = [nats - full[seed] for seed, nats in seeds.items() if seed in full]
        ratio = "–"
        if len(apart) > 1 and any(apart):
            over = seeds_interval(apart).exp()
            ratio = f"{over.mean - 1:+.1%} [{over.low - 1:+.1%}, {over.high - 1:+.1%}]"
        mean = math.exp(sum(seeds.values()) / len(seeds))
        table.add_row(text, arm, f"{tokens:,}" if tokens else "–", str(len(seeds)), f"{mean:.3f}", ratio)
    return table


def main() -> None:
    """Train the base, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    base = commands.add_parser("base")
    base.add_argument("folder", type=Path)
    base.add_argument("--text", default="stdlib")
    base.add_argument("--window", type=int, default=2048)
    base.add_argument("--width", type=int, default=768)
    base.add_argument("--layers", type=int, default=14)
    base.add_argument("--steps", type=int, default=1200)
    base.add_argument("--tokens", type=int, default=2**17, help="of a step")
    commands.add_parser("table").add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "base":
        make_base(options.folder, options)
    else:
        Console(width=120).print(table_of(options.folders))


if __name__ == "__main__":
    main()

"""Which models fit which GPUs, trained how, in how many hours: a Markdown table by the arithmetic of ``skipwise plan``.

    python benchmarks/what_fits.py

A run reads ``--steps`` x ``--windows`` windows of ``--train-length`` tokens with the default method and activation checkpointing,
one window in a pass. Each cell is the least that has to be given up: all weights, LoRA, LoRA on a base in 4 bits; or a dash. Shapes are
those of the models' published config.json, peaks those that the makers state for dense bf16. Hours are at a share of the peak.
"""

import argparse
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from skipwise.errors import counted
from skipwise.method.lengths import format_length, parse_length
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Lora, Recipe
from skipwise.training.plan import CostEstimate, Hardware, estimate_cost


def llama(hidden: int, inner: int, layers: int, heads: int, groups: int, tied: bool = False) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=128256,
        tie_word_embeddings=tied,
        max_position_embeddings=131072,
    )


def qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool = False) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )


MODELS: dict[str, PretrainedConfig] = {
    "Llama-3.2-1B": llama(2048, 8192, 16, 32, 8, tied=True),
    "Qwen3-4B": qwen3(2560, 9728, 36, 32, tied=True),
    "Llama-3.1-8B": llama(4096, 14336, 32, 32, 8),
    "Qwen3-8B": qwen3(4096, 12288, 36, 32),
    "Qwen3-14B": qwen3(5120, 17408, 40, 40),
    "Qwen3-32B": qwen3(5120, 25600, 64, 64),
    "Llama-3.1-70B": llama(8192, 28672, 80, 64, 8),
}
CARDS = {
    "RTX 4090, 24 GB": Hardware(1, 24e9, 165e12),
    "A100, 40 GB": Hardware(1, 40e9, 312e12),
    "H100, 80 GB": Hardware(1, 80e9, 989e12),
    "8 x H100": Hardware(8, 80e9, 989e12),
}


def ways(recipe: Recipe) -> dict[str, Recipe]:
    """What may be given up, least first."""
    low = {"all weights": None, "LoRA": Lora(), "LoRA, 4 bits": Lora(load_in_4bit=True)}
    return {name: recipe.model_copy(update={"lora": rules}) for name, rules in low.items()}


def cell(
    config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware, made: dict[Any, CostEstimate]
) -> str:
    for name, changed in ways(recipe).items():
        key = name, hardware.gpus
        if key not in made:
            made[key] = estimate_cost(config, changed, window, recipe.training.global_batch_size, hardware, micro=1)
        estimate = made[key]
        if hardware.holds(estimate.memory):
            hours = estimate.operations * recipe.training.max_steps
            hours /= hardware.gpus * hardware.peak * hardware.mfu * 3600
            time = f"{hours:.1f} h" if hours >= 0.95 else f"{60 * hours:.0f} min"
            return f"{name}: {estimate.memory / 1e9:.0f} GB, {time}"
    return "–"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--train-length", default="4k")
    options.add_argument("--windows", type=int, default=16, help="a step")
    options.add_argument("--steps", type=int, default=400)
    given = options.parse_args()
    window = parse_length(given.train_length)
    recipe = load_recipe(
        None,
        {
            "model": "nano",
            "target": "128k",
            "method": "pose",
            "train_length": window,
            "training": {"max_steps": given.steps, "global_batch_size": given.windows, "gradient_checkpointing": True},
        },
    )
    tokens = given.steps * given.windows * window / 1e6
    print(
        f"{counted(given.steps, 'step')} of {given.windows} x {format_length(window)}: {tokens:.0f} million tokens.\n"
    )
    print(f"| | {' | '.join(CARDS)} |\n|---|{'---|' * len(CARDS)}")
    for name, config in MODELS.items():
        made: dict[Any, CostEstimate] = {}
        print(
            f"| {name} | {' | '.join(cell(config, recipe, window, card, made) for card in CARDS.values())} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

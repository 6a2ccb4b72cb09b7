"""Small bases besides the embedded model, trained here once on the recipe's text: the paper's other families in miniature.

Stock classes: GPT-J as Phi, with the same block (attention parallel to the feed-forward layer, LayerNorm, a quarter of each
head rotated); LLaMA2 and Baichuan2 as Llama with a window twice as long, Baichuan2 with its own output head. The embedded
model represents LLaMA.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from skipwise.data.examples import PoseDataset, collate
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data, Positions, Training
from skipwise.results.files import content_hash
from skipwise.training.trainer import train

_TOKENS = 8192  # a step


@dataclass(frozen=True)
class SmallBase:
    """A small architecture."""

    model_type: str  # of transformers
    window: int  # original length, in tokens
    differs: Mapping[str, Any]  # its config where that is not the model type's default
    width: int = 192  # of the residual stream; a head is 64 wide
    layers: int = 4


BASES = {
    "LLaMA2": SmallBase("llama", 512, {"tie_word_embeddings": True}),
    "GPT-J": SmallBase("phi", 256, {"partial_rotary_factor": 0.25, "tie_word_embeddings": False}),
    "Baichuan2": SmallBase("llama", 512, {"tie_word_embeddings": False}),
}


def base_folder(name: str, data: Data, out: Path) -> Path:
    """Return the folder of a base under ``out``, named by all that decides it but the text's content."""
    text = data.model_dump(include={*data.reading, "source", "held_out", "max_train_tokens"})
    digest = content_hash([asdict(BASES[name]), _settings(BASES[name]).model_dump(), text])
    return out.absolute() / "bases" / f"{name}-{digest}"


def make_base(name: str, data: Data, out: Path, console: Console) -> None:
    """Train the base if it is missing, or finish its training."""
    folder, settings = base_folder(name, data, out), _settings(BASES[name])
    if not (folder / "model" / "config.json").exists():
        console.print(f"training a small base, {name}: {settings.max_steps:,} steps of {_TOKENS:,} tokens")
        train_base(BASES[name], settings, data, folder)


def train_base(base: SmallBase, settings: Training, data: Data, folder: Path) -> None:
    """Train or resume ``folder/model`` on the text that is not held out, with the embedded model's tokenizer."""
    tokenizer, checkpoints = load_tokenizer("nano"), folder / "checkpoints"
    dataset = PoseDataset.from_source(
        Data(**data.model_dump(include={*data.reading, "source", "held_out", "max_train_tokens"})),
        tokenizer,
        train_length=base.window,
        target_length=base.window,
        positions=Positions(scheme="no_skip"),
        examples=settings.max_steps * settings.global_batch_size,
    )
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        base.model_type,
        vocab_size=tokenizer.vocab_size,
        hidden_size=base.width,
        intermediate_size=8 * base.width // 3 if base.model_type == "llama" else 4 * base.width,
        num_hidden_layers=base.layers,
        num_attention_heads=base.width // 64,
        max_position_embeddings=base.window,
        bos_token_id=0,
        eos_token_id=0,
        **base.differs,
    )
    model = AutoModelForCausalLM.from_config(config)
    train(model, dataset, collate, settings, folder=checkpoints, seed=0, resume=checkpoints.exists())
    model.save_pretrained(folder / "partial")
    tokenizer.save_pretrained(folder / "partial")
    os.replace(folder / "partial", folder / "model")


def _settings(base: SmallBase) -> Training:
    return Training.model_validate(
        {
            "max_steps": 1000,
            "global_batch_size": _TOKENS // base.window,
            "per_device_train_batch_size": max(1, _TOKENS // 2 // base.window),
            "learning_rate": 3e-3,
            "lr_scheduler_type": "cosine",
            "adam_beta2": 0.95,
            "weight_decay": 0.1,
            "warmup_steps": 50,
            "save_steps": 250,
        }
    )

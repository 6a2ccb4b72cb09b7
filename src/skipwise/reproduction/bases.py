"""Small bases of the paper's other families, trained here once and kept in the cache: what stock classes offer.

GPT-J's block (attention and feed-forward side by side, LayerNorm, a quarter of each head rotated) is Phi's; LLaMA2 and
Baichuan2 are Llama's with a window twice as long, the second with an output head of its own. The family of LLaMA is
the embedded model.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from skipwise.data.examples import PoseDataset, collate
from skipwise.data.tokens import default_cache
from skipwise.model.loading import load_tokenizer
from skipwise.recipe import Positions, Training
from skipwise.training import train

_TEXT = "stdlib"
_STEPS, _TOKENS = 1000, 8192


@dataclass(frozen=True)
class SmallBase:
    """An architecture in small: a model type of transformers, its window in tokens, and what differs from Llama's."""

    model_type: str
    window: int
    differs: Mapping[str, Any]


BASES = {
    "LLaMA2": SmallBase("llama", 512, {"tie_word_embeddings": True}),
    "GPT-J": SmallBase("phi", 256, {"partial_rotary_factor": 0.25, "tie_word_embeddings": False}),
    "Baichuan2": SmallBase("llama", 512, {"tie_word_embeddings": False}),
}


def base_folder(name: str) -> Path:
    """Where the base is kept: by name and by all that decides it."""
    decides = json.dumps([asdict(BASES[name]), _settings(BASES[name].window).model_dump(), _TEXT, _STEPS])
    return default_cache() / "bases" / f"{name}-{hashlib.sha256(decides.encode()).hexdigest()[:12]}"


def make_base(name: str, console: Console) -> Path:
    """Train the base if it is not there; a training that was stopped goes on. Returns the model's folder."""
    folder, base = base_folder(name), BASES[name]
    if (folder / "model" / "config.json").exists():
        return folder / "model"
    tokenizer = load_tokenizer("nano")
    console.print(f"training a small base of {name}: {_STEPS:,} steps of {_TOKENS:,} tokens")
    dataset = PoseDataset.from_source(
        _TEXT,
        tokenizer,
        train_length=base.window,
        target_length=base.window,
        held_out=0.1,
        positions=Positions(scheme="short"),
        examples=_STEPS * _TOKENS // base.window,
        passkey=0.1,
    )
    model = new_model(base, tokenizer.vocab_size)
    train(
        model,
        dataset,
        collate,
        _settings(base.window),
        folder=folder / "checkpoints",
        seed=0,
        resume=(folder / "checkpoints").exists(),
    )
    model.save_pretrained(folder / "partial")
    tokenizer.save_pretrained(folder / "partial")
    os.replace(folder / "partial", folder / "model")
    return folder / "model"


def new_model(base: SmallBase, vocabulary: int) -> PreTrainedModel:
    """Make the model with random weights: 4 layers, 192 wide, 3 heads of 64."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        base.model_type,
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512 if base.model_type == "llama" else 768,
        num_hidden_layers=4,
        num_attention_heads=3,
        max_position_embeddings=base.window,
        bos_token_id=0,
        eos_token_id=0,
        **base.differs,
    )
    return AutoModelForCausalLM.from_config(config)


def _settings(window: int) -> Training:
    return Training.model_validate(
        {
            "max_steps": _STEPS,
            "batch_size": _TOKENS // window,
            "per_device_train_batch_size": max(1, _TOKENS // 2 // window),
            "learning_rate": 3e-3,
            "lr_scheduler_type": "cosine",
            "adam_beta2": 0.95,
            "weight_decay": 0.1,
            "warmup_steps": 50,
            "save_steps": 250,
        }
    )

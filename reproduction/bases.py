"""Small bases besides the embedded model, trained here once on the user's text, or the recipe's, and kept in the cache.

Three stand for the paper's other families, with stock classes: GPT-J as Phi, whose block is the same (attention beside
the feed-forward layer, LayerNorm, a quarter of each head rotated); LLaMA2 and Baichuan2 as Llama with a window twice as
long, Baichuan2 with its own output head. The embedded model stands for LLaMA. Three more bases differ from each other
only in size and in the number of tokens that they were trained on.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from skipwise.data.examples import PoseDataset, collate
from skipwise.data.text import open_corpus
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data, Positions, Training
from skipwise.results.files import default_cache
from skipwise.training.trainer import train

_TOKENS = 8192  # a step


@dataclass(frozen=True)
class SmallBase:
    """A small architecture and its training.

    Attributes:
        model_type: of transformers.
        window: original length, in tokens.
        differs: its config where that is not the model type's default.
        width: of the residual stream; a head is 64 wide.
        layers: of the model.
        steps: of training, 8,192 tokens each.
    """

    model_type: str
    window: int
    differs: Mapping[str, Any]
    width: int = 192
    layers: int = 4
    steps: int = 1000


_TIED = {"tie_word_embeddings": True}
BASES = {
    "LLaMA2": SmallBase("llama", 512, _TIED),
    "GPT-J": SmallBase("phi", 256, {"partial_rotary_factor": 0.25, "tie_word_embeddings": False}),
    "Baichuan2": SmallBase("llama", 512, {"tie_word_embeddings": False}),
    "2.6M on 2M tokens": SmallBase("llama", 256, _TIED, steps=250),
    "2.6M on 8M tokens": SmallBase("llama", 256, _TIED),
    "12M on 8M tokens": SmallBase("llama", 256, _TIED, width=384, layers=6),
}


def base_folder(name: str, data: Data) -> Path:
    """The folder of a base, named by all that decides it, its text included.

    Raises:
        DataError: the text is missing or cannot be read.
    """
    base = BASES[name]
    text = _fingerprint(data.source, max_tokens=data.max_tokens, **data.reading)
    settings = _settings(base).model_dump(exclude={"save_dtype"})  # newer than the published bases, which are float32
    decides = [asdict(base), settings, text, data.held_out]
    if data.max_tokens is not None:
        decides.append(data.max_tokens)
    digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    return default_cache() / "bases" / f"{folder_stem(name)}-{digest}"


def folder_stem(name: str) -> str:
    """The name of a base as its folder has it, before the digest."""
    return name.replace(" ", "-")


@cache
def _fingerprint(source: str, **reading: Any) -> str:
    return open_corpus(Data(source=source, **reading)).fingerprint()


def make_base(name: str, data: Data, console: Console) -> Path:
    """Train the base if it is missing, or finish its training, and return the model's folder.

    Raises:
        DataError: the text is missing, cannot be read, or too short.
    """
    folder, base = base_folder(name, data), BASES[name]
    if not (folder / "model" / "config.json").exists():
        console.print(f"training a small base, {name}: {base.steps:,} steps of {_TOKENS:,} tokens")
        train_base(base, _settings(base), data, folder)
    return folder / "model"


def train_base(base: SmallBase, settings: Training, data: Data, folder: Path) -> None:
    """Train ``folder/model`` from nothing on a text less what is held out, with the embedded model's tokenizer; or go on."""
    tokenizer, checkpoints = load_tokenizer("nano"), folder / "checkpoints"
    shared = data.model_dump(include={*data.reading, "source", "held_out", "max_tokens", "cache"})
    dataset = PoseDataset.from_source(
        Data(**shared, passkey=0.1),
        tokenizer,
        train_length=base.window,
        target_length=base.window,
        positions=Positions(scheme="short"),
        examples=settings.max_steps * settings.batch_size,
    )
    model = new_model(base, tokenizer.vocab_size)
    train(model, dataset, collate, settings, folder=checkpoints, seed=0, resume=checkpoints.exists())
    model.save_pretrained(folder / "partial")
    tokenizer.save_pretrained(folder / "partial")
    os.replace(folder / "partial", folder / "model")


def new_model(base: SmallBase, vocabulary: int) -> PreTrainedModel:
    """Make the model with random weights; heads are 64 wide."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        base.model_type,
        vocab_size=vocabulary,
        hidden_size=base.width,
        intermediate_size=8 * base.width // 3 if base.model_type == "llama" else 4 * base.width,
        num_hidden_layers=base.layers,
        num_attention_heads=base.width // 64,
        max_position_embeddings=base.window,
        bos_token_id=0,
        eos_token_id=0,
        **base.differs,
    )
    return AutoModelForCausalLM.from_config(config)


def _settings(base: SmallBase) -> Training:
    return Training.model_validate(
        {
            "max_steps": base.steps,
            "batch_size": _TOKENS // base.window,
            "per_device_train_batch_size": max(1, _TOKENS // 2 // base.window),
            "learning_rate": 3e-3,
            "lr_scheduler_type": "cosine",
            "adam_beta2": 0.95,
            "weight_decay": 0.1,
            "warmup_steps": min(50, base.steps),
            "save_steps": 250,
        }
    )

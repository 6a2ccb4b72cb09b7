"""Prepare a run: compute and refuse everything before a weight is loaded or a folder is made."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.examples import PoseDataset
from skipwise.data.store import Split, TokenStore, check_vocabulary, split_documents, tokenise
from skipwise.errors import DataError, RecipeError, counted
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.attention import other_layers
from skipwise.model.config import (
    Origin,
    load_config,
    read_origin,
    require_unchanged,
    resolve,
    slides_in_some,
    weights_fingerprint,
)
from skipwise.model.extension import KEPT, Extension, extension_of
from skipwise.model.forward import Precision, choose_precision, default_device, dtype_of
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.names import short_name
from skipwise.recipes.schema import Recipe
from skipwise.results.run_folder import BASE_MODEL, TRAINING_TEXT
from skipwise.training import processes
from skipwise.training.arguments import training_arguments


@dataclass(frozen=True)
class PreparedRun:
    """A recipe with everything that is known before training."""

    recipe: Recipe
    config: Any  # of the base, as transformers reads it
    extension: Extension
    train_length: int  # L_c, in tokens
    window: int  # tokens that the model reads of one example
    tokenizer: PreTrainedTokenizerBase
    store: TokenStore  # the tokens of the training text
    split: Split  # its documents
    device: torch.device

    @property
    def name(self) -> str:
        """Return a name for the run: model, target and method."""
        recipe, scheme = self.recipe, self.recipe.positions.scheme
        kept = self.extension.interpolation == KEPT
        method = f"{'keep' if kept else recipe.interpolation}{'' if scheme == 'pose' else f'-{scheme}'}{'-lora' if recipe.lora else ''}"
        return f"{short_name(recipe.model)}-{format_length(self.extension.target_length)}-{method}"

    @property
    def precision(self) -> Precision:
        return choose_precision(self.recipe.training.precision, self.device)

    @property
    def base_dtype(self) -> torch.dtype:
        """Return the dtype to load the model in: float32, or a lower one for weights that LoRA freezes."""
        return dtype_of(self.precision) if self.recipe.lora else torch.float32

    @property
    def origin(self) -> Origin:
        """Return the provenance of the trained model, with the documents of its base."""
        recipe, rope, target = self.recipe, self.extension.rope, self.extension.target_length
        documents, base = self.store.digests[self.split.train], read_origin(recipe.model)
        documents = np.union1d(documents, base.documents) if base else documents
        return Origin(
            recipe.model, rope.original_length, recipe.data, documents, self.decides[BASE_MODEL], target, rope.theta
        )

    @cached_property
    def decides(self) -> dict[str, str]:
        """Return the fingerprints of what decides the model besides the settings."""
        base = weights_fingerprint(self.recipe.model)  # auto may choose another precision on another machine
        return {TRAINING_TEXT: self.store.fingerprint, BASE_MODEL: base, "precision": self.precision}

    @property
    def facts(self) -> dict[str, object]:
        """Return the model, text and precision for ``run.json``."""
        extension, store = self.extension, self.store
        return {
            "model": {
                "name": self.recipe.model,
                "original_length": extension.rope.original_length,
                "target_length": extension.target_length,
                "train_length": self.window,
                "factor": extension.factor,
                "interpolation": extension.interpolation,
            },
            "data": {
                "source": self.recipe.data.source,
                "fingerprint": store.fingerprint,
                "documents": len(store),
                "tokens": int(store.lengths.sum()),
                "kept": len(self.split.train),
                "dropped": self.split.dropped,
                "held_out": len(self.split.held_out),
            },
            "precision": self.precision,
            "micro_batch": self.recipe.training.per_device_train_batch_size,
        }

    @cached_property
    def dataset(self) -> PoseDataset:
        """The examples of the run in order: index = step * global_batch_size + place in the batch."""
        recipe = self.recipe
        return PoseDataset(
            self.store,
            self.split.train,
            train_length=self.train_length,
            target_length=self.extension.target_length,
            positions=recipe.positions,
            data=recipe.data,
            examples=recipe.training.max_steps * recipe.training.global_batch_size,
            seed=recipe.seed,
        )


def prepare(recipe: Recipe, console: Console, launch: str | None = None) -> PreparedRun:
    """Read the config, tokenise the text (cached) and split it; ``launch`` is the engine of a dry run."""
    require_unchanged(Path(resolve(recipe.model)))
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    window, train_length = window_of(recipe, extension), recipe.train_length_of(extension.rope.original_length)
    training_arguments(recipe.training, Path("."), recipe.seed)  # refuses wrong settings before the text is read
    engine, rules = processes.sharding(launch), recipe.lora
    if engine and recipe.evaluation.eval_steps:
        raise RecipeError(
            f"evaluation.eval_steps = {recipe.evaluation.eval_steps} needs the whole model, and {engine} shards it; leave it "
            "and evaluation.save_best out, or choose --launch ddp"
        )
    if engine and rules and rules.load_in_4bit:
        raise RecipeError(f"lora.load_in_4bit cannot be sharded by {engine}; choose --launch ddp")
    if rules:
        lora.require_installed(rules)
        if rules.save_as == "adapter" and lora.base_of(resolve(recipe.model)):
            raise RecipeError(f"{recipe.model} is an adapter, which cannot be another's base; set lora.save_as=merged")
    tokenizer = load_tokenizer(recipe.model)
    store = tokenise(recipe.data, tokenizer, console)
    check_vocabulary(store, config.vocab_size)
    whole = recipe.positions.scheme == "full_length"
    split = split_documents(store, recipe.data, window, whole=whole)
    short = int((store.lengths[split.train] < train_length).sum())
    packed = bool(store.holds_conversations and short)
    if packed and not whole and (kinds := other_layers(config.get_text_config())):
        raise DataError(
            f"{counted(short, 'document')} under {train_length:,} tokens cannot be packed: {', '.join(kinds)} layers would mix "
            f"them. Set data.min_tokens={train_length} to leave them out"
        )
    if "flash" in (recipe.attn_implementation or "") and (packed or slides_in_some(config)):
        raise RecipeError(
            f"attn_implementation {recipe.attn_implementation} takes no masks by position, which "
            f"{'packed conversations' if packed else 'sliding-window layers'} need; leave it out"
        )
    run = PreparedRun(recipe, config, extension, train_length, window, tokenizer, store, split, default_device())
    _ = run.dataset  # refuses a position plan that does not fit the lengths
    return run


def window_of(recipe: Recipe, extension: Extension) -> int:
    """Return how many tokens the model reads of one training example."""
    train_length = recipe.train_length_of(extension.rope.original_length)
    if train_length > extension.target_length:
        raise RecipeError(
            f"train_length {train_length:,} must not exceed the target {extension.target_length:,}; lower it, or set null for "
            "the default"
        )
    return extension.target_length if recipe.positions.scheme == "full_length" else train_length

"""Prepare a run: everything that can be computed or refused before a weight is loaded or a folder is made."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.examples import PoseDataset
from skipwise.data.split import Split, split_documents
from skipwise.data.tokenising import tokenise
from skipwise.data.tokens import TokenStore, check_vocabulary
from skipwise.errors import DataError, ModelError, RecipeError, counted
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.config import load_config, resolve
from skipwise.model.extension import Extension, extension_of
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.model.memory import machine_memory, optimizer_bytes, parameters_of
from skipwise.model.origin import Origin, read_origin
from skipwise.model.precision import Precision, choose_precision, default_device, dtype_of
from skipwise.model.sealed import require_unchanged
from skipwise.model.sliding import other_layers
from skipwise.model.teacher import Teacher
from skipwise.recipes.names import short_name
from skipwise.recipes.schema import Lora, Recipe
from skipwise.results.run_folder import BASE_MODEL, TRAINING_TEXT
from skipwise.training import processes
from skipwise.training.arguments import training_arguments


@dataclass(frozen=True)
class PreparedRun:
    """A recipe with everything that is known before training."""

    recipe: Recipe
    extension: Extension
    train_length: int  # L_c, in tokens
    window: int  # tokens that the model reads of one example
    tokenizer: PreTrainedTokenizerBase
    store: TokenStore  # the tokens of the training text
    split: Split  # its documents
    device: torch.device

    @property
    def name(self) -> str:
        """A name for the run: model, target and method."""
        arm = "" if self.recipe.arm == "skipwise" else f"-{self.recipe.arm}"
        adapted = "-lora" if self.recipe.lora else ""
        target = format_length(self.extension.target_length)
        return f"{short_name(self.recipe.model)}-{target}-{self.recipe.interpolation}{arm}{adapted}"

    @property
    def precision(self) -> Precision:
        return choose_precision(self.recipe.training.precision, self.device)

    @property
    def base_dtype(self) -> torch.dtype:
        """The dtype to load the model in: float32, or a lower one for weights that LoRA freezes."""
        if self.recipe.lora is None or self.recipe.lora.base == "float32":
            return torch.float32
        return dtype_of(self.precision)

    def teacher(self, student: Any) -> Teacher | None:
        """Return the base that teaches ``student``, if one does: a copy of its own, or the one that LoRA leaves frozen."""
        if self.recipe.teacher is None:
            return None
        name, window = self.recipe.model, self.extension.rope.original_length
        if self.recipe.lora:
            return Teacher.inside(student, load_config(name), window)
        model = load_model(name, dtype=dtype_of(self.precision), device=self.device)
        return Teacher(model.requires_grad_(False), window)

    @property
    def origin(self) -> Origin:
        """What the trained model is made from; what its base was trained on counts too."""
        documents, base = self.store.digests[self.split.train], read_origin(self.recipe.model)
        if base:
            documents = np.union1d(documents, base.documents)
        rope, target = self.extension.rope, self.extension.target_length
        base_fingerprint, text = self.decides[BASE_MODEL], self.recipe.data
        return Origin(
            self.recipe.model, rope.original_length, text, documents, base_fingerprint, target, rope_theta=rope.theta
        )

    @cached_property
    def decides(self) -> dict[str, str]:
        """Fingerprints of what decides the model besides the settings."""
        return {TRAINING_TEXT: self.store.fingerprint, BASE_MODEL: weights_fingerprint(self.recipe.model)}

    @property
    def facts(self) -> dict[str, object]:
        """What ``run.json`` says of the model, of the text, and of the precision."""
        extension, store = self.extension, self.store
        model = {
            "name": self.recipe.model,
            "original_length": extension.rope.original_length,
            "target_length": extension.target_length,
            "train_length": self.window,
            "factor": extension.factor,
            "interpolation": extension.interpolation,
            "margin": extension.margin,
        }
        data = {
            "source": self.recipe.data.source,
            "fingerprint": store.fingerprint,
            "documents": len(store),
            "tokens": int(store.lengths.sum()),
            "kept": len(self.split.train),
            "dropped": self.split.dropped,
            "held_out": len(self.split.held_out),
        }
        return {"model": model, "data": data, "precision": self.precision}

    @cached_property
    def planned(self) -> PoseDataset:
        """The examples before the base has written: plans can be drawn, but no example is made of its texts."""
        return self.dataset()

    def dataset(self, written: np.ndarray | None = None) -> PoseDataset:
        """Return the examples of the run in order: index = step * batch_size + place in the batch.

        ``written`` are the texts of the base.
        """
        recipe, teacher = self.recipe, self.recipe.teacher
        if teacher and written is None:
            teacher = teacher.model_copy(update={"written": 0.0})
        return PoseDataset(
            self.store,
            self.split.train,
            train_length=self.train_length,
            target_length=self.extension.reach,
            tokenizer=self.tokenizer,
            positions=recipe.positions.model_copy(update={"margin": 0.0}),  # which the reach holds
            data=recipe.data,
            teacher=teacher,
            written=written,
            examples=recipe.training.max_steps * recipe.training.batch_size,
            seed=recipe.seed,
        )


def prepare(recipe: Recipe, console: Console, launch: str | None = None) -> PreparedRun:
    """Read the model's config, tokenise the text (cached) and split it; no weights are loaded yet.

    ``launch`` is the engine of a run that is only planned; one that has begun knows its own.
    """
    require_unchanged(Path(resolve(recipe.model)))
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    window_of(recipe, extension)  # refuses windows longer than the target
    train_length = recipe.train_length_of(extension.rope.original_length)
    training_arguments(recipe.training, Path("."), recipe.seed)  # refuses an unknown field before the text is read
    if engine := processes.sharding(launch):
        _check_sharded(recipe, engine)
    if recipe.lora:
        _check_lora(recipe.model, recipe.lora)
    tokenizer = load_tokenizer(recipe.model)
    store = tokenise(recipe.data, tokenizer, console)
    check_vocabulary(store, config.vocab_size)
    window, whole = window_of(recipe, extension), recipe.positions.scheme == "full"
    split = split_documents(store, recipe.data, window, whole=whole)
    if store.holds_conversations and not whole:
        _check_layers(config, store.lengths[split.train], train_length)
    run = PreparedRun(recipe, extension, train_length, window, tokenizer, store, split, default_device())
    _ = run.planned  # refuses a position plan that does not fit the lengths
    return run


def window_of(recipe: Recipe, extension: Extension) -> int:
    """How many tokens the model reads of one training example.

    Raises:
        RecipeError: windows longer than the target.
    """
    train_length = recipe.train_length_of(extension.rope.original_length)
    if train_length > extension.target_length:
        raise RecipeError(
            f"train_length {train_length:,} must not exceed the target {extension.target_length:,}; set another train_length, "
            "or null for the default"
        )
    return extension.reach if recipe.positions.scheme == "full" else train_length


def require_trainable(recipe: Recipe, *, several: bool = False) -> None:
    """Refuse a model that one process is certain not to train on this machine, before the text is read.

    Of ``several`` processes, which may share a model or a machine, nothing is certain.

    Trained weights and their gradients are float32, and Adam holds two moments of each; frozen weights have the
    computing precision, or 4 bits. Activations come on top. Additions are merged in the machine's memory.

    Raises:
        ModelError: says what it takes and what there is.
    """
    device = default_device()
    memory, parameters = machine_memory(device), parameters_of(load_config(recipe.model))
    if memory is None or parameters is None or several:
        return
    low = dtype_of(choose_precision(recipe.training.precision, device)).itemsize
    if rules := recipe.lora:
        each = {"4bit": 0.5, "float32": 4}.get(rules.base, low)
        what = "holding frozen weights"
        ways = "a smaller model, or lora.base=4bit" if rules.base != "4bit" else "a smaller model"
    else:
        each = 8 + (optimizer_bytes(recipe.training.optim) or (0,))[0]
        what = "training all weights, with gradients and what the optimizer keeps,"
        ways = "--lora, which trains low-rank additions, a smaller model, or several GPUs (--launch zero3)"
        if recipe.teacher and each * parameters <= memory:
            each, what, ways = each + low, f"{what} beside a copy of the base that teaches", f"teacher=null, or {ways}"
    if (needed := each * parameters) > memory:
        place = "machine" if device.type == "cpu" else "GPU"
        raise ModelError(
            f"{what} of {recipe.model}, {parameters:,} parameters, takes {needed / 1e9:,.0f} GB at the least, and this {place} "
            f"has {memory / 1e9:,.0f} GB; choose {ways}"
        )
    beside = machine_memory(torch.device("cpu"))
    if rules and rules.saved == "merged" and beside is not None and (needed := 4 * parameters) > beside:
        raise ModelError(
            f"merging the additions after training takes {recipe.model} in float32, {needed / 1e9:,.0f} GB of the machine's "
            f"memory, and it has {beside / 1e9:,.0f} GB; set lora.saved=adapter, and merge it on a larger machine"
        )


def _check_layers(config: Any, lengths: np.ndarray, train_length: int) -> None:
    """Refuse to pack short documents for a model with layers that take no mask of packed texts."""
    short = int((lengths < train_length).sum())
    if short and (kinds := other_layers(config.get_text_config())):
        raise DataError(
            f"{counted(short, 'document')} of fewer than {train_length:,} tokens cannot be packed: the model's layers of kind "
            f"{', '.join(kinds)} would read across them; set data.min_tokens={train_length} to leave them out"
        )


def _check_sharded(recipe: Recipe, engine: str) -> None:
    """Refuse what needs the whole model in one process, where processes hold shards."""
    if recipe.evaluation.steps:
        raise RecipeError(
            f"evaluation.steps = {recipe.evaluation.steps} measures the model during training, and under {engine} each "
            "process holds only a shard of it; leave it out, with evaluation.keep, or choose --launch ddp"
        )
    if recipe.lora and recipe.lora.base == "4bit":
        raise RecipeError(f"lora.base = '4bit' cannot be sharded by {engine}; choose --launch ddp")


def _check_lora(model: str, rules: Lora) -> None:
    lora.require_installed(rules)
    if rules.saved == "adapter" and lora.base_of(resolve(model)):
        raise RecipeError(
            f"model {model!r} is itself an adapter, and an adapter cannot be its base; set lora.saved=merged"
        )

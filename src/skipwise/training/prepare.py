"""A recipe with everything that can be known before training: the model's window, the text, the plan.

Whatever a user can get wrong is refused here, before a weight is loaded or a folder made.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.examples import PoseDataset
from skipwise.data.tokenising import tokenise
from skipwise.data.tokens import TokenStore, check_vocabulary, dropped_message, keep_long, split_by_name
from skipwise.errors import DataError, RecipeError
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.loading import load_config, load_tokenizer, resolve
from skipwise.model.precision import AUTOCAST, choose_precision, default_device
from skipwise.model.rope import Extension, extension_of, sliding_layers
from skipwise.recipes.schema import Lora, Recipe
from skipwise.training import processes
from skipwise.training.arguments import training_arguments


@dataclass(frozen=True)
class Job:
    """A recipe with everything that can be known before training.

    Attributes:
        recipe: as given.
        extension: the model's RoPE, the target, the interpolation.
        train_length: window trained on, in tokens.
        tokenizer: the model's own.
        store: the tokens of the training text.
        train: indices into the store of the documents trained on.
        held_out: indices of the documents held out by name, of any length.
        shortest: the fewest tokens of a document that is kept.
        dropped: how many documents were shorter.
        device: where training and evaluation run.
    """

    recipe: Recipe
    extension: Extension
    train_length: int
    tokenizer: PreTrainedTokenizerBase
    store: TokenStore
    train: np.ndarray
    held_out: np.ndarray
    shortest: int
    dropped: int
    device: torch.device

    @property
    def name(self) -> str:
        """A name for the run: model, target and method."""
        model = Path(self.recipe.model).name or "model"
        scheme = "" if self.recipe.positions.scheme == "pose" else f"-{self.recipe.positions.scheme}"
        adapted = "-lora" if self.recipe.lora else ""
        return f"{model}-{format_length(self.extension.target_length)}-{self.recipe.interpolation}{scheme}{adapted}"

    @property
    def precision(self) -> str:
        """Of training and evaluation: bf16 or fp16 autocast, or float32."""
        return choose_precision(self.recipe.training.precision, self.device)

    @property
    def base_dtype(self) -> torch.dtype:
        """Of the weights that are loaded: float32, but for a base that LoRA leaves as it is."""
        rules = self.recipe.lora
        computed = AUTOCAST[self.precision]
        return torch.float32 if rules is None or rules.base == "float32" or computed is None else computed

    def dataset(self) -> PoseDataset:
        """Every example of the run, in order: index = step * batch_size + place in the batch."""
        recipe = self.recipe
        return PoseDataset(
            self.store,
            self.train,
            train_length=self.train_length,
            target_length=self.extension.target_length,
            tokenizer=self.tokenizer,
            positions=recipe.positions,
            examples=recipe.training.max_steps * recipe.training.batch_size,
            seed=recipe.seed,
            train_jumps=recipe.data.train_jumps,
            min_context=recipe.data.min_context,
            passkey=recipe.data.passkey,
        )


def prepare(recipe: Recipe, console: Console) -> Job:
    """Read the model's config, tokenise the text (cached) and split it; no weights are loaded yet.

    Raises:
        SkipwiseError: whatever of the model, the text and the recipe does not fit together.
    """
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    train_length = recipe.train_length or extension.rope.original_length
    if train_length > extension.target_length:
        raise RecipeError(
            f"train_length {train_length:,} must not exceed the target {extension.target_length:,}; lower it"
        )
    tokenizer = load_tokenizer(recipe.model)
    store = tokenise_source(recipe, recipe.data.source, tokenizer, console)
    check_vocabulary(store, config.vocab_size)
    train, held_out = split_by_name(store, recipe.data.held_out)
    needed = extension.target_length if recipe.positions.scheme == "full" else train_length
    shortest = max(recipe.data.min_tokens or 0, needed)
    long = keep_long(store, shortest)
    kept = np.intersect1d(train, long)
    if len(kept) == 0:
        raise DataError(
            f"of {len(store):,} documents none of {shortest:,} tokens or more is left to train on after holding out "
            f"{len(held_out):,}; the longest are {_longest(store, train)}; give longer text, lower the target, "
            "or lower data.held_out"
        )
    training_arguments(recipe.training, Path("."), recipe.seed)  # an unknown field is refused before any work
    if recipe.evaluation.steps and processes.launched() > 1 and processes.engine() != "ddp":
        raise RecipeError(
            f"evaluation.steps = {recipe.evaluation.steps} measures the model while it is trained, of which each process "
            f"holds a share under {processes.engine()}; leave it out, with evaluation.keep, or take --launch ddp"
        )
    if recipe.lora:
        _check_lora(recipe, recipe.lora)
    device = default_device()
    job = Job(
        recipe,
        extension,
        train_length,
        tokenizer,
        store,
        kept,
        held_out,
        shortest,
        len(train) - len(kept),
        device,
    )
    job.dataset()  # so is a plan that the lengths cannot meet
    return job


def _check_lora(recipe: Recipe, rules: Lora) -> None:
    lora.require_installed(rules)
    if rules.base == "4bit" and processes.launched() > 1 and processes.engine() != "ddp":
        raise RecipeError(
            f"lora.base = '4bit' cannot be held in shares by {processes.engine()}; take --launch ddp"
        )
    if rules.saved == "adapter" and lora.base_of(resolve(recipe.model)):
        raise RecipeError(
            f"model {recipe.model!r} is an adapter itself, on which no adapter can stand; set lora.saved=merged"
        )


def _longest(store: TokenStore, documents: np.ndarray) -> str:
    order = documents[np.argsort(-store.lengths[documents], kind="stable")][:3]
    return ", ".join(f"{store.names[i]} ({store.lengths[i]:,})" for i in order) or "none"


def describe(job: Job, console: Console) -> None:
    """Print the plan: documents, steps, tokens, and the positions of three examples."""
    recipe, ext, data = job.recipe, job.extension, job.store
    steps, batch = recipe.training.max_steps, recipe.training.batch_size
    tokens = steps * batch * job.dataset().plans(np.arange(1)).position_ids().shape[1]
    console.print(
        f"{recipe.model}: {ext.rope.original_length:,} -> {ext.target_length:,} tokens "
        f"(x{ext.factor:g}, {recipe.interpolation}, {recipe.positions.scheme})",
        style="bold",
    )
    console.print(
        f"text: {recipe.data.source}, {len(data):,} documents, {int(data.lengths.sum()):,} tokens; "
        f"{len(job.held_out):,} held out by name"
    )
    shortest = job.shortest
    setting = "train_length" if shortest == job.train_length else "data.min_tokens"
    console.print(dropped_message(len(job.train) + job.dropped, len(job.train), shortest, setting))
    console.print(_assumed(job.tokenizer))
    console.print(
        f"training: {steps:,} steps of {batch:,} x {tokens // steps // batch:,} tokens = {tokens:,} tokens, "
        f"{job.precision} on {job.device.type}"
    )
    if slide := sliding_layers(load_config(recipe.model)):
        console.print(slide)
    if recipe.lora:
        trained, parameters = lora.trained_share(load_config(recipe.model), recipe.lora)
        console.print(
            f"LoRA of rank {recipe.lora.rank}: {trained:,} of {parameters:,} parameters are trained "
            f"({trained / parameters:.2%})"
        )


def _assumed(tokenizer: PreTrainedTokenizerBase) -> str:
    """What follows from the special tokens that the tokenizer has and lacks."""
    first = tokenizer("a").input_ids[:1]
    begins = tokenizer.bos_token is not None and first == [tokenizer.bos_token_id]
    beginning = (
        f"each document begins with {tokenizer.bos_token}" if begins else "documents begin without a BOS"
    )
    end = (
        f"; {tokenizer.eos_token} ends an answer"
        if tokenizer.eos_token
        else "; no EOS, answers end by length"
    )
    return f"tokenizer: {beginning}{end}; no padding is needed, every example is full"


def describe_examples(job: Job, console: Console) -> None:
    """Print the position plans of the first three examples, chunk by chunk."""
    plans = job.dataset().plans(np.arange(3))
    for example in range(3):
        parts, start = [], 0
        chunks = zip(plans.lengths[example], plans.skips[example], plans.offsets[example], strict=True)
        for length, skip, offset in list(chunks)[:4]:
            parts.append(
                f"positions {start + skip:,}..{start + skip + length - 1:,} <- text from {start + offset:,}"
            )
            start += length
        more = plans.lengths.shape[1] - len(parts)
        console.print(f"example {example}: " + "; ".join(parts) + (f"; {more:,} chunks more" if more else ""))


def tokenise_source(
    recipe: Recipe, source: str, tokenizer: PreTrainedTokenizerBase, console: Console
) -> TokenStore:
    """Tokenise ``source`` as the recipe's data section says; cached."""
    return tokenise(recipe.data.model_copy(update={"source": source}), tokenizer, console)

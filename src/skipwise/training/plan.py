"""Print the plan of a run: what it reads, trains and leaves out, and the positions of its first examples."""

from itertools import pairwise

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.packing import can_skip
from skipwise.errors import counted
from skipwise.model import lora
from skipwise.model.config import load_config
from skipwise.model.extension import extension_told, large_factor, replaced_scaling
from skipwise.model.rope import sliding_layers
from skipwise.recipes.schema import Training
from skipwise.training.prepare import PreparedRun

_LOOKED_AT = 4096  # packed conversations, of which one with a place to skip is looked for


def print_plan(run: PreparedRun, console: Console) -> None:
    """Print the plan of a run: documents, tokenizer, steps, tokens and trained parameters."""
    recipe, ext, store = run.recipe, run.extension, run.store
    config = load_config(recipe.model)
    steps, batch = recipe.training.max_steps, recipe.training.batch_size
    data = run.planned
    window = run.window
    console.print(f"{recipe.model}: {extension_told(config, ext, recipe.arm)}", style="bold")
    lines = [
        replaced_scaling(config, ext),
        f"text: {recipe.data.source}, {counted(len(store), 'document')}, {int(store.lengths.sum()):,} tokens; "
        f"{len(run.split.held_out):,} held out by name",
        run.split.told,
        _untrained(len(run.split.train) - len(data.documents), data.rules.context),
        _packed(run),
        _special_tokens(run.tokenizer),
        f"training: {counted(steps, 'step')} of {batch:,} x {window:,} tokens = {steps * batch * window:,} tokens, "
        f"{run.precision} on {run.device.type}",
        _passes(run, steps * batch * window),
        _rate(recipe.training),
        f"margin: {'trained' if ext.interpolation == 'none' else 'interpolated'} for {ext.reach:,} positions, {ext.margin:.3g} of the "
        "target beyond it"
        if ext.margin
        else None,
        large_factor(ext),
        sliding_layers(config),
    ]
    if recipe.lora:
        trained, parameters = lora.trained_share(config, recipe.lora)
        lines.append(
            f"LoRA of rank {recipe.lora.rank}: {trained:,} of {parameters:,} parameters are trained "
            f"({trained / parameters:.2%})"
        )
    for line in filter(None, lines):
        console.print(line)


def _passes(run: PreparedRun, tokens: int) -> str | None:
    """Return a sentence on how often the text is read, if it is more than once."""
    times = tokens / int(run.store.lengths[run.split.train].sum())
    return f"so many tokens read the text {times:,.1f} times over" if times > 1 else None


def _rate(settings: Training) -> str:
    """Return a sentence on what decides how far a step goes, which a recipe for another model may have set."""
    warmup = settings.warmup_steps
    first = f"{warmup:.0%} of the steps" if 0 < warmup < 1 else counted(int(warmup), "step")
    if warmup > settings.max_steps:  # a trial run, shorter than the default
        first += f", more than the {settings.max_steps:,} of training"
    together = counted(settings.per_device_train_batch_size, "window")
    return (
        f"learning rate {settings.learning_rate:g} after a warm-up of {first}, {settings.optim}; {together} in a pass"
    )


def _untrained(documents: int, context: int) -> str | None:
    """Return a sentence on how many documents have no token that is trained, if some do not."""
    if not documents:
        return None
    return f"left out {counted(documents, 'document')}: no token that is trained there has {context:,} of the document's before it"


def _packed(run: PreparedRun) -> str | None:
    """Return a sentence on how many short documents are packed, if some are."""
    packed = run.split.train[run.store.lengths[run.split.train] < run.train_length]
    if not (short := len(packed)):
        return None
    told = (
        f"{counted(short, 'document')} of fewer than {run.train_length:,} tokens {'is' if short == 1 else 'are'} packed, several "
        "in a window; none attends to another"
    )
    if run.recipe.positions.scheme == "pose" and not can_skip(run.store, packed[:_LOOKED_AT]).any():
        told += (
            ". None of them has a turn of the assistant before its last, where positions could skip: they train no position "
            f"beyond {run.train_length:,}. Add longer documents or conversations"
        )
    return told


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a sentence on how documents begin and answers end, given the tokenizer's special tokens."""
    first = tokenizer("a").input_ids[:1]
    bos = tokenizer.bos_token is not None and first == [tokenizer.bos_token_id]
    begin = f"each document begins with {tokenizer.bos_token}" if bos else "documents begin without a BOS"
    eos = tokenizer.eos_token
    end = f"{eos} ends an answer" if eos else "no EOS, answers end by length"
    return f"tokenizer: {begin}; {end}; no padding is needed, every example is full"


def print_examples(run: PreparedRun, console: Console) -> None:
    """Print the positions of the first three examples, chunk by chunk."""
    data, teacher = run.planned, run.recipe.teacher
    for number in range(min(3, len(data))):
        positions = data[number]["position_ids"]
        cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        parts = [f"{positions[begin]:,}..{positions[end - 1]:,}" for begin, end in pairwise(cuts)][:4]
        more = len(cuts) - 1 - len(parts)
        console.print(
            f"example {number}: positions " + "; ".join(parts) + (f"; {counted(more, 'more chunk')}" if more else "")
        )
    if teacher and teacher.written:
        console.print(
            f"in training {teacher.written:.0%} of the examples are text that the base writes first, without skips"
        )

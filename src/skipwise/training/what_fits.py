"""What makes a run fit its GPUs, and what fills them better."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from transformers import PretrainedConfig

from skipwise.method.lengths import format_length
from skipwise.model import checkpointing
from skipwise.recipes.schema import Lora, Recipe
from skipwise.training.cost import CostEstimate, Hardware, estimate_cost

ADAMW, _EIGHT_BITS = ("adamw_torch", "adamw_torch_fused"), "adamw_8bit"
_SHORTEST = 2048  # tokens of a window that is proposed
_FULL_PASS = 2**14  # tokens; with 2,048 a model of 7B reached 12 to 20% of an H200's peak, as if it waited for kernels
_MOST_GPUS = 64


def fuller_pass(
    config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware
) -> tuple[int, CostEstimate] | None:
    """Return how many windows a pass of at most 16,384 tokens could read, and what that takes; None if no more fit.

    The windows divide a step without rest.
    """
    batch, gpus, micro = recipe.training.batch_size, hardware.gpus, recipe.training.per_device_train_batch_size
    for examples in range(min(_FULL_PASS // window, batch // gpus), micro, -1):
        if batch % (gpus * examples) == 0:
            estimate = estimate_cost(config, recipe, window, batch, hardware, examples)
            if hardware.holds(estimate.memory):
                return examples, estimate
    return None


def smallest_change(
    config: PretrainedConfig, recipe: Recipe, planned: CostEstimate, hardware: Hardware, on_try: Callable[[str], object]
) -> tuple[str, CostEstimate] | None:
    """Return the options of ``skipwise plan`` that make a run fit, and what it then takes; None if none of these do.

    ``planned`` is what the run takes without them.

    First what makes activations smaller, each kept when the next is added: single windows in a pass, activations computed
    again in backward, windows down to an eighth and no shorter than 2k. Where that is not enough, the same again after each
    of AdamW's moments in 8 bits (Dettmers et al., 2022), a run without its teacher, low-rank additions, frozen weights in 4 bits,
    and 2 to 64 GPUs that share the weights; so a window is not made shorter where weights are what does not fit. ``on_try``
    gets the options before each.
    """
    for lighter, run, gpus in lighter_weights(recipe, hardware.gpus):
        known = planned.fixed - (0 if run.teacher else planned.teacher)
        same = (run.lora, run.training.optim, gpus) == (recipe.lora, recipe.training.optim, hardware.gpus)
        if same and not hardware.holds(known):
            continue
        for smaller, changed, shorter in _smaller_activations(run, planned.window):
            words = " ".join([*smaller, *lighter])
            if not words or recipe.training.batch_size % (gpus * changed.training.per_device_train_batch_size):
                continue  # the plan itself, which does not fit, or what would be refused
            on_try(words)
            batch = recipe.training.batch_size
            estimate = estimate_cost(config, changed, shorter, batch, replace(hardware, gpus=gpus))
            if hardware.holds(estimate.memory):
                return words, estimate
            if not hardware.holds(estimate.fixed):
                break
    return None


def lighter_weights(recipe: Recipe, gpus: int) -> Iterator[tuple[list[str], Recipe, int]]:
    """Yield the run and its changes that make weights lighter: options, recipe, GPUs."""
    words: list[str] = []
    yield words, recipe, gpus
    if recipe.lora is None:
        whole = recipe
        if gpus == 1 and recipe.training.optim in ADAMW:
            words = [f"--set training.optim={_EIGHT_BITS}"]
            whole = recipe.model_copy(update={"training": recipe.training.model_copy(update={"optim": _EIGHT_BITS})})
            yield words, whole, gpus
        if recipe.teacher:
            yield [*words, "--set teacher=null"], whole.model_copy(update={"teacher": None}), gpus
        words = ["--lora"]
        recipe = recipe.model_copy(update={"lora": Lora()})
        yield words, recipe, gpus
    assert recipe.lora is not None
    if recipe.lora.base != "4bit" and gpus == 1:
        low = recipe.lora.model_copy(update={"base": "4bit"})
        yield [*words, "--set lora.base=4bit"], recipe.model_copy(update={"lora": low}), gpus
    while recipe.lora.base != "4bit" and 2 * gpus <= _MOST_GPUS:
        gpus *= 2
        yield [*words, f"--gpus {gpus}"], recipe, gpus


def _smaller_activations(recipe: Recipe, window: int) -> Iterator[tuple[list[str], Recipe, int]]:
    """Yield the run and its changes that make activations smaller: options, recipe, tokens of a window."""
    words: list[str] = []
    yield words, recipe, window
    training = recipe.training
    if training.per_device_train_batch_size > 1:
        words = [*words, "--set training.per_device_train_batch_size=1"]
        training = training.model_copy(update={"per_device_train_batch_size": 1})
        yield words, recipe.model_copy(update={"training": training}), window
    if not checkpointing.is_on(training):
        words = [*words, "--set training.gradient_checkpointing=true"]
        training = training.model_copy(update={"gradient_checkpointing": True})
        yield words, recipe.model_copy(update={"training": training}), window
    recipe, whole = recipe.model_copy(update={"training": training}), window
    if recipe.positions.scheme == "full":
        return
    while window // 2 >= max(_SHORTEST, whole // 8):
        window //= 2
        yield [*words, f"--set train_length={format_length(window)}"], recipe, window

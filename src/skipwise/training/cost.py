"""Memory and time of a run, before it takes any GPU hour: a run beside full-length training.

Computed from the model's config alone: one step of each runs without data (``model/step_cost.py``), and its bytes and
operations are divided over the GPUs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Column, Table
from transformers import PretrainedConfig

from skipwise.errors import ModelError, RecipeError, SkipwiseError, reason
from skipwise.method.lengths import format_length
from skipwise.model import checkpointing
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of, extension_told, large_factor, replaced_scaling
from skipwise.model.memory import experts_of, optimizer_bytes
from skipwise.model.step_cost import StepCost, StepSettings, step_cost
from skipwise.progress import doing
from skipwise.recipes.arms import arm_name
from skipwise.recipes.schema import Lora, Recipe
from skipwise.training import written_text
from skipwise.training.arguments import accumulation, known_fields
from skipwise.training.prepare import PreparedRun, window_of

_MOST_TOKENS = 2**26  # in one forward pass: four times the longest target
_SHORTEST = 2048  # tokens of a window that is proposed
ROOM = 1.5e9  # bytes of a GPU that the CUDA context and fragmentation take
_FULL_PASS = 2**14  # tokens; with 2,048 a model of 7B reached 12 to 20% of an H200's peak, as if it waited for kernels
# Of the peak, by LoRA and with all weights: a model of 7B, windows of 2,048 in single passes, one H200.
_MEASURED = (0.12, 0.2)
_MOST_GPUS = 64
_ADAMW, _EIGHT_BITS = ("adamw_torch", "adamw_torch_fused"), "adamw_8bit"


@dataclass(frozen=True)
class Hardware:
    """The GPUs that a run is planned for; several hold shards of weights, gradients and optimizer (ZeRO-3, FSDP)."""

    gpus: int = 1
    memory: float = 80e9  # bytes of each GPU
    peak: float = 312e12  # bf16 operations a second of each GPU, as its maker states
    utilisation: float = 0.4  # the fraction of the peak that training reaches

    def __post_init__(self) -> None:
        for name, value in {"gpus": self.gpus, "gpu-memory": self.memory / 1e9, "tflops": self.peak / 1e12}.items():
            if not 0 < value < math.inf:
                raise RecipeError(f"--{name} {value:g} must be a number above 0")
        if not 0 < self.utilisation <= 1:
            raise RecipeError(f"--utilisation {self.utilisation:g} must be above 0 and at most 1")

    def holds(self, peak: float) -> bool:
        """Whether a GPU holds so many bytes and leaves ``ROOM`` free."""
        return peak + ROOM <= self.memory


@dataclass(frozen=True)
class CostEstimate:
    """Memory of one GPU in bytes, and time of the whole run."""

    window: int  # tokens of one example
    batch: int  # examples a step, over all GPUs
    cost: StepCost  # of one micro-batch
    operations: float  # of one step, over all GPUs
    weights: float  # in a sharded run also the two layers that are gathered at a time
    gradients: float  # as they accumulate
    optimizer: float  # what the optimizer keeps, as Adam's two moments; in a sharded run also the float32 weights
    activations: float  # peak of what backward needs and the current operation holds
    teacher: float  # the frozen base, which each GPU holds whole; with LoRA it is the one that is trained on
    loading: float  # before training, when each process holds the whole model
    hours: float  # of the whole run

    @property
    def memory(self) -> float:
        """The peak in bytes."""
        return max(self.fixed, self.weights + self.gradients + self.optimizer + self.activations + self.teacher)

    @property
    def fixed(self) -> float:
        """The part of the peak in bytes that smaller activations leave."""
        return max(self.loading, self.weights + self.gradients + self.optimizer + self.teacher)


def estimate_cost(
    config: PretrainedConfig, recipe: Recipe, window: int, batch: int, hardware: Hardware, micro: int | None = None
) -> CostEstimate:
    """Estimate a run of ``batch`` windows a step, ``micro`` at a time on each GPU (default: the recipe's).

    On one GPU, weights are float32 under autocast. With LoRA, frozen weights have the computing precision, or in 4 bits
    0.53 bytes each, scales included. On several GPUs, weights and gradients are bf16 shards, and the optimizer's shard
    holds float32 weights and AdamW's moments: together 16 bytes for each trained parameter (Rajbhandari et al., 2020). A
    teacher's weights have the computing precision.
    """
    settings, rules = recipe.training, recipe.lora
    known_fields(settings)  # refuses unknown ones
    _refuse_experts(config)
    micro = min(micro or settings.per_device_train_batch_size, batch)
    if micro * window > _MOST_TOKENS:
        raise RecipeError(
            f"training.per_device_train_batch_size makes {micro:,} x {window:,} tokens in one forward pass, and no GPU holds "
            f"more than {_MOST_TOKENS:,}; lower it, or the target"
        )
    gpus, sharded = hardware.gpus, hardware.gpus > 1
    frozen_low = rules is not None and rules.base != "float32"
    low = settings.precision != "float32" and (sharded or frozen_low)
    cost = _one_step(
        config,
        StepSettings(
            window,
            micro,
            precision="float32" if sharded or settings.precision == "float32" else "bf16",
            weights=torch.bfloat16 if low else torch.float32,
            checkpointing=checkpointing.is_on(settings),
            lora=rules,
            sliced_loss=not sharded,
        ),
    )
    loading = (2 if low and rules else 4) * cost.parameters
    four_bits = rules is not None and rules.base == "4bit"
    saved = (cost.weights / cost.parameters - 0.53) * cost.quantizable if four_bits else 0
    operations = cost.operations * batch / micro * (1 + _taught(recipe) / _passes(recipe))
    copied = recipe.teacher is not None and rules is None
    return CostEstimate(
        window,
        batch,
        cost,
        operations,
        weights=(cost.weights - saved) / gpus + (2 * cost.block + cost.output if sharded else 0),
        gradients=(2 if sharded else 4) * cost.trained / gpus,
        optimizer=12 * cost.trained / gpus if sharded else _kept(cost, settings.optim),
        activations=cost.activations,
        teacher=(4 if settings.precision == "float32" else 2) * cost.parameters if copied else 0,
        loading=loading - saved,
        hours=operations * settings.max_steps / (gpus * hardware.peak * hardware.utilisation) / 3600,
    )


def _kept(cost: StepCost, optim: str) -> float:
    """Return how many bytes an optimizer keeps on one GPU; one that is not known counts as AdamW."""
    each, of_embedding = optimizer_bytes(optim) or (8, 8)
    return each * (cost.trained - cost.embedded) + of_embedding * cost.embedded


def _one_step(config: PretrainedConfig, settings: StepSettings) -> StepCost:
    try:
        return step_cost(config, settings)
    except SkipwiseError:
        raise
    except Exception as error:  # of the architecture's own code, which runs here first
        raise ModelError(
            f"model_type {config.model_type} cannot run one training step of {settings.window:,} tokens "
            f"({reason(error)}); correct config.json, or choose another model"
        ) from error


def _passes(recipe: Recipe) -> int:
    """Return how many forward passes a step's operations are: backward takes twice as many as forward, of frozen weights, as with
    LoRA, as many; and layers may be computed again."""
    return (2 if recipe.lora else 3) + checkpointing.is_on(recipe.training)


def _taught(recipe: Recipe) -> float:
    """Return what share of the windows a teacher reads, in a forward pass of its own."""
    if recipe.teacher is None:
        return 0.0
    return 1.0 if recipe.teacher.weight else recipe.teacher.written


def timed_tokens(prepared: PreparedRun) -> int:
    """Return how many tokens of plain training, with the gradients of all weights, take as long as the run's training.

    A token that a teacher writes takes about as long as one that is trained on.
    """
    recipe = prepared.recipe
    tokens = recipe.training.max_steps * recipe.training.batch_size * prepared.window
    return int(tokens * (_passes(recipe) + _taught(recipe)) / 3) + written_text.tokens_of(recipe, prepared.window)


def compare_costs(recipe: Recipe, hardware: Hardware, console: Console) -> None:
    """Print the run beside full-length training of as many tokens, and what reduces memory if one does not fit."""
    with doing(f"building {recipe.model} without weights", console):
        config = load_config(recipe.model)
        extension = extension_of(config, recipe)
    own = window_of(recipe, extension)
    batch, micro = recipe.training.batch_size, recipe.training.per_device_train_batch_size
    gpus = hardware.gpus
    accumulation(recipe.training, gpus)
    ours = arm_name(recipe.arm)
    planned = {ours: (recipe, own)}
    if recipe.positions.scheme != "full":
        planned[arm_name("full")] = recipe.model_copy(update={"teacher": None}), extension.target_length
    rows = {}
    with doing("running one step of each without data", console):
        for name, (run, window) in planned.items():
            # The same tokens in a step and in a micro-batch, but at least one window on each GPU.
            windows = math.ceil(batch * own / window / gpus) * gpus
            rows[name] = estimate_cost(config, run, window, windows, hardware, max(1, micro * own // window))
    cost = rows[ours].cost
    console.print(
        f"{recipe.model}: {extension_told(config, extension, recipe.arm)}, {cost.parameters:,} parameters, "
        f"{cost.trained:,} of them trained",
        style="bold",
    )
    if replaced := replaced_scaling(config, extension):
        console.print(replaced)
    console.print(_table(rows, recipe.training.max_steps, hardware))
    planned_for = f"{gpus} GPUs that share the weights (ZeRO-3 or FSDP)" if gpus > 1 else "one GPU"
    console.print(
        f"Planned for {planned_for}, {_bytes(hardware.memory)} each; time at {hardware.utilisation:.0%} of "
        f"{hardware.peak / 1e12:.0f} TFLOP/s each. Bytes are those of tensors: {_bytes(ROOM)} must stay free for the CUDA "
        "context and fragmentation."
    )
    if hardware.utilisation > _MEASURED[1]:
        lora, whole = (f"{share:.0%}" for share in _MEASURED)
        console.print(
            f"Short windows may reach less: on an H200 LoRA reached {lora} and training of all weights {whole} (--utilisation)."
        )
    if far := large_factor(extension):
        console.print(far, style="yellow")
    optim = recipe.training.optim
    if optimizer_bytes(optim) is None or (gpus > 1 and optim not in _ADAMW):
        console.print(f"training.optim {optim} is counted as AdamW.", style="yellow")
    fits = {name: hardware.holds(estimate.memory) for name, estimate in rows.items()}
    for name, enough in fits.items():
        if name != ours and not enough:
            console.print(f"{name} does not fit.", style="yellow")
    if not fits[ours]:
        with doing("looking for the smallest change that fits", console) as say:
            way = smallest_change(config, recipe, rows[ours], hardware, lambda words: say(f"trying {words}"))
        console.print(f"{ours} does not fit{_told(way, recipe, gpus)}", style="yellow", soft_wrap=True)
    elif more := fuller_pass(config, recipe, own, hardware):
        examples, estimate = more
        console.print(
            f"{examples} windows in a pass fit too ({_bytes(estimate.memory)} at the peak), and a GPU that waits for small kernels "
            f"waits less: --set training.per_device_train_batch_size={examples}",
            soft_wrap=True,
        )


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
    for lighter, run, gpus in _lighter(recipe, hardware.gpus):
        known = planned.fixed - (0 if run.teacher else planned.teacher)
        same = (run.lora, run.training.optim, gpus) == (recipe.lora, recipe.training.optim, hardware.gpus)
        if same and not hardware.holds(known):
            continue
        for smaller, changed, shorter in _smaller(run, planned.window):
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


def _lighter(recipe: Recipe, gpus: int) -> Iterator[tuple[list[str], Recipe, int]]:
    """Yield the run and its changes that make weights lighter: options, recipe, GPUs."""
    words: list[str] = []
    yield words, recipe, gpus
    if recipe.lora is None:
        whole = recipe
        if gpus == 1 and recipe.training.optim in _ADAMW:
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


def _smaller(recipe: Recipe, window: int) -> Iterator[tuple[list[str], Recipe, int]]:
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


def _told(way: tuple[str, CostEstimate] | None, recipe: Recipe, gpus: int) -> str:
    if way is None:
        most = max(more for *_, more in _lighter(recipe, gpus) if recipe.training.batch_size % more == 0)
        sharded = f", up to {most} GPUs" if most > gpus else ""
        return f", nor does anything that was tried{sharded}; plan larger ones (--gpu-memory)"
    words, estimate = way
    return f"; the smallest change that does: {words} ({_bytes(estimate.memory)} at the peak)"


def _table(rows: dict[str, CostEstimate], steps: int, hardware: Hardware) -> Table:
    costs = list(rows.values())
    table = Table("", *(Column(name, justify="right") for name in rows), box=None, pad_edge=False)
    lines = {
        "windows a step": [f"{c.batch:,} of {format_length(c.window)}" for c in costs],
        "tokens in all": [f"{c.batch * c.window * steps / 1e6:,.1f} M" for c in costs],
        **{
            f"{part}, each GPU": [_bytes(getattr(c, part)) for c in costs]
            for part in ("weights", "gradients", "optimizer", "activations", "teacher")
            if any(getattr(c, part) for c in costs)
        },
        "while loading, each GPU": [_bytes(c.loading) for c in costs],
        "at the peak, each GPU": [_bytes(c.memory) for c in costs],
        f"fits in {_bytes(hardware.memory)}": ["yes" if hardware.holds(c.memory) else "no" for c in costs],
        "operations a step": [_scaled(c.operations, ("GFLOP", "TFLOP", "PFLOP", "EFLOP")) for c in costs],
        "time": [f"{c.hours:,.1f} h" if c.hours >= 1 else f"{c.hours * 60:.1f} min" for c in costs],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _refuse_experts(config: PretrainedConfig) -> None:
    if experts := experts_of(config):
        raise ModelError(
            f"model_type {config.model_type} is a mixture of {experts} experts, and each token chooses its own: a step "
            "cannot run without data. Plan a dense model with as many active parameters, and add 16 bytes for each "
            "inactive one"
        )


def _bytes(number: float) -> str:
    return _scaled(number * 1e3, ("MB", "GB", "TB"))


def _scaled(number: float, units: tuple[str, ...]) -> str:
    """Format ``number`` in the largest unit that leaves 1 or more; the first is 1e9, each next 1,000 times larger."""
    power = max((k for k in range(len(units)) if number >= 10 ** (9 + 3 * k)), default=0)
    return f"{number / 10 ** (9 + 3 * power):,.1f} {units[power]}"

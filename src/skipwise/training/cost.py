"""Before any GPU hour: what a run will hold on each GPU and how long it will take, PoSE beside full-length training.

From the model's config alone: one step of each is run without data (``model/step_cost.py``), and divided over the GPUs.
"""

import math
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from transformers import PretrainedConfig

from skipwise.errors import ModelError, RecipeError
from skipwise.method.lengths import format_length
from skipwise.model.loading import load_config
from skipwise.model.rope import extension_of
from skipwise.model.step_cost import StepCost, step_cost
from skipwise.recipes.schema import Recipe
from skipwise.training.arguments import accumulation, known_fields


@dataclass(frozen=True)
class Machine:
    """What a run is planned for.

    Attributes:
        gpus: how many; several hold weights, gradients and optimizer in shares (ZeRO-3, FSDP).
        memory: of each, in bytes.
        peak: bf16 operations a second of each, as its maker says.
        utilisation: the share of them that training reaches.
    """

    gpus: int = 1
    memory: float = 80e9
    peak: float = 312e12
    utilisation: float = 0.4

    def __post_init__(self) -> None:
        for name, value, unit in (
            ("gpus", self.gpus, 1),
            ("gpu-memory", self.memory, 1e9),
            ("tflops", self.peak, 1e12),
        ):
            if not 0 < value < math.inf:
                raise RecipeError(f"--{name} {value / unit:g} must be a number above 0")
        if not 0 < self.utilisation <= 1:
            raise RecipeError(f"--utilisation {self.utilisation:g} must be above 0 and at most 1")


@dataclass(frozen=True)
class Plan:
    """One way of training: bytes are of one GPU.

    Attributes:
        window: tokens of one example.
        batch: examples a step, over all GPUs.
        cost: of one micro-batch.
        operations: of one step, over all GPUs.
        weights: parameters, and of a sharded run the two layers that are gathered at a time.
        gradients: as they accumulate.
        optimizer: Adam's two moments, and of a sharded run the float32 weights.
        loading: before training, when each process holds the whole model.
        activations: what backward needs, and the operation at work.
        hours: of the whole run.
    """

    window: int
    batch: int
    cost: StepCost
    operations: float
    weights: float
    gradients: float
    optimizer: float
    activations: float
    loading: float
    hours: float

    @property
    def memory(self) -> float:
        """At the peak."""
        return max(self.loading, self.weights + self.gradients + self.optimizer + self.activations)


def plan_training(
    config: PretrainedConfig, recipe: Recipe, window: int, batch: int, on: Machine, micro: int | None = None
) -> Plan:
    """Plan a run of ``batch`` windows a step, ``micro`` of them at a time on each GPU; default: as the recipe says.

    On one GPU weights are float32 under autocast, as here they are trained; with LoRA the frozen ones are as computed,
    or half a byte each and their scales, 0.53 in all. On several, weights and gradients are bf16 shares, and the
    optimizer's share holds float32 weights beside its moments: 16 bytes a trained parameter over all (Rajbhandari et
    al., 2020).

    Raises:
        RecipeError: a field of the training section is unknown or wrong.
        ModelError: a mixture of experts.
    """
    settings, rules = recipe.training, recipe.lora
    known_fields(settings)
    _refuse_experts(config)
    micro = min(micro or settings.per_device_train_batch_size, batch)
    sharded = on.gpus > 1
    computed = None if settings.precision == "float32" else torch.bfloat16
    low = computed is not None and (sharded or (rules is not None and rules.base != "float32"))
    cost = step_cost(
        config,
        window,
        micro_batch=micro,
        precision=None if sharded else computed,
        weights=torch.bfloat16 if low else torch.float32,
        checkpointing=_checkpointing(recipe),
        rules=recipe.lora,
        sliced_loss=not sharded,
    )
    share = on.gpus
    whole = (2 if low else 4) * cost.parameters
    saved = (cost.weights / cost.parameters - 0.53) * cost.matrices if rules and rules.base == "4bit" else 0
    operations = cost.operations * batch / micro
    return Plan(
        window,
        batch,
        cost,
        operations,
        weights=(cost.weights - saved) / share + (2 * cost.block + cost.output if sharded else 0),
        gradients=(2 if sharded else 4) * cost.trained / share,
        optimizer=(12 if sharded else 8) * cost.trained / share,
        activations=cost.activations,
        loading=whole - saved if rules else 4 * cost.parameters,
        hours=operations * settings.max_steps / (share * on.peak * on.utilisation) / 3600,
    )


def plan_command(recipe: Recipe, on: Machine, console: Console) -> None:
    """Print PoSE beside full-length training of as many tokens (a window a GPU at least), and what would make it fit.

    Raises:
        SkipwiseError: the model cannot be extended, or the machine makes no sense.
    """
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    train = recipe.train_length or extension.rope.original_length
    batch, micro = recipe.training.batch_size, recipe.training.per_device_train_batch_size
    accumulation(recipe.training, on.gpus)
    rows = {}
    with console.status("running one step of each without data"):
        for name, window in (("PoSE", train), ("full-length", extension.target_length)):
            # As many tokens a step and at a time, a window on each GPU at least.
            windows = math.ceil(batch * train / window / on.gpus) * on.gpus
            rows[name] = plan_training(config, recipe, window, windows, on, max(1, micro * train // window))
    cost = rows["PoSE"].cost
    console.print(
        f"{recipe.model}: {extension.rope.original_length:,} -> {extension.target_length:,} tokens, "
        f"{cost.parameters:,} parameters, {cost.trained:,} of them trained",
        style="bold",
    )
    console.print(_table(rows, recipe.training.max_steps, on))
    machine = f"{on.gpus} GPUs, which share the weights (ZeRO-3 or FSDP)" if on.gpus > 1 else "one GPU"
    console.print(
        f"Planned for {machine}, of {_bytes(on.memory)}; time at {on.utilisation:.0%} of {on.peak / 1e12:.0f} TFLOP/s "
        "each. Bytes are those of tensors: the CUDA context (about 0.5 GB) and fragments come on top."
    )
    for name, plan in rows.items():
        if plan.memory > on.memory:
            console.print(f"{name} does not fit; try {_way_out(recipe)}", style="yellow")


def _table(rows: dict[str, Plan], steps: int, on: Machine) -> Table:
    plans = list(rows.values())
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in rows:
        table.add_column(name, justify="right")
    lines = {
        "windows a step": [f"{p.batch:,} of {format_length(p.window)}" for p in plans],
        "tokens in all": [f"{p.batch * p.window * steps / 1e6:,.1f} M" for p in plans],
        **{
            f"{part}, each GPU": [_bytes(getattr(p, part)) for p in plans]
            for part in ("weights", "gradients", "optimizer", "activations")
        },
        "while loading, each GPU": [_bytes(p.loading) for p in plans],
        "at the peak, each GPU": [_bytes(p.memory) for p in plans],
        f"fits in {_bytes(on.memory)}": ["yes" if p.memory <= on.memory else "no" for p in plans],
        "operations a step": [_scaled(p.operations, ("GFLOP", "TFLOP", "PFLOP", "EFLOP")) for p in plans],
        "time": [f"{p.hours:,.1f} h" if p.hours >= 1 else f"{p.hours * 60:.1f} min" for p in plans],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _refuse_experts(config: PretrainedConfig) -> None:
    counts = ("num_experts", "num_local_experts", "n_routed_experts")
    if experts := max(getattr(config, name, None) or 0 for name in counts):
        raise ModelError(
            f"model_type {config.model_type} is a mixture of {experts} experts, of which each token takes its own: a step "
            "without data cannot be run; plan a dense model of its active parameters, and add 16 bytes for each other one"
        )


def _bytes(number: float) -> str:
    return _scaled(number * 1e3, ("MB", "GB", "TB"))


def _scaled(number: float, units: tuple[str, ...]) -> str:
    """In the largest of ``units``, each a thousand times the last, that leaves 1 or more; the first is 1e9."""
    power = max((k for k in range(len(units)) if number >= 10 ** (9 + 3 * k)), default=0)
    return f"{number / 10 ** (9 + 3 * power):,.1f} {units[power]}"


def _way_out(recipe: Recipe) -> str:
    ways = ["more GPUs (--gpus)", "larger ones (--gpu-memory)"]
    if recipe.training.per_device_train_batch_size > 1:
        ways.insert(0, "--set training.per_device_train_batch_size=1")
    if recipe.lora is None:
        ways.insert(0, "--lora")
    if not _checkpointing(recipe):
        ways.insert(0, "--set training.gradient_checkpointing=true")
    return " or ".join([", ".join(ways[:-1]), ways[-1]])


def _checkpointing(recipe: Recipe) -> bool:
    given = recipe.training.model_extra or {}
    return bool(given.get("gradient_checkpointing") or given.get("activation_checkpointing"))

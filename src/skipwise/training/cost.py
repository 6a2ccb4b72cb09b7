"""Memory and time of a run, before it takes any GPU hour.

Computed from the model's config alone: one step of each runs without data (``model/step_cost.py``), and its bytes and
operations are divided over the GPUs.
"""

import math
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from skipwise.errors import ModelError, RecipeError, SkipwiseError, reason
from skipwise.model import checkpointing
from skipwise.model.memory import experts_of, optimizer_bytes
from skipwise.model.step_cost import StepCost, StepSettings, step_cost
from skipwise.recipes.schema import Recipe
from skipwise.training import written_text
from skipwise.training.arguments import known_fields
from skipwise.training.prepare import PreparedRun

_MOST_TOKENS = 2**26  # in one forward pass: four times the longest target
ROOM = 1.5e9  # bytes of a GPU that the CUDA context and fragmentation take


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


def _refuse_experts(config: PretrainedConfig) -> None:
    if experts := experts_of(config):
        raise ModelError(
            f"model_type {config.model_type} is a mixture of {experts} experts, and each token chooses its own: a step "
            "cannot run without data. Plan a dense model with as many active parameters, and add 16 bytes for each "
            "inactive one"
        )

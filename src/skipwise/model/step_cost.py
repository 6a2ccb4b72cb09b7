"""What one training step holds and computes, from a model's config alone: the step is run without data.

Under PyTorch's ``FakeTensorMode`` every operation of the stock model runs on tensors that have a shape and no memory.
What they would hold is added up as they are made and given up; operations are counted as they pass. So whatever is set
(LoRA, activation checkpointing, another family) is in the figures without a formula for it.
"""

import copy
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from skipwise.model import lora
from skipwise.model.chunked_loss import in_slices, worth_chunking
from skipwise.recipes.schema import Lora

_FUSED = "skipwise-fused"  # causal attention that never holds a matrix of all pairs, as on any GPU


@dataclass(frozen=True)
class StepCost:
    """Of one forward and backward pass of a micro-batch, in bytes and operations.

    Attributes:
        parameters: of the model.
        trained: of them, those with gradients.
        matrices: of the parameters, those of linear layers but the output's: what 4 bits can hold.
        weights: bytes of all parameters as they are held in training.
        block: bytes of the largest layer's parameters, which a sharded run gathers.
        output: bytes of the output layer, which it gathers too.
        activations: the most bytes held beyond weights and gradients: what backward needs, and the operation at work.
        operations: multiplications and additions, those of recomputed activations included.
    """

    parameters: int
    trained: int
    matrices: int
    weights: int
    block: int
    output: int
    activations: int
    operations: float


def step_cost(
    config: PretrainedConfig,
    tokens: int,
    *,
    micro_batch: int = 1,
    precision: torch.dtype | None = torch.bfloat16,
    weights: torch.dtype = torch.float32,
    checkpointing: bool = False,
    rules: Lora | None = None,
    sliced_loss: bool = True,
) -> StepCost:
    """Run one training step of ``micro_batch`` windows of ``tokens`` tokens without data.

    Args:
        config: of a stock causal model; no weights are read.
        tokens: of one window.
        micro_batch: windows in one forward pass.
        precision: autocast type, None for that of the weights.
        weights: type in which parameters are held; with LoRA, those that are frozen.
        checkpointing: activations of a layer are computed again in backward instead of kept.
        rules: LoRA, if that is what is trained.
        sliced_loss: logits that weigh are computed in slices (``chunked_loss``), as on one GPU.
    """
    held = _HeldBytes()
    model, mode = _model(config, weights, checkpointing, rules)
    worth = worth_chunking(micro_batch * tokens, config.get_text_config().vocab_size)
    with mode, in_slices(model) if worth and sliced_loss else nullcontext():
        parameters = list(model.parameters())
        for parameter in parameters:
            held.hold(parameter)
            if parameter.requires_grad:  # they are there from the second micro-batch on
                parameter.grad = torch.empty_like(parameter)
                held.hold(parameter.grad)
        step = _pass(model, micro_batch, tokens, precision)
        with held:
            step()
        counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
        with counter:
            step()
        blocks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
        largest = max(
            (sum(p.nbytes for p in block.parameters()) for layers in blocks for block in layers), default=0
        )
        stock = getattr(model, "get_base_model", lambda: model)()
        head = stock.get_output_embeddings()
        linear = [part for part in stock.modules() if isinstance(part, torch.nn.Linear) and part is not head]
        matrices = sum(part.weight.numel() for part in linear if not part.weight.requires_grad or not rules)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    size = sum(p.nbytes for p in parameters)
    gradients = sum(p.nbytes for p in parameters if p.requires_grad)
    return StepCost(
        parameters=sum(p.numel() for p in parameters),
        trained=trained,
        matrices=matrices,
        weights=size,
        block=largest,
        output=head.weight.nbytes,
        activations=held.most - size - gradients,
        operations=_operations(counter),
    )


class _HeldBytes(TorchDispatchMode):
    """Adds up the storages that operations make, until they are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._give_up, key, size)

    def _give_up(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor)
        return made


def _model(
    config: PretrainedConfig, weights: torch.dtype, checkpointing: bool, rules: Lora | None
) -> tuple[PreTrainedModel, FakeTensorMode]:
    """The model as it is trained, on fake tensors; additions of LoRA can be made on meta tensors only."""
    AttentionInterface.register(_FUSED, _fused_attention)
    AttentionMaskInterface.register(_FUSED, lambda *args, **kwargs: None)
    with torch.device("meta"):
        own = copy.deepcopy(config)  # transformers writes the kernel into it
        model = AutoModelForCausalLM.from_config(own, dtype=weights, attn_implementation=_FUSED).train()
    if checkpointing:
        enable = (
            getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        )
        enable()
    adapted = lora.adapt(model, rules) if rules else model
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        adapted.to_empty(device="cpu")
    model.tie_weights()
    return adapted, mode  # type: ignore[return-value]


def _fused_attention(*args: Any, softcap: float | None = None, **kwargs: Any) -> Any:
    """As SDPA, and with Gemma 2's cap on scores, which its kernels lack and FlashAttention's take in passing."""
    return sdpa_attention_forward(*args, **kwargs)


def _pass(
    model: PreTrainedModel, micro_batch: int, tokens: int, precision: torch.dtype | None
) -> Callable[[], None]:
    ids = torch.zeros(micro_batch, tokens, dtype=torch.long)

    def step() -> None:
        with torch.autocast("cpu", precision) if precision else nullcontext():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()

    return step


def _operations(counter: FlopCounterMode) -> float:
    return float(sum(counter.get_flop_counts()["Global"].values()))


def _attention(query: Any, key: Any, *_: Any, **__: Any) -> float:
    """Of a causal kernel: queries by keys and weights by values, over half of all pairs."""
    examples, heads, tokens, size = query
    return 4 * examples * heads * tokens * key[-2] * size / 2


def _attention_backward(gradient: Any, query: Any, key: Any, *_: Any, **__: Any) -> float:
    """Five products where forward has two: the scores are computed again."""
    return 2.5 * _attention(query, key)


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}

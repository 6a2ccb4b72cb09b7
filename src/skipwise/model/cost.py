"""Cost of a model from its config alone: memory and operations of a training step and of a forward pass, and their time here.

Under PyTorch's ``FakeTensorMode`` the stock model runs on tensors without memory; bytes and operations are counted. So
LoRA, activation checkpointing and every family are included without formulas.
"""

import copy
import os
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from skipwise.model import lora
from skipwise.model.config import experts_of, head_size
from skipwise.model.forward import autocast, dtype_of, in_slices, slice_rows, stock_model, worth_chunking
from skipwise.recipes.schema import Lora

# Activation checkpointing: the field of TrainingArguments, with "_enable" the method of a model. Recipes have the older name.
_OLD, _NEW = "gradient_checkpointing", "activation_checkpointing"
CHECKPOINTING = _NEW if hasattr(PreTrainedModel, f"{_NEW}_enable") else _OLD
FOUR_BITS = 0.53  # bytes of a weight in 4 bits, with its share of the scales
# Bytes that an optimizer of transformers keeps for each trained weight, and for each of an embedding. Moments in 8 bits have
# 4 bytes of scale for each 256, and Trainer keeps those of embeddings in 32 bits.
OPTIMIZER_BYTES = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit"), (8.0, 8.0)),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), (2 * (1 + 4 / 256), 8.0)),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), (1 + 4 / 256, 4.0)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), (4.0, 4.0)),
    **dict.fromkeys(("adafactor", "sgd"), (0.0, 0.0)),  # Adafactor keeps a number for each row and column
}
_FUSED = "skipwise-fused"  # causal attention that never holds a matrix of all pairs, as on any GPU
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
_TIMED_TOKENS = 2048
_TIMED_SECONDS = 0.3  # of a layer, and of attention


@dataclass(frozen=True)
class StepCost:
    """Parameters, bytes and operations of one forward and backward pass of a micro-batch."""

    parameters: int  # number in the model
    trained: int  # number with gradients
    embedded: int  # number of those that are an embedding
    quantizable: int  # number in frozen linear layers without the output layer, which 4 bits can hold
    weights: int  # bytes of all parameters
    block: int  # bytes of the largest layer's parameters, which a sharded run gathers
    output: int  # bytes of the output layer, which a sharded run gathers too
    activations: int  # peak bytes beyond weights and gradients
    operations: float  # multiplications and additions, including those of recomputed activations


def step_cost(
    config: PretrainedConfig,
    window: int,
    micro_batch: int = 1,
    *,
    precision: str = "bf16",
    weights: torch.dtype = torch.float32,
    checkpointing: bool = False,
    rules: Lora | None = None,
) -> StepCost:
    """Return the cost of one training step on ``micro_batch`` examples of ``window`` tokens; no weights are read.

    ``weights`` is the dtype of the parameters, with LoRA (``rules``) of the frozen ones; autocast to ``precision`` computes.
    Of layers that are alike, steps of two and of three are counted: each layer adds the same. With checkpointing of all weights the
    peak may move with their number, so all are counted.
    """
    text = config.get_text_config()
    kinds, layers = getattr(text, "layer_types", None) or [], text.num_hidden_layers
    how = (window, micro_batch, precision, weights, checkpointing, rules)
    if layers <= 3 or len(set(kinds)) > 1 or experts_of(text) or (checkpointing and rules is None):
        return _counted_step(config, *how)
    small = []
    for number in (2, 3):
        text = (shallow := copy.deepcopy(config)).get_text_config()
        text.num_hidden_layers = number
        if kinds:
            text.layer_types = kinds[:number]
        small.append(vars(_counted_step(shallow, *how)))
    two, three = small
    return StepCost(**{name: two[name] + (layers - 2) * (three[name] - two[name]) for name in two})


def _counted_step(
    config: PretrainedConfig,
    window: int,
    micro_batch: int,
    precision: str,
    weights: torch.dtype,
    checkpointing: bool,
    rules: Lora | None,
) -> StepCost:
    model, mode = _fake_model(config, weights, checkpointing, rules)
    text, parameters, stock = config.get_text_config(), list(model.parameters()), stock_model(model)
    capped = getattr(text, "final_logit_softcapping", None) is not None  # as ``can_be_sliced`` finds
    tokens = micro_batch * window
    sliced = not capped and worth_chunking(tokens, text.vocab_size, "cuda")
    with mode, in_slices(model) if sliced else nullcontext():
        held = _Counted()
        for parameter in parameters:
            held.hold(parameter)
            if parameter.requires_grad:  # gradients exist from the second micro-batch on
                parameter.grad = torch.empty_like(parameter)
                held.hold(parameter.grad)
        constant = held.now
        ids = torch.zeros(micro_batch, window, dtype=torch.long)
        with held:
            with autocast("cpu", precision):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
    head, embedding = stock.get_output_embeddings(), cast(torch.nn.Embedding, stock.get_input_embeddings())
    if sliced:  # one slice was run: add the products of the others, forward and backward
        products = 2 + head.weight.requires_grad
        held.operations += products * 2 * head.weight.numel() * (tokens - slice_rows(tokens, len(head.weight)))
    blocks = [block for part in model.modules() if isinstance(part, torch.nn.ModuleList) for block in part]
    return StepCost(
        parameters=sum(weight.numel() for weight in parameters),
        trained=sum(weight.numel() for weight in parameters if weight.requires_grad),
        embedded=embedding.weight.numel() if embedding.weight.requires_grad else 0,
        quantizable=sum(
            part.weight.numel() for part in inner_linear(stock) if not (rules and part.weight.requires_grad)
        ),
        weights=sum(weight.nbytes for weight in parameters),
        block=max((sum(weight.nbytes for weight in block.parameters()) for block in blocks), default=0),
        output=head.weight.nbytes,
        activations=held.most - constant,
        operations=held.operations,
    )


def inner_linear(model: PreTrainedModel) -> list[torch.nn.Linear]:
    """Return the linear layers without the output layer, which 4 bits can hold."""
    head = model.get_output_embeddings()
    return [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part is not head]


class _Counted(TorchDispatchMode):
    """Counter of the bytes of live storages, and of multiplications and additions.

    torch's ``FlopCounterMode`` would keep what checkpointing frees; its ``MemTracker`` takes 20 times as long and fails with LoRA.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.operations = 0.0
        self._known: set[int] = set()

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor)
        if count := _OPERATIONS.get(getattr(function, "overloadpacket", None)):
            self.operations += count(*args, **(kwargs or {}), out_val=made)
        return made


def _fake_model(
    config: PretrainedConfig, weights: torch.dtype, checkpointing: bool, rules: Lora | None
) -> tuple[PreTrainedModel, FakeTensorMode]:
    """Return the model of training on fake tensors; peft needs meta tensors, so LoRA comes first."""
    # SDPA lacks Gemma 2's cap on scores, which FlashAttention applies at no cost.
    AttentionInterface.register(_FUSED, lambda *args, softcap=None, **kwargs: sdpa_attention_forward(*args, **kwargs))
    AttentionMaskInterface.register(_FUSED, lambda *args, **kwargs: None)
    model: Any = meta_model(config, dtype=weights, attn_implementation=_FUSED).train()
    if checkpointing:
        getattr(model, f"{CHECKPOINTING}_enable")()
    adapted: Any = lora.adapt(model, rules) if rules else model
    names: dict[int, list[str]] = defaultdict(list)  # by the tensor, of which tied layers have one
    for name, weight in adapted.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        adapted.to_empty(device="cpu")
    for first, *tied in names.values():
        for name in tied:
            layer, _, weight_name = name.rpartition(".")
            setattr(adapted.get_submodule(layer), weight_name, adapted.get_parameter(first))
    return adapted, mode


def _attention(query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> float:
    """Count a causal kernel: queries by keys and weights by values, over half of all pairs."""
    examples, heads, tokens, size = query.shape
    return 4 * examples * heads * tokens * key.shape[-2] * size / 2


_OPERATIONS: dict[Any, Callable[..., float]] = flop_registry | {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    # Five products, where forward has two: the scores are computed again.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda gradient, query, key, *_, **__: (
        2.5 * _attention(query, key)
    ),
}


def machine_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory, or the machine's, or the container's; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):  # Windows has no sysconf
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(memory, int(_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or one without a limit
        return memory


def meta_model(config: PretrainedConfig, **settings: Any) -> PreTrainedModel:
    """Return the stock model of a config without weights, on the device ``meta``."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), **settings)  # it writes settings into the config


def token_bytes(config: PretrainedConfig, itemsize: int, *, cached: bool) -> int:
    """Return a lower bound of the bytes of one more token in a forward pass without gradients.

    ``cached`` adds the keys and values of all layers that do not slide.
    """
    text, kept = config.get_text_config(), 0
    inner = (
        0 if experts_of(text) else getattr(text, "intermediate_size", None) or 0
    )  # an expert reads some of the tokens
    if cached:
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        kept = 2 * heads * head_size(text) * list(DynamicCache(config=config).is_sliding).count(False)
    return itemsize * (2 * text.hidden_size + 2 * inner + kept)  # input, output and two results of a feed-forward layer


@dataclass(frozen=True)
class Speed:
    """Operations a second."""

    linear: float
    attention: float

    @classmethod
    def measured(cls, config: PretrainedConfig, precision: str, device: torch.device) -> "Speed":
        """Time attention and one layer of the stock model on this machine; all but attention counts as ``linear``."""
        text, dtype, model = config.get_text_config(), dtype_of(precision), _one_layer(config, precision, device)
        states = torch.full((1, _TIMED_TOKENS, text.hidden_size), 0.01, dtype=dtype, device=device)
        query = torch.ones(1, text.num_attention_heads, _TIMED_TOKENS, head_size(text), dtype=dtype, device=device)
        with torch.no_grad():
            layer = _seconds(lambda: model(inputs_embeds=states, use_cache=False), device)
            attention = _seconds(lambda: scaled_dot_product_attention(query, query, query, is_causal=True), device)
        cost, rest = ForwardCost.of(model), max(layer - attention, layer / 4)  # noise, or a sliding window
        return cls(_TIMED_TOKENS * cost.linear / rest, _TIMED_TOKENS**2 * cost.pair / 2 / attention)


def fastest_batch(config: PretrainedConfig, window: int, choices: list[int], precision: str) -> int:
    """Return how many windows a layer reads fastest on the CPU: the fewest within 3% of the best."""
    device, hidden = torch.device("cpu"), config.get_text_config().hidden_size
    model, seconds = _one_layer(config, precision, device), dict[int, float]()
    for number in choices:
        states = torch.full((number, window, hidden), 0.01, dtype=dtype_of(precision))
        with torch.no_grad():
            seconds[number] = _seconds(partial(model, inputs_embeds=states, use_cache=False), device) / number
    return min(number for number, each in seconds.items() if each <= 1.03 * min(seconds.values()))


def _one_layer(config: PretrainedConfig, precision: str, device: torch.device) -> PreTrainedModel:
    """Return the stock model with one layer and weights that were not drawn: the config's rule may be wrong."""
    text = copy.deepcopy(config.get_text_config())
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 1, 8, None
    text._attn_implementation = None  # the stock choice: flex attention would be compiled first
    if kinds := getattr(text, "layer_types", None):
        text.layer_types = kinds[:1]
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(text, dtype=dtype_of(precision))
    model.to_empty(device=device).eval()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().fill_(0.01)
    return model


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the least seconds that a call takes."""
    least, began = float("inf"), time.perf_counter()
    while least == float("inf") or time.perf_counter() - began < _TIMED_SECONDS:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        least = min(least, time.perf_counter() - start)
    return least


@dataclass(frozen=True)
class ForwardCost:
    """Multiplications and additions of a forward pass."""

    linear: float  # of one token in all linear layers but the output layer
    output: float  # of one token in the output layer
    pair: float  # of one token that attends to one other, in all layers

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ForwardCost":
        """Return the operations of a model; its weights are not read."""
        config, head = model.config.get_text_config(), model.get_output_embeddings()
        layers = sum(
            part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear) and part is not head
        )
        if experts := experts_of(config):  # their matrices are one tensor
            of_all = sum(weight.numel() for weight in model.parameters() if weight.ndim == 3)
            chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None) or experts
            layers += of_all * chosen // experts
        return cls(
            2.0 * layers,
            2.0 * head.weight.numel() if head is not None else 0.0,
            4.0 * config.num_attention_heads * head_size(config) * config.num_hidden_layers,
        )

    def token_seconds(self, length: int, speed: Speed, *, scored: bool = True) -> float:
        """Return the mean seconds of a token in a pass over ``length``; of a prompt only the last few tokens have logits."""
        output = self.output if scored else 0.0
        return (self.linear + output) / speed.linear + self.pair * length / 2 / speed.attention


def training_seconds(config: PretrainedConfig, tokens: int, window: int, precision: str, device: torch.device) -> float:
    """Return the seconds of training all weights on ``tokens`` tokens in windows: backward takes two forward passes."""
    speed = Speed.measured(config, precision, device)
    return 3 * tokens * ForwardCost.of(meta_model(config)).token_seconds(window, speed)

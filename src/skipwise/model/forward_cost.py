"""The operations of a forward pass by closed form, and how fast this machine is."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from skipwise.errors import ModelError, out_of_memory, reason
from skipwise.model.blocked_attention import attend, blocked_attention, is_faster
from skipwise.model.config import experts_of, head_size, inner_width
from skipwise.model.precision import autocast, dtype_of

_TIMED_TOKENS = 1024, 2048  # in a linear layer, and in attention
_TIMED_WINDOW = 2048  # tokens, at most
_STEP = 3  # forward passes in the operations of a step: backward takes two
_TIMED_SECONDS = 0.3  # of each


@dataclass(frozen=True)
class ForwardCost:
    """The operations (multiplications and additions) of a forward pass."""

    linear: float  # of one token in all linear layers but the output layer
    output: float  # of one token in the output layer
    pair: float  # of one token that attends to one other, in all layers

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ForwardCost":
        """The operations of a model with weights, or without (on the device ``meta``)."""
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
            2.0 * head.weight.numel(),
            4.0 * config.num_attention_heads * head_size(config) * config.num_hidden_layers,
        )

    @classmethod
    def of_config(cls, config: PretrainedConfig) -> "ForwardCost":
        """The operations of the stock model of a config; no weights are made."""
        with torch.device("meta"):
            return cls.of(AutoModelForCausalLM.from_config(copy.deepcopy(config)))

    def of_token(self, length: int, *, scored: bool) -> tuple[float, float]:
        """The operations of one token of a pass over ``length``, in the mean: in linear layers, and in attention.

        ``scored`` tokens have logits; of a prompt only the last few have.
        """
        return self.linear + (self.output if scored else 0.0), self.pair * length / 2


@dataclass(frozen=True)
class Speed:
    """Operations a second."""

    linear: float
    attention: float

    @classmethod
    def measured(cls, config: PretrainedConfig, precision: str, device: torch.device) -> "Speed":
        """Time layers of the model's shape on this machine, for less than a second."""
        text, dtype = config.get_text_config(), dtype_of(precision)
        tokens, length = _TIMED_TOKENS
        width = inner_width(text) or 4 * text.hidden_size
        states = torch.ones(tokens, text.hidden_size, dtype=dtype, device=device)
        weight = torch.ones(width, text.hidden_size, dtype=dtype, device=device)
        heads, size = text.num_attention_heads, head_size(text)
        query = torch.ones(1, heads, length, size, dtype=dtype, device=device)
        with torch.inference_mode():
            blocked = device.type == "cpu" and precision == "bf16" and is_faster()
            fused = partial(scaled_dot_product_attention, is_causal=True)
            attention = partial(attend, mask=None, scale=1.0) if blocked else fused
            return cls(
                2.0 * tokens * weight.numel() / _seconds(lambda: linear(states, weight), device),
                2.0 * length**2 * heads * size / _seconds(lambda: attention(query, query, query), device),
            )


def layer_step_seconds(config: PretrainedConfig, precision: str, device: torch.device, window: int) -> float:
    """Return the least seconds that one layer of the stock model takes for a window, forward and backward.

    Raises:
        ModelError: the architecture cannot be run with this config.
    """
    with _one_layer(config, device) as model:
        states = _states(model, window, device)

        def step() -> None:
            with autocast(device, precision), blocked_attention(model):
                model(inputs_embeds=states, use_cache=False).last_hidden_state.float().sum().backward()

        return _seconds(step, device)


def training_seconds(config: PretrainedConfig, tokens: int, window: int, precision: str, device: torch.device) -> float:
    """Return the seconds of training all weights on ``tokens`` tokens in windows, from a short timing.

    One layer is timed on a window of up to 2,048 tokens; beyond, attention grows as its operations do.
    """
    cost, speed = ForwardCost.of_config(config), Speed.measured(config, precision, device)
    timed = min(window, _TIMED_WINDOW)
    layers = config.get_text_config().num_hidden_layers * layer_step_seconds(config, precision, device, timed) / timed
    more = _STEP * (cost.output / speed.linear + cost.pair * (window - timed) / 2 / speed.attention)
    return tokens * (layers + more)


def _states(model: PreTrainedModel, tokens: int, device: torch.device) -> torch.Tensor:
    return torch.full((1, tokens, model.config.hidden_size), 0.01, device=device)


@contextmanager
def _one_layer(config: PretrainedConfig, device: torch.device) -> Iterator[PreTrainedModel]:
    """The stock model of a config with a single layer and hardly a vocabulary; what fails in this context is the config's."""
    text = copy.deepcopy(config.get_text_config())
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 1, 8, None
    text._attn_implementation = None  # the stock choice: flex attention would be compiled first
    for listed in ("layer_types", "intermediate_size"):  # a value for each layer
        if isinstance(values := getattr(text, listed, None), list):
            setattr(text, listed, values[:1])
    try:
        with torch.device("meta"):  # its weights are not drawn: the config may say how, and wrongly
            model = AutoModel.from_config(text, dtype=torch.float32)
        model.to_empty(device=device).train()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().fill_(0.01)
        yield model
    except Exception as error:  # of the architecture's own code
        if out_of_memory(error):
            raise
        raise ModelError(
            f"model_type {config.model_type} cannot run one layer ({reason(error)}); correct config.json, or choose another "
            "model"
        ) from error


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The least seconds that a call takes."""
    least, began = float("inf"), time.perf_counter()
    while least == float("inf") or time.perf_counter() - began < _TIMED_SECONDS:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        least = min(least, time.perf_counter() - start)
    return least

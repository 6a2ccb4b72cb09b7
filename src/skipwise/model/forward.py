"""Forward passes: device, precision and mode, and the training loss in slices.

The stock loss holds the logits of every token several times, in bf16 and float32. At 16k tokens and a vocabulary of 152k
that is more than all other activations. In slices the output layer computes the loss of some tokens at a time, and their
gradients at once, in the three products of the stock step.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Literal, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from skipwise.errors import RecipeError, one_of

Precision = Literal["bf16", "fp16", "float32"]

# The autocast dtype of each precision; float32 needs no autocast.
AUTOCAST: dict[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": None}

_SLICE_BYTES = 2**28  # of float32 logits: enough rows for the products to be fast
_CACHE_BYTES = 2**22  # of float32 scores: few enough for the cache of a processor's core
_KERNEL_BYTES = 2**24  # on a GPU, which starts several kernels for each part
_SLOW_BYTES, _HEAVY_BYTES = 2**25, 2**29  # of float32 logits: on a CPU, elsewhere (``worth_chunking``)


def default_device() -> torch.device:
    """Return the device that models run on: the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(requested: str, device: torch.device | str | None = None) -> Precision:
    """Return the precision to compute in on ``device``; weights stay float32 under bf16 and fp16 autocast.

    ``auto`` is bf16 where the hardware multiplies it faster than float32: a GPU with bf16, a CPU with AMX-BF16, or one with
    AVX512-BF16 that is not Intel's (a Xeon without AMX takes 1.5 times as long). On other NVIDIA GPUs (V100, T4) it is fp16,
    as in the paper. fp16 needs a GPU: a CPU has no loss scaling.
    """
    one_of("precision", requested, ("auto", *AUTOCAST))
    device = default_device() if device is None else torch.device(device)
    if requested == "fp16" and device.type == "cpu":
        raise RecipeError("precision 'fp16' needs a GPU. On this CPU choose auto, bf16 or float32")
    if requested != "auto":
        return cast(Precision, requested)
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    features = cpu_features()
    fast = "amx_bf16" in features or ("avx512_bf16" in features and "GenuineIntel" not in features)
    return "bf16" if device.type == "cpu" and fast else "float32"


def precision_of(args: Any) -> Precision:
    """Return the precision of ``transformers.TrainingArguments``."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype in which a forward pass computes."""
    return AUTOCAST[precision] or torch.float32


def autocast(device: torch.device | str, precision: str) -> AbstractContextManager[object]:
    """Return the context that computes in ``precision``, also inside another autocast."""
    dtype = AUTOCAST[one_of("precision", precision, AUTOCAST)]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def random_state_kept(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that restores the random state of the CPU and ``device``."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def trial_ids(model: Any, tokens: int) -> torch.Tensor:
    """Return test ids, int64 [1, tokens]; neighbours differ."""
    return (torch.arange(tokens, device=model.device)[None] * 7 + 3) % model.config.get_text_config().vocab_size


def stock_model(model: Any) -> PreTrainedModel:
    """Return the transformers model inside a peft model, or the model itself."""
    return getattr(model, "get_base_model", lambda: model)()


@contextmanager
def in_mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode in this context, and restore it."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def weights_precision(model: torch.nn.Module) -> Precision:
    """Return the precision of the weights; with LoRA, of the frozen ones."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    dtype = min(weights, key=lambda weight: weight.requires_grad).dtype  # a frozen one first
    return cast(Precision, next((name for name, low in AUTOCAST.items() if low == dtype), "float32"))


def cpu_features() -> set[str]:
    """Return maker and instruction sets of the first core as Linux names them; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            core = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return set()
    return {word for line in core if line.startswith(("vendor_id", "flags")) for word in line.split()}


# --- the loss in slices ---


def worth_chunking(tokens: int, vocabulary: int, device: str) -> bool:
    """Return whether to compute a micro-batch's loss in slices: on a CPU for speed, elsewhere to save memory."""
    return 4 * tokens * vocabulary > (_SLOW_BYTES if device == "cpu" else _HEAVY_BYTES)


@torch.no_grad()
def can_be_sliced(model: PreTrainedModel) -> bool:
    """Return whether the loss in slices equals the model's own loss, by computing both on a few tokens.

    They differ if the model caps its logits, as Gemma 2 does, or if its output layer is more than a matrix.
    """
    if type(_output_layer(model)) is not torch.nn.Linear:
        return False
    precision, ids = weights_precision(model), trial_ids(model, 32)
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with in_mode(model, training=False), autocast(model.device, precision):
        whole = model(**batch).loss.float()
        with in_slices(model):
            sliced = model(**batch).loss.float()
    return bool(torch.isclose(sliced, whole, rtol=1e-4 if precision == "float32" else 1e-2, atol=0))


def slice_rows(tokens: int, vocabulary: int) -> int:
    """Return the tokens of a slice."""
    return max(1, min(tokens, _SLICE_BYTES // (4 * vocabulary)))


@contextmanager
def in_slices(model: PreTrainedModel) -> Iterator[None]:
    """Compute the model's loss in slices inside this context, where its "logits" are the loss.

    The output layer computes it, because engines that shard a model gather a layer's weights for that layer's calls.
    """
    stock: Any = stock_model(model)
    head, before, given = _output_layer(model), stock.loss_function, dict[str, Any]()
    kept, forward = vars(stock).get("forward"), stock.forward

    @wraps(forward)
    def with_labels(*args: Any, **options: Any) -> Any:  # a hook would not see them: older peft calls ``forward``
        given.update(options)
        return forward(*args, **options)

    stock.forward = with_labels
    head.forward = lambda hidden: _sliced(hidden, head, **given)
    stock.loss_function = lambda logits, *_, **__: logits
    try:
        yield
    finally:
        del stock.forward
        if kept:
            stock.forward = kept
        stock.loss_function = before
        del head.forward


def _output_layer(model: PreTrainedModel) -> Any:
    """Return the output layer, inside peft's wrapper the copy that is trained."""
    head: Any = stock_model(model).get_output_embeddings()
    return next(iter(head.modules_to_save.values()), head) if hasattr(head, "modules_to_save") else head


def _sliced(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> torch.Tensor:
    """Return transformers' causal loss: labels shifted by one; the sum over the batch's labels, or their mean."""
    weight, bias = cast(torch.Tensor, head.weight), getattr(head, "bias", None)
    states = hidden.flatten(0, -2)  # [tokens, width]
    targets = pad(labels, (0, 1), value=ignore_index)[..., 1:].flatten().to(states.device)
    counts = (targets != ignore_index).float()
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    items = counts.sum() if num_items_in_batch is None else num_items_in_batch
    total = _Sliced.apply(states, weight, bias, targets.clamp(min=0), counts, dtype)
    return total / torch.as_tensor(items, device=total.device)


class _Sliced(torch.autograd.Function):
    """The sum over tokens of ``-count log softmax(states @ weight.T + bias)[target]``, in nats.

    Its gradient by the logits of a token is count times their softmax, less 1 at the target. So a slice's logits are turned into
    their gradient at once, and nothing of the slice is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        counts: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        needed = ctx.needs_input_grad
        by_states = torch.empty_like(states) if needed[0] else None
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None  # slices add up
        by_bias = torch.zeros_like(bias) if bias is not None and needed[2] else None
        matrix, addend = weight.to(dtype), None if bias is None else bias.to(dtype)
        total = torch.zeros((), device=states.device)
        rows = slice_rows(len(states), len(weight))
        buffer = states.new_empty(rows, len(weight), dtype=dtype)  # fresh memory for each slice would cost page faults
        for begin in range(0, len(states), rows):
            part = slice(begin, begin + rows)
            some = states[part].to(dtype)
            logits = torch.mm(some, matrix.T, out=buffer[: len(some)])
            if addend is not None:
                logits += addend
            total += _to_gradients(logits, targets[part], counts[part])
            if by_states is not None:
                by_states[part] = logits @ matrix
            if by_weight is not None:
                by_weight += logits.T @ some
            if by_bias is not None:
                by_bias += logits.sum(0)
            if isinstance(states, FakeTensor):  # of ``step_cost``: each slice takes what the first takes
                break
        ctx.gradients = by_states, None if by_weight is None else by_weight.to(weight.dtype), by_bias
        return total

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, so backward runs once
        return *(None if one is None else one.mul_(upstream) for one in gradients), None, None, None


def _to_gradients(logits: torch.Tensor, targets: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tokens' losses; turn ``logits`` [tokens, vocabulary] into its gradient, in place.

    ``counts`` [tokens] are 1 for a label, 0 for none. The largest softmax is 1 / the sum of exp: so exp is computed once.
    """
    total = torch.zeros((), device=logits.device)
    rows = max(1, (_CACHE_BYTES if logits.device.type == "cpu" else _KERNEL_BYTES) // (4 * logits.shape[1]))
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        target, count = targets[part, None], counts[part]
        scores = logits[part].float()
        scores = scores - scores.amax(-1, keepdim=True)
        chances = scores.softmax(-1)
        log_sum = -chances.amax(-1).log()
        total += ((log_sum - scores.gather(1, target)[:, 0]) * count).sum()
        logits[part].copy_(chances.mul_(count[:, None]).scatter_add_(1, target, -count[:, None]))
        if isinstance(logits, FakeTensor):  # as above
            break
    return total

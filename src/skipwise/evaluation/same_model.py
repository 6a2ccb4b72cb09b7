"""Whether a server serves the weights that records name: both are asked for the next token after beginnings of a known text.

A server may serve another checkpoint than it was meant to, or read the right one by another RoPE, and still answer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from skipwise.data.prompts import encode
from skipwise.data.shipped import shipped_text
from skipwise.errors import EvaluationError, out_of_memory
from skipwise.evaluation.logits import logits_at
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.perplexity import inference, require_vocabulary
from skipwise.evaluation.server import Completion, Server
from skipwise.evaluation.specification import Specification
from skipwise.model.loading import load_tokenizer

_TOKENS = 512  # of the text, at the most
_EVERY = 16  # tokens from one beginning to the next
_TIE = 0.5  # nats: two tokens so close may change places in another precision
_APART = 0.1  # nats in the mean: bfloat16 moved log-probabilities by 0.014, a RoPE that is misread by 0.2 and more


def require_served(server: Server, model: EvaluatedModel, specification: Specification) -> None:
    """Require a server to take the longest prompt, and, if it is not trusted, to serve a model's weights."""
    server.require_window(max(specification.prompt_lengths, default=0))
    if not server.trusted:
        _require_same_model(server, model, load_tokenizer(model.name), specification.precision)


def _require_same_model(
    server: Server, model: EvaluatedModel, tokenizer: PreTrainedTokenizerBase, precision: str
) -> None:
    """Require a server to go on with a known text as the local weights do; these are loaded for it, and freed.

    Raises:
        EvaluationError: the server chooses a token to which the local model gives much less than to its own, the
            log-probabilities that it tells differ by more than 0.1 nats in the mean, or the weights do not fit.
    """
    ids = encode(tokenizer, shipped_text("prose"))[: min(_TOKENS, server.window or _TOKENS, model.target)]
    places = range(min(_EVERY, len(ids)) - 1, len(ids) - 1, _EVERY)
    local = _read(model, ids, places, precision)
    asked = [{"prompt": ids[: place + 1], "max_tokens": 1, "logprobs": 1} for place in places]
    told = {number: completion for number, completion, _ in server.completions(asked)}
    found = [_compared(local[number], told[number], tokenizer) for number in sorted(told)]
    other = [words for words, _ in found if words]
    sizes = [abs(difference) for _, difference in found if difference is not None]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    if not other and mean <= _APART:
        return
    how = (
        f"after {len(other)} of {len(places)} beginnings of a known text it writes another token ({other[0]})"
        if other
        else f"the log-probabilities of its next tokens in a known text differ by {mean:.2f} nats in the mean (at most {_APART})"
    )
    raise EvaluationError(
        f"the server at {server.url} does not answer as the weights of {model.name} do: {how}. Serve that model, or name the "
        "one that is served; --no-server-check goes on without this question, as for quantized weights"
    )


def _read(model: EvaluatedModel, ids: list[int], places: Sequence[int], precision: str) -> torch.Tensor:
    """Log-probabilities of every token after each place by the local weights, float32 [places, vocabulary]."""
    try:
        loaded = model.load(precision)
        require_vocabulary(loaded, [ids])
        row = torch.tensor([ids], device=loaded.device)
        with inference(loaded, precision):
            logits = torch.cat([some[0] for some, _ in logits_at(loaded, row, range(len(ids) - 1))])
        return logits[list(places)].float().log_softmax(-1).cpu()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise EvaluationError(
            f"the weights of {model.name} do not fit this machine beside what runs there, and they are read to prove that the "
            "server serves them: set CUDA_VISIBLE_DEVICES= to read them on the CPU, or leave the proof out "
            "(--no-server-check)"
        ) from error


def _compared(local: torch.Tensor, told: Completion, tokenizer: PreTrainedTokenizerBase) -> tuple[str, float | None]:
    """What a server wrote otherwise than the local model, in words, empty if nothing; and its log-probability less ours.

    Where a server tells no ids, its token is known only if its text is that of the local model's likeliest.
    """
    best = int(local.argmax())
    wanted, wrote = str(tokenizer.decode([best])).strip(), told.text.strip()
    token = told.token_ids[0] if told.token_ids else best if wrote == wanted else None
    if token is None:
        clear = float(local.topk(2).values.diff().abs()) > _TIE
        plain = wanted and "\ufffd" not in wanted and best != tokenizer.eos_token_id
        return (f"{wrote!r} for {wanted!r}" if clear and plain else ""), None
    if token >= len(local) or local[best] - local[token] > _TIE:
        return f"{wrote!r} for {wanted!r}", None
    value = _log_probability(told.logprobs)
    return "", None if value is None else value - float(local[token])


def _log_probability(logprobs: dict[str, Any] | None) -> float | None:
    """Of the first token: as OpenAI's completions have it, or as llama.cpp's server does."""
    match logprobs:
        case {"token_logprobs": [float(value), *_]} | {"content": [{"logprob": float(value)}, *_]}:
            return value
    return None

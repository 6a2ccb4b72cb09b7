"""Retrieval: is a number found, wherever in the prompt it is hidden?

Prompts are answered one at a time by greedy decoding over a key-value cache. They are taken in the order of their token
ids, so that neighbours have the most in common, and what a prompt shares with the one before it is not read again: of
passkeys hidden at depths spread over the prompt, the filler before each key that lies in the second half.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.passkey import Prompt, answer_ids, passkey_prompt
from skipwise.errors import RecipeError
from skipwise.evaluation.perplexity import inference, require_vocabulary

# Behind a cache so many tokens are read at a time: each needs a mask over all before it, and kernels that take a mask
# compute what it hides, so that in one piece twice the work is done. For the same reason a prompt that has less than half in
# common with the one before is read from its beginning, where no mask is needed.
_AT_ONCE = 1024


@dataclass(frozen=True)
class Answer:
    """What a model wrote after one prompt.

    Attributes:
        number: of the prompt.
        text: without surrounding space.
        hit: whether it is the number asked for, and ends there.
        seconds: of wall time.
    """

    number: int
    text: str
    hit: bool
    seconds: float


@dataclass(frozen=True)
class PasskeyScore:
    """Retrieval trial by trial.

    Attributes:
        depths: where each key was hidden, in [0, 1].
        prompt_tokens: length of each prompt in the model's own tokens.
        hits: whether all five digits were right.
        answers: what the model wrote after each question, without surrounding space.
        seconds: the time generation took.
    """

    depths: list[float]
    prompt_tokens: list[int]
    hits: list[bool]
    answers: list[str]
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of prompts whose five digits were all right."""
        return sum(self.hits) / len(self.hits)


def passkey_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    trials: int,
    seed: int,
    precision: torch.dtype | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PasskeyScore:
    """Ask for ``trials`` passkeys in prompts of ``length`` tokens, each at a uniform depth.

    Trial i is drawn from ``np.random.default_rng([seed, length, i])``, so it is the same whatever the model and the
    number of trials. A length beyond the model's own is meant and passes without a warning.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's own.
        length: tokens of prompt and answer together; reached to within one sentence of filler.
        trials: number of prompts.
        seed: of the keys and depths.
        precision: autocast the forward passes to this dtype.
        on_progress: called after each answer with 1.

    Raises:
        RecipeError: ``trials`` is below 1.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not suit.
    """
    if trials < 1:
        raise RecipeError(f"trials {trials} must be at least 1; 50 as in the paper, or leave passkey out")
    keys = ([seed, length, trial] for trial in range(trials))
    prompts = [passkey_prompt(tokenizer, length, np.random.default_rng(key)) for key in keys]
    began, answers = time.perf_counter(), []
    for answer in retrieve(model, tokenizer, prompts, precision=precision):
        answers.append(answer)
        if on_progress:
            on_progress(1)
    answers.sort(key=lambda answer: answer.number)
    return PasskeyScore(
        depths=[prompt.depth for prompt in prompts],
        prompt_tokens=[len(prompt.ids) for prompt in prompts],
        hits=[answer.hit for answer in answers],
        answers=[answer.text for answer in answers],
        seconds=time.perf_counter() - began,
    )


def retrieve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    precision: torch.dtype | None = None,
) -> Iterator[Answer]:
    """Answer each prompt, greedily: in the order of their ids, not of their numbers.

    Nothing is shared where a layer keeps only the last tokens (sliding attention), for then what was read before cannot
    be gone back to, nor where frequencies may switch with the length (longrope).

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's own.
        prompts: what is read, and the number that should follow.
        precision: autocast the forward passes to this dtype.

    Raises:
        DataError: a token is not in the model's vocabulary, or the tokenizer cannot write digits.
    """
    require_vocabulary(model, [prompt.ids for prompt in prompts])
    read = _Reading(model)
    for number in sorted(range(len(prompts)), key=lambda i: prompts[i].ids):
        began, prompt = time.perf_counter(), prompts[number]
        expected = answer_ids(tokenizer, prompt.answer)
        with inference(model, precision):
            ids = read.continued(prompt.ids, expected, tokenizer.eos_token_id)
        text = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()
        yield Answer(number, text, is_hit(text, prompt.answer), time.perf_counter() - began)


def is_hit(continuation: str, answer: str) -> bool:
    """Whether ``continuation`` starts with ``answer``, and the number ends there."""
    said = continuation.strip()
    return said.startswith(answer) and not said[len(answer) :][:1].isdigit()


class _Reading:
    """A model, what it has read last, and the keys and values of that."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._ids: list[int] = []
        rope = getattr(model.config, "rope_parameters", None) or {}
        self._switches = (
            rope.get("rope_type") == "longrope"
        )  # other frequencies for short texts than for long ones
        self._cache = self._empty()

    def continued(self, prompt: list[int], expected: list[int], end: int | None) -> list[int]:
        """The ids that follow ``prompt``, each the likeliest, up to one more than expected or to the one before ``end``.

        What is expected is read along: as far as it is what the model would have written, all of it is known from that one
        pass (as a draft is verified in speculative decoding; Leviathan et al., 2023), and only from there on is it written
        one by one. One id more than expected shows whether the number goes on.
        """
        common = self._common(prompt)
        self._go_back(common if 2 * common >= len(prompt) else 0)
        likeliest = self._read((prompt + expected)[len(self._ids) :], len(expected) + 1)
        agreed = next((i for i, id in enumerate(expected) if likeliest[i] != id), len(expected))
        written = likeliest[: agreed + 1]
        if end in written:
            return written[: written.index(end)]
        while len(written) <= len(expected):
            self._go_back(len(prompt) + len(written) - 1)
            [following] = self._read((prompt + written)[len(self._ids) :], 1)
            if following == end:
                break
            written.append(following)
        return written

    def _common(self, prompt: list[int]) -> int:
        """How many ids from its beginning on need not be read again; at least one is read."""
        for i, (known, new) in enumerate(zip(self._ids, prompt[:-1], strict=False)):
            if known != new:
                return i
        return min(len(self._ids), len(prompt) - 1)

    def _go_back(self, tokens: int) -> None:
        """Forget all but the first ``tokens``; all, where the cache cannot go back."""
        if any(self._cache.is_sliding) or self._switches:
            tokens = 0
        if not tokens:
            self._cache = self._empty()
        elif tokens < len(self._ids):
            self._cache.crop(tokens - len(self._ids))
        del self._ids[tokens:]

    def _read(self, ids: list[int], wanted: int) -> list[int]:
        """Read on; after each of the last ``wanted`` ids the likeliest to follow."""
        likeliest: list[int] = []
        while ids:
            behind = len(self._ids)
            # What is read from the beginning needs no mask.
            size = _AT_ONCE if behind else len(ids)
            some, ids = ids[:size], ids[size:]
            self._ids += some
            row = torch.tensor([some], device=self._model.device)
            logits = self._model(
                input_ids=row,
                attention_mask=torch.ones(1, len(self._ids), dtype=torch.long, device=row.device),
                position_ids=torch.arange(behind, len(self._ids), device=row.device)[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=min(wanted, len(some)),
            ).logits
            likeliest += logits[0].argmax(-1).tolist()
        return likeliest[-wanted:]

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)

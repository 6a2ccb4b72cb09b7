"""Passkey retrieval: is a five-digit key found, wherever in the prompt it is hidden?"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from skipwise.data.passkey import Passkey, answer_ids, passkey_prompt
from skipwise.errors import RecipeError
from skipwise.evaluation.perplexity import inference, require_vocabulary


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
    tokens_per_batch: int = 16384,
    on_progress: Callable[[int], None] | None = None,
) -> PasskeyScore:
    """Ask for ``trials`` passkeys in prompts of ``length`` tokens, each at a uniform depth; greedy, KV cache.

    Trial i is drawn from ``np.random.default_rng([seed, length, i])``, so it is the same whatever the model,
    the batch and the number of trials. Prompts of equal token count are batched, without padding. A length
    beyond the model's own is meant and passes without a warning.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's own.
        length: tokens of prompt and answer together; reached to within one sentence of filler.
        trials: number of prompts.
        seed: of the keys and depths.
        precision: autocast the forward passes to this dtype.
        tokens_per_batch: prompts are fed together up to this many tokens.
        on_progress: called after each batch with the number of prompts it answered.

    Raises:
        RecipeError: ``trials`` is below 1.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not suit.
    """
    if trials < 1:
        raise RecipeError(f"trials {trials} must be at least 1; 50 as in the paper, or leave passkey out")
    keys = ([seed, length, trial] for trial in range(trials))
    prompts = [passkey_prompt(tokenizer, length, np.random.default_rng(key)) for key in keys]
    require_vocabulary(model, [prompt.ids for prompt in prompts])
    answers = [""] * trials
    started = time.perf_counter()
    with inference(model, precision), _plain_generation(model):
        for batch in _batches(prompts, tokens_per_batch):
            written = _answers(model, tokenizer, [prompts[trial] for trial in batch])
            for trial, answer in zip(batch, written, strict=True):
                answers[trial] = answer
            if on_progress:
                on_progress(len(batch))
    return PasskeyScore(
        depths=[prompt.depth for prompt in prompts],
        prompt_tokens=[len(prompt.ids) for prompt in prompts],
        hits=[is_hit(answer, prompt.answer) for answer, prompt in zip(answers, prompts, strict=True)],
        answers=answers,
        seconds=time.perf_counter() - started,
    )


def is_hit(continuation: str, answer: str) -> bool:
    """Whether ``continuation`` starts with ``answer``, and the number ends there."""
    said = continuation.strip()
    return said.startswith(answer) and not said[len(answer) :][:1].isdigit()


def _batches(prompts: list[Passkey], tokens_per_batch: int) -> Iterator[list[int]]:
    """Trial numbers of prompts of equal token count, up to ``tokens_per_batch`` at a time."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for trial, prompt in enumerate(prompts):
        by_length[len(prompt.ids)].append(trial)
    for length, trials in by_length.items():
        size = max(1, tokens_per_batch // length)
        for first in range(0, len(trials), size):
            yield trials[first : first + size]


def _answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: list[Passkey]) -> list[str]:
    """What the model writes after each prompt of ``batch``, all of one token count."""
    ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)  # [prompts, tokens]
    # One token more than the answer shows whether the number goes on. Each is cut at its own count, so that
    # a neighbour in the batch changes nothing.
    counts = [len(answer_ids(tokenizer, prompt.answer)) + 1 for prompt in batch]
    end = tokenizer.eos_token_id
    generate: Callable[..., torch.Tensor] = cast(Any, model).generate
    written = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max(counts),
        do_sample=False,
        use_cache=True,
        eos_token_id=end,
        pad_token_id=end if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )[:, ids.shape[1] :].tolist()
    return [
        str(tokenizer.decode(_until(row[:count], end), clean_up_tokenization_spaces=False)).strip()
        for row, count in zip(written, counts, strict=True)
    ]


def _until(ids: list[int], end: int | None) -> list[int]:
    """The ids before the first ``end``."""
    return ids[: ids.index(end)] if end in ids else ids


@contextmanager
def _plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Greedy and nothing else: set the checkpoint's sampling fields, penalties and warnings aside."""
    own, verbosity = model.generation_config, logging.get_verbosity()
    model.generation_config = GenerationConfig()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        model.generation_config = own
        logging.set_verbosity(verbosity)

"""Retrieval: does a model find a number that a prompt hides, or RULER's answers?

Prompts are read one at a time by greedy decoding with a KV cache, in the order of their token ids: neighbours share the longest
prefix, which is read once. Long answers are decoded in batches.

Retrieval tasks (``skipwise.data.prompts``) have one answer, which must be complete. RULER's tasks
(``skipwise.data.ruler``) may have several answers, anywhere in the continuation.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.prompts import TASKS, Prompt, answer_ids
from skipwise.data.ruler import RulerData, ruler_prompt, ruler_task
from skipwise.errors import at_least, one_of
from skipwise.evaluation.perplexity import inference, not_finite, require_vocabulary
from skipwise.method.lengths import parse_length
from skipwise.model.attention import CACHE, PreallocatedCache
from skipwise.model.cost import machine_memory
from skipwise.model.forward import choose_precision
from skipwise.results.records import RulerRecord, TrialRecord

# Tokens read at a time after cached tokens. They need a mask, and kernels with a mask also compute the hidden part: in one piece
# that doubles the work. For the same reason a prompt that shares less than half of its tokens with the cache is read from the
# start, where no mask is needed.
_AT_ONCE = 1024
_SHARE = 16  # of the memory, at most, for answers that are decoded in a batch
_UNKNOWN_MEMORY = 2**34  # bytes
_FEW = 16  # tokens; shorter answers are not worth the copies
_COPIES = 4  # of keys and values: those kept, those padded, and room for padding them

Finished = Callable[[list[int]], bool]  # whether the ids of an answer finish it


@dataclass(frozen=True)
class Begun:
    """A cached prompt and the beginning of its answer, the last id not cached."""

    written: list[int]
    most: int  # ids of the answer, at most
    finished: Finished
    cached: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer, [1, heads, tokens, size]

    @property
    def tokens(self) -> int:
        return self.cached[0][0].shape[2]

    @property
    def bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.cached)


class Reader:
    """A model with its KV cache and the token ids in the cache.

    Prefixes are not shared, and answers not batched, if the cache cannot be cropped (sliding or linear attention), or if
    frequencies switch with the length (longrope).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._ids: list[int] = []
        self._cache = PreallocatedCache(model.config)
        rope = getattr(model.config, "rope_parameters", None) or {}
        switches = rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope.get("long_factor")
        self._switch = rope.get("original_max_position_embeddings") if switches else None
        self.goes_back = self._cache.can_be_cropped and not switches

    @property
    def bytes(self) -> int:
        """Bytes of keys and values of a cache that can be cropped."""
        cached: Any = self._cache.layers
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cached)

    def begin(self, prompt: list[int], draft: list[int]) -> list[int]:
        """Prefill: return the greedy ids after ``prompt`` that agree with ``draft``, and one more.

        The draft is read with the prompt, as in speculative decoding (Leviathan et al., 2023). A cache that cannot be cropped
        takes none: after a wrong draft the whole prompt would be read again.
        """
        draft = draft if self.goes_back else []
        common = _agreeing(self._ids, prompt[:-1])  # at least one id is left to read
        self._go_back(common if 2 * common >= len(prompt) else 0)
        likeliest = self._read((prompt + draft)[len(self._ids) :], len(draft) + 1)
        agreed = _agreeing(draft, likeliest)
        return likeliest[: agreed + 1]

    def go_on(self, prompt: list[int], written: list[int], finished: Finished) -> list[int]:
        """Decode one id at a time after ``written`` until it is ``finished``."""
        written = list(written)
        while not finished(written):
            self._go_back(len(prompt) + len(written) - 1)
            written += self._read((prompt + written)[len(self._ids) :], 1)
        return written

    def keep(self, prompt: list[int], written: list[int], most: int, finished: Finished) -> Begun:
        """Copy the cache of the current prompt, for ``go_on_together``."""
        tokens = len(prompt) + len(written) - 1
        cached: Any = self._cache.layers  # of full attention, since the cache can be cropped
        layers = [(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone()) for layer in cached]
        return Begun(list(written), most, finished, layers)

    def _go_back(self, tokens: int) -> None:
        """Crop the cache to its first ``tokens``, or empty it if it cannot be cropped."""
        if tokens == len(self._ids):
            return
        if not self.goes_back:
            tokens = 0
        if not tokens:
            self._cache = PreallocatedCache(self._model.config)
        elif tokens < len(self._ids):
            self._cache.crop(tokens - len(self._ids))
        del self._ids[tokens:]

    def _read(self, ids: list[int], wanted: int) -> list[int]:
        """Read ``ids``; return the likeliest next id after each of the last ``wanted``."""
        if self._switch and len(self._ids) <= self._switch < len(self._ids) + len(ids):  # here the frequencies change
            ids = self._ids + ids
            self._go_back(0)
        likeliest: list[int] = []
        while ids:
            cached = len(self._ids)
            # What is read from the beginning needs no mask.
            size = _AT_ONCE if cached else len(ids)
            part, ids = ids[:size], ids[size:]
            self._ids += part
            row = torch.tensor([part], device=self._model.device)
            logits = self._model(
                input_ids=row,
                attention_mask=torch.ones(1, len(self._ids), dtype=torch.long, device=row.device),
                position_ids=torch.arange(cached, len(self._ids), device=row.device)[None],
                use_cache=True,
                logits_to_keep=min(wanted, len(part)),
                **{CACHE: self._cache},
            ).logits
            likeliest += _likeliest(logits[0])
        return likeliest[-wanted:]


def go_on_together(model: PreTrainedModel, begun: Sequence[Begun]) -> list[list[int]]:
    """Decode several answers in a batch; return the complete ids of each.

    Shorter prompts are padded on the left; a mask hides the padding, and positions do not count it.
    """
    width, more = max(each.tokens for each in begun), max(each.most - len(each.written) for each in begun)
    cache = PreallocatedCache(model.config, width + more)
    for number, layers in enumerate(zip(*(each.cached for each in begun), strict=True)):
        keys, values = (
            torch.cat([pad(states, (0, 0, width - states.shape[2], 0)) for states in part])
            for part in zip(*layers, strict=True)
        )
        cache.update(keys, values, number)
    positions = torch.tensor([each.tokens for each in begun], device=model.device)
    mask = (torch.arange(width + more, device=model.device) >= width - positions[:, None]).long()
    written, end = [list(each.written) for each in begun], width
    while unfinished := [i for i, each in enumerate(begun) if not each.finished(written[i])]:
        last = torch.tensor([ids[-1:] for ids in written], device=model.device)
        logits = model(
            input_ids=last,
            attention_mask=mask[:, : end + 1],
            position_ids=positions[:, None],
            use_cache=True,
            **{CACHE: cache},
        ).logits
        positions, end = positions + 1, end + 1
        for i, id in zip(unfinished, _likeliest(logits[unfinished, -1]), strict=True):
            written[i].append(id)
    return written


def _likeliest(logits: torch.Tensor) -> list[int]:
    """Return the argmax of each row [rows, vocabulary]; NaN is an error."""
    if logits.isnan().any():
        raise not_finite()
    return logits.argmax(-1).tolist()


@dataclass(frozen=True)
class Question:
    """A prompt with its scoring rule."""

    ids: list[int]  # of the prompt
    draft: list[int]  # the right answer, as the model would begin it
    most: int  # tokens of the answer, at most
    score: Callable[[str], float]  # of the answer, from 0 to 1
    settled: bool = False  # whether a full score ends the answer: more text cannot lower it


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt."""

    number: int  # of the prompt
    text: str  # stripped
    score: float
    seconds: float

    @property
    def hit(self) -> bool:
        return self.score == 1


def retrieval_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int | str,
    task: str = "passkey",
    trials: int = 50,
    seed: int = 0,
    precision: str = "float32",
) -> float:
    """Return the share of ``trials`` prompts of ``length`` tokens that are answered correctly.

    Prompts are those of ``draw_prompt`` at random depths, as in the paper. ``length``, e.g. 2048 or ``"2k"``, may exceed the
    model's own, and counts the answer. The task is passkey, keys or lines; the precision auto, bf16, fp16 (on a GPU) or float32.

    Raises:
        RecipeError: ``trials``, ``seed``, task or precision breaks its rule.
        DataError: ``length`` is too short for a prompt, or the tokenizer does not fit.
        EvaluationError: a logit is NaN.
    """
    at_least("trials", trials, 1)
    at_least("seed", seed, 0)
    chosen, tokens = choose_precision(precision, model.device), parse_length(length)
    prompts = [draw_prompt(task, tokenizer, tokens, seed, trial, "random") for trial in range(trials)]
    questions = [question_of(prompt, tokenizer) for prompt in prompts]
    return sum(answer.hit for answer in answers(model, tokenizer, questions, precision=chosen)) / trials


def draw_prompt(
    task: str, tokenizer: PreTrainedTokenizerBase, length: int, seed: int, trial: int, depths: str
) -> Prompt:
    """Draw prompt number ``trial`` of a task from ``np.random.default_rng([seed, length, trial])``.

    With ``depths="random"`` the depth of the number is uniform. With ``"spread"`` it is in the tenth 0, 3, 6, 9, 2, 5, 8, 1, 4,
    7, and again, so that every ten trials cover the prompt evenly.
    """
    rng = np.random.default_rng([seed, length, trial])
    depth = (3 * trial % 10 + rng.random()) / 10 if depths == "spread" else None
    return TASKS[one_of("task", task, TASKS)].prompt(tokenizer, length, rng, depth)


def question_of(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Question:
    """Ask for the number in a prompt; one more token shows whether the number ends there."""
    expected = answer_ids(tokenizer, prompt.answer)
    return Question(prompt.ids, expected, len(expected) + 1, lambda text: float(is_hit(text, prompt.answer)))


def ask(
    tokenizer: PreTrainedTokenizerBase, request: TrialRecord | RulerRecord, data: RulerData | None
) -> tuple[Question, dict[str, Any]]:
    """Return the question of a request, and the fields that describe its prompt."""
    if isinstance(request, TrialRecord):
        drawn = draw_prompt(request.task, tokenizer, request.length, request.seed, request.trial, request.depths)
        return question_of(drawn, tokenizer), {"depth": drawn.depth, "prompt_tokens": len(drawn.ids)}
    assert data is not None
    task, _ = ruler_task(request.task)
    prompt = ruler_prompt(tokenizer, request.task, request.length, request.seed, request.trial, data)

    def score(text: str) -> float:
        right = [answer.lower() in text.lower() for answer in prompt.answers]
        return sum(right) / len(right) if task.scored == "all" else float(any(right))

    draft = answer_ids(tokenizer, prompt.answers[0])[: task.answer_tokens - 1]
    question = Question(prompt.ids, draft, task.answer_tokens, score, settled=True)
    return question, {"depth": prompt.depth, "prompt_tokens": len(prompt.ids)}


def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    *,
    precision: str = "float32",
) -> Iterator[Answer]:
    """Answer each question greedily, in the order of the prompts' token ids.

    Long answers that differ from their draft are decoded in batches of as many as fit a 16th of the memory.
    """
    require_vocabulary(model, [question.ids for question in questions])
    room = (machine_memory(model.device) or _UNKNOWN_MEMORY) // _SHARE // _COPIES  # bytes of the caches that wait
    reader, begun, spent = Reader(model), dict[int, Begun](), 0.0

    def together() -> Iterator[Answer]:
        """Decode the answers that wait; they share the time."""
        started = time.perf_counter()
        with inference(model, precision):
            written = go_on_together(model, list(begun.values())) if begun else []
        seconds, numbers = (spent + time.perf_counter() - started) / max(1, len(begun)), list(begun)
        begun.clear()  # frees the caches
        for number, ids in zip(numbers, written, strict=True):
            yield _answer(number, questions[number], ids, tokenizer, seconds)

    for number in sorted(range(len(questions)), key=lambda i: questions[i].ids):
        started, question = time.perf_counter(), questions[number]
        finished = partial(_finished, question, tokenizer)
        with inference(model, precision):
            written = reader.begin(question.ids, question.draft)
            waits = question.most > _FEW and reader.goes_back and not finished(written) and 2 * reader.bytes <= room
            if waits:
                begun[number] = reader.keep(question.ids, written, question.most, finished)
            else:
                written = reader.go_on(question.ids, written, finished)
        seconds = time.perf_counter() - started
        if not waits:
            yield _answer(number, question, written, tokenizer, seconds)
            continue
        spent += seconds
        if (len(begun) + 1) * max(each.bytes for each in begun.values()) > room:  # padded to the longest
            yield from together()
            spent = 0.0
    yield from together()


def _finished(question: Question, tokenizer: PreTrainedTokenizerBase, written: list[int]) -> bool:
    """Return whether an answer ends: by EOS, by its length, or by a full score."""
    if tokenizer.eos_token_id in written or len(written) >= question.most:
        return True
    return question.settled and question.score(_text(written, tokenizer)) == 1


def _answer(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    end = tokenizer.eos_token_id
    text = _text(written[: written.index(end)] if end in written else written[: question.most], tokenizer)
    return Answer(number, text, question.score(text), seconds)


def _agreeing(ids: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two rows of ids."""
    return next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))


def as_far_as_needed(
    number: int, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase, seconds: float
) -> Answer:
    """Return the answer that ``answers`` would give, from the complete ids that a server wrote.

    ``answers`` stops where the draft ends or differs, and then at the first id that finishes the answer.
    """
    end = 1 + _agreeing(question.draft, written)
    while end < len(written) and not _finished(question, tokenizer, written[:end]):
        end += 1
    return _answer(number, question, written[:end], tokenizer, seconds)


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()


def is_hit(continuation: str, answer: str) -> bool:
    """Return whether ``continuation`` starts with ``answer``, and the number ends there."""
    text = continuation.strip()
    return text.startswith(answer) and not text[len(answer) :][:1].isdigit()

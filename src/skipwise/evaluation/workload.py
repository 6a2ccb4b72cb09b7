"""How much measuring reads and writes at each length: of batches, or of a recipe before any text is known; and which
lengths do not fit in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PretrainedConfig

from skipwise.data.ruler import ruler_task
from skipwise.data.shipped import KINDS
from skipwise.evaluation.batches import Batch, Prompts
from skipwise.evaluation.other_text import longest_segment, most_segments
from skipwise.evaluation.perplexity import fed_tokens
from skipwise.evaluation.specification import RULER, is_ruler, specification_of
from skipwise.model.cost import token_bytes
from skipwise.recipes.schema import Recipe
from skipwise.results.records import OTHER_TEXT

# What is read at a length, by the setting that chooses the length. keep=best reads segments of the target during training.
READ = {"windows": "windows", "segment_lengths": "segments", "keep": "segments", "prompt_lengths": "prompts"}
_OTHER = "other text in segments"
_SHORTEST = 1024  # tokens of a length that is proposed


@dataclass(frozen=True)
class Workload:
    """One measurement at one length.

    Attributes:
        what: is measured, as ``windows of``.
        setting: of a recipe's evaluation section, by which the length is chosen; empty if it is not chosen.
        length: tokens of a window, a segment or a prompt.
        read: tokens in all.
        written: tokens in all.
        when: it is measured, if not after training.
    """

    what: str
    setting: str
    length: int
    read: int
    written: int = 0
    when: str = ""

    @property
    def scored(self) -> bool:
        """Whether every token that is read has logits; of a prompt only the last few have, and keys and values are kept."""
        return self.setting != "prompt_lengths"

    def __str__(self) -> str:
        return f"{self.what} {self.length:,} tokens{self.when}"


@dataclass(frozen=True)
class TooLong:
    """The lengths of one setting, of which some are certain not to fit in memory."""

    setting: str
    longest: int  # tokens
    needed: int  # bytes, for the longest
    most: int  # tokens that may fit
    fitting: tuple[int, ...]  # of the lengths

    @property
    def instead(self) -> str:
        """The option that leaves out what does not fit, as a shell takes it; empty where no length of 1,024 tokens may fit.

        Where none of the lengths fits, it names the largest power of two that may.
        """
        if self.setting == "keep":
            return "--set evaluation.keep=last"
        lengths = self.fitting or ((1 << self.most.bit_length() - 1,) if self.most >= _SHORTEST else ())
        return f"--set 'evaluation.{self.setting}=[{','.join(map(str, lengths))}]'" if lengths else ""


def workload_of(batch: Batch) -> Workload:
    """What answering a batch reads and writes."""
    if isinstance(batch, Prompts):
        task = f"{batch.requests[0].task} at"
        return Workload(task, "prompt_lengths", batch.length, batch.tokens, batch.written)
    if batch.data == OTHER_TEXT:
        return Workload(f"{_OTHER} of", "", batch.length, batch.tokens)
    during = batch.requests[0].step is not None
    setting = "windows" if batch.slides else "keep" if during else "segment_lengths"
    return Workload(f"{READ[setting]} of", setting, batch.length, batch.tokens)


def planned(recipe: Recipe, original: int, target: int) -> Iterator[Workload]:
    """What a recipe measures before any text is known.

    At most: every text has as many documents as are asked for, and no prompts share a beginning. As ``RunEvaluation`` has it.
    """
    asked, arms = specification_of(recipe, original, target, "float32"), len(recipe.evaluation.arms)
    document, texts = np.empty(asked.tokens_read(max(asked.windows)) or max(asked.windows)), arms * len(asked.texts)

    def windows(length: int, times: int, when: str = "") -> Workload:
        fed = fed_tokens([document], length, asked.stride_of(length))
        return Workload("windows of", "windows", length, times * asked.documents * fed, when=when)

    yield from (windows(length, texts) for length in asked.windows)
    if "original" in recipe.evaluation.arms and original not in asked.windows and original <= asked.windows[-1]:
        yield windows(original, len(asked.texts))
    for length in asked.segment_lengths:
        yield Workload("segments of", "segment_lengths", length, texts * asked.segments * length)
    if recipe.evaluation.other and (readers := {*recipe.evaluation.arms} - {"pi-only"}):
        length = longest_segment(original)
        yield Workload(f"{_OTHER} of", "", length, len(readers) * len(KINDS) * most_segments(length) * length)
    if steps := len(recipe.measured_steps):  # of the first text
        yield windows(asked.windows[-1], steps, " during training")
        if recipe.evaluation.keep == "best":
            yield Workload("segments of", "keep", target, steps * asked.segments * target, when=" during training")
    for task in asked.tasks:
        answer = ruler_task(task.removeprefix(RULER))[0].answer_tokens if is_ruler(task) else 0
        for length in asked.prompt_lengths:
            prompts = arms * asked.trials
            yield Workload(f"{task} at", "prompt_lengths", length, prompts * length, prompts * answer)


def beyond_memory(
    parts: Sequence[Workload], config: PretrainedConfig, itemsize: int, weights: float, memory: float
) -> Iterator[TooLong]:
    """Find the lengths that are certain not to fit ``memory`` bytes beside ``weights`` bytes, in numbers of ``itemsize`` bytes."""
    for setting in READ:
        lengths = sorted({part.length for part in parts if part.setting == setting})
        each = token_bytes(config, itemsize, cached=setting == "prompt_lengths")
        if lengths and (needed := int(weights + lengths[-1] * each)) > memory:
            most = int(max(0, memory - weights) // each)
            yield TooLong(setting, lengths[-1], needed, most, tuple(length for length in lengths if length <= most))

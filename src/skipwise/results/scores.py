"""Verdicts on a model: its effective length, its scores in RULER, and in the benchmarks of PoSE's paper.

The effective length has one rule for reports, ``evaluate`` and model cards. A length passes if the passkeys are found, and
if far positions are predicted no worse than the base predicts the same tokens inside its own window. The estimates decide; where
a 95% interval crosses its limit, ``doubt`` has the number of prompts that would settle it.

RULER's scores are shares from 0 to 1, averaged over tasks. The average of a length is over the tasks measured at every length,
so averages of several lengths compare. Benchmark scores are in per cent (the paper's Table 3).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from skipwise.errors import counted
from skipwise.results.records import BenchmarkRecord, RulerRecord
from skipwise.results.statistics import Interval, share_difference, wilson_interval

_ALL_TASKS = 13
THRESHOLD = 0.856  # Llama-2-7B's score at its own 4,096 tokens: RULER's limit (Hsieh et al., 2024, section 4)
FOUND = 0.9  # the share of passkeys that must be found
EXCESS = math.log(1.05)  # nats per token: 5% in perplexity
_MOST_PROMPTS = 10_000


@dataclass(frozen=True)
class RulerScores:
    """RULER's scores of one model: by task, length and number of the prompt."""

    arm: str
    prompts: Mapping[str, Mapping[int, Mapping[int, float]]]
    real: Mapping[str, bool] = field(default_factory=dict)  # by task: False if another text replaces RULER's own

    @property
    def lengths(self) -> list[int]:
        return sorted({length for lengths in self.prompts.values() for length in lengths})

    @property
    def means(self) -> tuple[tuple[str, int, float], ...]:
        """The mean score of every task and length."""
        return tuple(
            (task, length, math.fsum(scores.values()) / len(scores))
            for task, lengths in self.prompts.items()
            for length, scores in sorted(lengths.items())
        )

    def average(self, length: int, tasks: Sequence[str]) -> Interval | None:
        """Return the mean over tasks of their mean scores; None without scores. Tasks have equally many prompts.

        The interval is Wilson's, with a partial score as part of a hit. It is at least as wide as needed: scores between 0
        and 1 vary less than hits and misses of the same mean.
        """
        scores = [list(known.values()) for task in tasks if (known := self.prompts.get(task, {}).get(length))]
        if not scores:
            return None
        mean = math.fsum(math.fsum(each) / len(each) for each in scores) / len(scores)
        prompts = sum(map(len, scores))
        return Interval(mean, *wilson_interval(mean * prompts, prompts))


@dataclass(frozen=True)
class RulerLength:
    """A model's context length by RULER's rule."""

    tokens: int  # the longest length at which this and every shorter one reaches the limit, or 0
    text: str  # in words, with the rule and its numbers


def scores_of(records: Iterable[RulerRecord]) -> list[RulerScores]:
    """Arrange records by model; a later answer to a prompt replaces an earlier."""
    prompts: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    real: dict[str, dict[str, bool]] = {}
    for record in records:
        of_task = prompts.setdefault(record.arm, {}).setdefault(record.task, {})
        of_task.setdefault(record.length, {})[record.trial] = record.score
        of_arm = real.setdefault(record.arm, {})
        of_arm[record.task] = of_arm.get(record.task, True) and record.real_data
    return [RulerScores(arm, tasks, real[arm]) for arm, tasks in prompts.items()]


def shared_tasks(scores: Sequence[RulerScores]) -> list[str]:
    """Return the tasks that every model has at every length measured."""
    tasks = scores[0].prompts if scores else ()
    return [task for task in tasks if all(set(model.lengths) <= set(model.prompts.get(task, ())) for model in scores)]


def ruler_length(own: RulerScores, base: RulerScores | None, original: int | None) -> RulerLength | None:
    """Return a model's context length by tasks shared with its base, or None.

    RULER's limit applies if the base (without a base, the model itself) reaches it inside its own window. If not, the limit
    is the base's score there.
    """
    control = base or own
    tasks = shared_tasks([own, control])
    inside = [length for length in control.lengths if original and length <= original]
    if not tasks or not inside:
        return None
    home, control_name = inside[-1], "the base" if base else "the model itself"
    at_home = control.average(home, tasks)
    assert at_home is not None
    if not at_home.mean:
        return RulerLength(0, f"RULER decides nothing: {control_name} scores 0% at {home:,} tokens.")
    needed = min(THRESHOLD, at_home.mean)
    if needed == THRESHOLD:
        why = f"RULER's limit, what Llama-2-7B scores at 4,096 tokens; {control_name} reaches it at {home:,}"
    else:
        why = f"what {control_name} scores at {home:,} tokens, which is below RULER's limit of {THRESHOLD:.1%}"
    reached = 0
    for length in own.lengths:
        average = own.average(length, tasks)
        if average is None or average.mean < needed:
            break
        reached = length
    complete = len(tasks) == _ALL_TASKS and all(model.real.get(task) for model in (own, control) for task in tasks)
    by = "RULER" if complete else "RULER's rule, on some of its tasks or another text,"
    reads = f"reads {reached:,} tokens" if reached else "fails at the shortest length that was tested"
    return RulerLength(
        reached,
        f"By {by} it {reads}: the average of {counted(len(tasks), 'task')} must be at least {needed:.1%} ({why}), at a length "
        "and at every shorter one.",
    )


def paired(own: RulerScores, base: RulerScores) -> tuple[int, Interval] | None:
    """Return the longest length that both have, and the paired difference of their averages there."""
    tasks = shared_tasks([own, base])
    for length in sorted(set(own.lengths) & set(base.lengths), reverse=True):
        if difference := paired_at(own, base, length, tasks):
            return length, difference
    return None


def paired_at(own: RulerScores, other: RulerScores, length: int, tasks: Sequence[str]) -> Interval | None:
    """Return own average less the other's on shared prompts, or None."""
    ours, theirs = (
        {(task, trial): score for task in tasks for trial, score in model.prompts[task].get(length, {}).items()}
        for model in (own, other)
    )
    return share_difference(ours, theirs)


class PaperTask(NamedTuple):
    """The settings of a benchmark in the paper."""

    title: str  # in the paper's table
    fewshot: int  # examples before each question
    metric: str


# By the harness's names, in the order of the paper's table.
PAPER = {
    "boolq": PaperTask("BoolQ", 0, "acc"),
    "piqa": PaperTask("PIQA", 0, "acc"),
    "winogrande": PaperTask("WinoGrande", 0, "acc"),
    "truthfulqa_mc2": PaperTask("TruthfulQA", 0, "acc"),
    "arc_challenge": PaperTask("ARC-C", 25, "acc_norm"),
    "hellaswag": PaperTask("HellaSwag", 10, "acc_norm"),
}


@dataclass(frozen=True)
class Score:
    """A value with its standard error, both in per cent."""

    value: float
    error: float  # NaN if a part of it is not known
    paired: bool | None = None  # of a difference: whether it is over the same questions; None: not a difference


def is_of_paper(record: BenchmarkRecord) -> bool:
    """Return whether a record has the paper's task, metric and number of examples."""
    task = PAPER.get(record.task)
    return task is not None and (record.fewshot, record.metric) == (task.fewshot, task.metric)


def score(record: BenchmarkRecord) -> Score:
    """Return the score of a record in per cent."""
    return Score(100 * record.value, math.nan if record.standard_error is None else 100 * record.standard_error)


def difference(own: BenchmarkRecord, base: BenchmarkRecord) -> Score:
    """Return own score less the base's, in per cent.

    If both have scores of the same questions, the standard error is that of the mean of paired differences. It is smaller
    than the error of two independent models, which applies otherwise, because models mostly miss the same questions.
    """
    value = 100 * (own.value - base.value)
    if own.questions and own.questions == base.questions and len(own.scores) == len(base.scores) > 1:
        differences = np.subtract([*map(float, own.scores)], [*map(float, base.scores)])
        return Score(value, float(100 * differences.std(ddof=1) / math.sqrt(len(differences))), paired=True)
    return Score(value, math.hypot(score(own).error, score(base).error), paired=False)


def average(scores: Mapping[str, Score]) -> Score | None:
    """Return the mean over the paper's six tasks; None if one is missing."""
    if any(task not in scores for task in PAPER):
        return None
    six = [scores[task] for task in PAPER]
    error = math.hypot(*(each.error for each in six)) / len(six)
    paired = None if six[0].paired is None else all(each.paired for each in six)
    return Score(sum(each.value for each in six) / len(six), error, paired)


@dataclass(frozen=True)
class EffectiveLength:
    """The longest length that passes by the estimates, and what stopped it."""

    tokens: int  # the longest length at which this and every shorter tested length passes, or 0
    rule: str  # in words, with its numbers
    found: tuple[int, int] | None = None  # passkeys at ``tokens``: found, all
    next: str = ""  # measured at the next length; empty if all tested lengths passed
    doubt: str = ""  # what would settle intervals that cross their limit
    unknown: bool = False  # whether a condition was not measured at the next length
    base_fails: str = ""  # the base's share inside its own window, if that is too small
    own: tuple[int, int, int] | None = None  # the base's passkeys there: length, found, all

    def claimed(self, original: int | None) -> int | None:
        """Return the claimed length in tokens, 0 for a model that fails; None if undecided."""
        return None if self.unknown and self.tokens <= (original or 0) else self.tokens

    def headline(self, original: int | None, target: int | None = None) -> str:
        """Return the result in one sentence; ``original`` and ``target`` are in tokens."""
        inside, short = self.tokens <= (original or 0), bool(target and self.tokens < target)
        if target == original and self.claimed(original) is not None and self.tokens and self.found:
            text = f"{'Keeps' if self.own else 'Reads'} {self.tokens:,}{f' of its {target:,}' if short else ''} tokens"
            text += f": {_share(*self.found)} of passkeys found there"
            if self.own and self.own[0] == self.tokens:
                text += f", {_share(*self.own[1:])} before"
            return text + ("; nothing longer was measured" if short and not self.next else "")
        if self.claimed(original) is None or (inside and not self.next and target != original):
            text = "Too little was measured for a verdict"
        elif not self.tokens or not self.found:
            text = "Not extended: it fails the rule at the shortest length that was tested"
        elif inside:
            text = f"Not extended: it reads {self.tokens:,} tokens, no more than its original {original:,}"
        else:
            times = f", {self.tokens / original:.3g} times its original window" if original else ""
            text = f"Reads {self.tokens:,} tokens{times}: {_share(*self.found)} of passkeys found there"
            text += "; nothing longer was measured" if short and not self.next else ""
        return "; ".join(filter(None, [text, self.base_fails]))


def effective_length(
    passkeys: Mapping[int, tuple[int, int]],  # (found, all) by prompt length
    excess: Mapping[int, Interval],  # nats per token, by the end of the positions
    control: str,  # its name in the rule
    own: tuple[int, int, int] | None = None,  # the base's passkeys inside its own window: length, found, all
) -> EffectiveLength:
    """Return the effective length: go up through the tested lengths to the first that does not pass.

    ``excess`` is the loss between two lengths, with the whole document as context, less that of the same tokens under
    ``control``. If the base fails inside its own window, its share of passkeys sets the limit.
    """
    needed, of_base, base_fails = FOUND, "", ""
    if own and (share := own[1] / own[2]) < FOUND:
        base_fails = f"the base itself finds {share:.0%} of the passkeys in {own[0]:,} tokens"
        if share:
            needed, of_base = FOUND * share, f" ({FOUND:.0%} of the share that the base finds at {own[0]:,} tokens)"
    rule = (
        f"The longest tested length such that, at it and at every shorter one, at least {needed:.0%} of the passkeys"
        f"{of_base} are found, and the loss at its positions is at most {EXCESS:.3f} nats a token (5% in perplexity) above "
        f"that of {control} on the same tokens."
    )
    reads = partial(EffectiveLength, rule=rule, base_fails=base_fails, own=own)
    if missing := [name for name, known in (("passkeys", passkeys), ("loss by position", excess)) if not known]:
        return reads(0, next=f"Not measured: {' and '.join(missing)}.", unknown=True)
    if base_fails and not of_base:  # any model would pass
        return reads(0, next="Passkeys decide nothing, because the base finds none of them.", unknown=True)
    reached, prompts, documents = 0, 0, False
    for length in sorted({*passkeys, *excess}):
        failures = []
        if length in passkeys:
            prompts = max(prompts, prompts_to_settle(*passkeys[length], needed))
            if passkeys[length][0] < needed * passkeys[length][1]:
                failures.append(f"{_share(*passkeys[length])} of passkeys are found, {needed:.0%} needed")
        if length in excess:
            loss = excess[length]
            documents |= not (loss.high <= EXCESS or loss.low > EXCESS)
            if not loss.mean <= EXCESS:
                failures.append(f"the loss is {loss} nats above the control, {EXCESS:.3f} allowed")
        reads = partial(reads, tokens=reached, found=passkeys.get(reached), doubt=_doubt(prompts, documents))
        if failures:
            return reads(next=f"At {length:,} tokens {'; '.join(failures)}.")
        if length not in passkeys or length not in excess:
            other = "loss" if length in passkeys else "passkeys"
            return reads(next=f"At {length:,} tokens {other} was not measured.", unknown=True)
        reached = length
    return reads(tokens=reached, found=passkeys[reached], doubt=_doubt(prompts, documents))


def prompts_to_settle(hits: int, trials: int, needed: float) -> int:
    """Return how many prompts would put the whole interval on one side, at the same share; 0 if these do."""

    def decided(count: int) -> bool:
        found = hits * count / trials
        low, high = wilson_interval(math.floor(found) if hits >= needed * trials else math.ceil(found), count)
        return low >= needed or high < needed

    return 0 if decided(trials) else next((n for n in range(trials, _MOST_PROMPTS) if decided(n)), _MOST_PROMPTS)


def _doubt(prompts: int, documents: bool) -> str:
    """Return what would settle intervals that cross their limit, in a sentence; empty if none does."""
    count = (
        f"{prompts:,}" if prompts < _MOST_PROMPTS else "thousands of"
    )  # or none, where the share is the limit itself
    needs = [f"{count} prompts of each length"] if prompts else []
    needs += ["more documents"] if documents else []
    return f"The 95% intervals allow another verdict: {' and '.join(needs)} would settle it." if needs else ""


def _share(hits: int, trials: int) -> str:
    """Return a share with its interval, e.g. 98% (90 to 100%)."""
    low, high = wilson_interval(hits, trials)
    return f"{hits / trials:.0%} ({100 * low:.0f} to {high:.0%})"

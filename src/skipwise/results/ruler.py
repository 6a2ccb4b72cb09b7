"""RULER's records -> scores by task and length, averages, and how far a model reads by RULER's rule.

Scores are shares from 0 to 1. The average of a length is over tasks, as RULER's is, and over the tasks that were asked at
every length, so that averages of several lengths compare.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from skipwise.errors import counted
from skipwise.results.records import RulerRecord
from skipwise.results.statistics import Interval, share_difference, wilson_interval

_ALL_TASKS = 13
THRESHOLD = 0.856  # what Llama-2-7B scores at its own 4,096 tokens: RULER's limit (Hsieh et al., 2024, section 4)


@dataclass(frozen=True)
class RulerScores:
    """What one model scored: for each task and length the score of each prompt, by its number."""

    arm: str
    prompts: Mapping[str, Mapping[int, Mapping[int, float]]]
    real: Mapping[str, bool] = field(default_factory=dict)  # by task: False where a text stood in for RULER's own

    @property
    def lengths(self) -> list[int]:
        """All lengths that were asked."""
        return sorted({length for lengths in self.prompts.values() for length in lengths})

    @property
    def means(self) -> tuple[tuple[str, int, float], ...]:
        """The mean score of every task and length."""
        return tuple(
            (task, length, math.fsum(scores.values()) / len(scores))
            for task, lengths in self.prompts.items()
            for length, scores in sorted(lengths.items())
        )

    def score(self, task: str, length: int) -> Interval | None:
        """The mean score of a task; None where it was not asked at this length.

        The interval is Wilson's, for which a share of the answers is a share of a hit. That is at least as wide as it
        has to be, because scores between 0 and 1 vary less than hits and misses of the same mean.
        """
        asked = self.prompts.get(task, {}).get(length)
        return _wilson(list(asked.values())) if asked else None

    def tasks_at(self, lengths: Iterable[int]) -> list[str]:
        """The tasks that were asked at each of some lengths."""
        wanted = set(lengths)
        return [task for task, known in self.prompts.items() if wanted <= set(known)]

    def average(self, length: int, tasks: Sequence[str]) -> Interval | None:
        """The mean over tasks of their mean scores; None without tasks. All tasks have the same number of prompts."""
        scores = [list(known.values()) for task in tasks if (known := self.prompts.get(task, {}).get(length))]
        if not scores:
            return None
        mean = math.fsum(math.fsum(each) / len(each) for each in scores) / len(scores)
        asked = sum(map(len, scores))
        return Interval(mean, *wilson_interval(mean * asked, asked))


@dataclass(frozen=True)
class RulerLength:
    """How far a model reads by RULER's rule."""

    tokens: int  # the longest length at which this and every shorter one reaches the limit; 0 where none does
    told: str  # in words, with the rule and its numbers


def scores_of(records: Iterable[RulerRecord]) -> list[RulerScores]:
    """Arrange records by model, in their order; a prompt that was answered again replaces the older answer."""
    prompts: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    real: dict[str, dict[str, bool]] = {}
    for record in records:
        of_task = prompts.setdefault(record.arm, {}).setdefault(record.task, {})
        of_task.setdefault(record.length, {})[record.trial] = record.score
        of_arm = real.setdefault(record.arm, {})
        of_arm[record.task] = of_arm.get(record.task, True) and record.real_data
    return [RulerScores(arm, tasks, real[arm]) for arm, tasks in prompts.items()]


def shared_tasks(scores: Sequence[RulerScores]) -> list[str]:
    """The tasks that every model was asked at every length at which it was asked any."""
    shared = [set(one.tasks_at(one.lengths)) for one in scores]
    return [task for task in scores[0].prompts if all(task in tasks for tasks in shared)] if scores else []


def ruler_length(own: RulerScores, base: RulerScores | None, original: int | None) -> RulerLength | None:
    """How far ``own`` reads, by averages over the tasks that it and its base share; None if they share none.

    RULER's limit counts if the base (without one, the model itself) reaches it inside its own window. If not, the limit is
    what the base scores there.
    """
    control = base or own
    tasks = shared_tasks([own, control])
    inside = [length for length in control.lengths if original and length <= original]
    if not tasks or not inside:
        return None
    at_home = control.average(inside[-1], tasks)
    assert at_home is not None
    home, whose = inside[-1], "the base" if base else "the model itself"
    if not at_home.mean:
        return RulerLength(0, f"RULER tells nothing of its length: {whose} scores 0% at {home:,} tokens.")
    needed = min(THRESHOLD, at_home.mean)
    if needed == THRESHOLD:
        why = f"RULER's limit, what Llama-2-7B scores at 4,096 tokens; {whose} reaches it at {home:,}"
    else:
        why = f"what {whose} scores at {home:,} tokens, which is below RULER's limit of {THRESHOLD:.1%}"
    reached = 0
    for length in own.lengths:
        found = own.average(length, tasks)
        if found is None or found.mean < needed:
            break
        reached = length
    whole = len(tasks) == _ALL_TASKS and all(one.real.get(task) for one in (own, control) for task in tasks)
    by = "RULER" if whole else "RULER's rule, on some of its tasks or another text,"
    reads = f"reads {reached:,} tokens" if reached else "fails at the shortest length that was tested"
    return RulerLength(
        reached,
        f"By {by} it {reads}: the average of {counted(len(tasks), 'task')} must be at least {needed:.1%} ({why}), at a length "
        "and at every shorter one.",
    )


def paired(own: RulerScores, base: RulerScores) -> tuple[int, Interval] | None:
    """The longest length that both were asked, and there the average of own less base's, as ``paired_at`` gives it."""
    tasks = shared_tasks([own, base])
    for length in sorted(set(own.lengths) & set(base.lengths), reverse=True):
        if difference := paired_at(own, base, length, tasks):
            return length, difference
    return None


def paired_at(own: RulerScores, other: RulerScores, length: int, tasks: Sequence[str]) -> Interval | None:
    """The average over tasks of own less another model's on the same prompts of one length; None where they share none."""
    ours, theirs = (
        {(task, trial): score for task in tasks for trial, score in one.prompts[task].get(length, {}).items()}
        for one in (own, other)
    )
    return share_difference(ours, theirs)


def _wilson(scores: Sequence[float]) -> Interval:
    total = math.fsum(scores)  # the same whatever the order
    return Interval(total / len(scores), *wilson_interval(total, len(scores)))

"""What figures, tables and pages show: what some folders say, and how each row looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from skipwise.recipes.names import BASELINES
from skipwise.report.folder import Folder
from skipwise.report.summary import Judgement, Row, judgements, rows_of


class Look(NamedTuple):
    """How a model looks; colour is never the only difference, for some colours look alike to colour-blind readers."""

    colour: str
    marker: str  # on lines
    hatch: str  # on bars
    dash: Any = "-"
    width: float = 2.2

    @property
    def line(self) -> dict[str, Any]:
        """What Matplotlib's ``plot`` takes."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "lw": self.width}


# Mid-tones, at least 3:1 against white and against #15181c. Where a colour-blind reader takes two for one, hatches differ.
ARM_LOOKS = {
    "original": Look("#848c96", "o", ""),
    "pi-only": Look("#d9760f", "s", "///"),
    "pose": Look("#2f7de1", "D", ""),
    "full": Look("#1a9a60", "^", "\\\\\\"),
    "randpos": Look("#a162d6", "v", "xxx"),
    "cream": Look("#0f97a8", "X", "---"),
    "short": Look("#a8693d", "P", "..."),
    "skipwise": Look("#e0334c", "h", ""),
}
OTHER_LOOK = Look("#c9508f", "*", "|||")
# Looks of labels that are no arm: blue first, and the original's grey last.
_FREE = [*(ARM_LOOKS[arm] for arm in ("pose", "pi-only", "full", "randpos", "cream", "short")), OTHER_LOOK]
_FREE += [ARM_LOOKS["original"]]
DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]


@dataclass(frozen=True)
class Shown:
    """What the records of some folders say; it is computed when it is first asked for."""

    folders: Sequence[Folder]

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each model and text."""
        return rows_of(self.folders)

    @cached_property
    def judged(self) -> list[Judgement]:
        """How far each extended model reads."""
        return judgements(self.rows)

    @property
    def evaluated(self) -> bool:
        """Whether the models of an evaluation are shown, and not the arms of runs."""
        return any(folder.models for folder in self.folders)

    @cached_property
    def looks(self) -> dict[str, Look]:
        """By label of a row; a base that an evaluation compares with looks as the original of a run."""
        arms = [row.arm if row.judged or row.arm in ARM_LOOKS else "original" for row in self.rows]
        return {row.label: look for row, look in zip(self.rows, looks_of(arms), strict=True)}

    @property
    def original(self) -> int | None:
        """The original length in tokens, if all judged models share it."""
        lengths = {row.original for row in self.rows if row.judged}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def few(self) -> list[Row]:
        """All rows, or where there are many only those of extended models: what a caption names."""
        return self.rows if len(self.rows) <= 4 else [row for row in self.rows if row.judged]

    @property
    def bases(self) -> list[Row]:
        """What an evaluation compares with. It was measured inside its own window only, so figures carry it on."""
        return [row for row in self.rows if not row.judged] if self.evaluated else []


def looks_of(labels: Sequence[str]) -> list[Look]:
    """An arm's own look, for another label what no arm beside it has, and a dash for each further line of a label."""
    looks = {label: ARM_LOOKS[label] for label in labels if label in ARM_LOOKS}
    free = [look for look in _FREE if look not in looks.values()]
    others = dict.fromkeys(label for label in labels if label not in looks)
    looks |= {label: free[turn % len(free)] for turn, label in enumerate(others)}
    return [
        looks[label]._replace(
            dash=DASHES[list(labels[:i]).count(label) % len(DASHES)], width=1.5 if label in BASELINES else 2.2
        )
        for i, label in enumerate(labels)
    ]


def listed(parts: list[str]) -> str:
    """The parts as a list in a sentence: one, two and three."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)

"""What an extension cost inside the original window on text of other kinds: its short ability, without a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass

from skipwise.errors import counted
from skipwise.recipes.names import arm_name
from skipwise.report.folder import Folder
from skipwise.report.summary import COST_LIMIT
from skipwise.results.records import OTHER_TEXT, ReadingRecord
from skipwise.results.statistics import FEWEST_SEGMENTS, Interval, Sums, difference, loss

_Read = Mapping[tuple[int, int], ReadingRecord]  # segments of one document, by their length and beginning


@dataclass(frozen=True)
class Compared:
    """A mean of a model and of its base on the same segments, and the difference; None where no base is known."""

    own: float
    base: float | None
    difference: Interval | None


@dataclass(frozen=True)
class Price:
    """How a model reads one kind of other text, and what its extension cost there."""

    arm: str  # the extended one
    kind: str
    loss: Compared  # nats a token
    accuracy: Compared  # of the next token, in per cent
    segments: int
    tokens: int  # of each segment

    @property
    def has_interval(self) -> bool:
        """Whether there are segments enough for the interval of the difference."""
        return self.segments >= FEWEST_SEGMENTS

    @property
    def rise(self) -> float:
        """The difference of the loss in nats a token; 0 where no base is known."""
        return self.loss.difference.mean if self.loss.difference else 0.0

    @property
    def measures(self) -> dict[str, Compared]:
        """What was measured, by its name and unit."""
        return {"loss (nats)": self.loss, "accuracy (%)": self.accuracy}

    def told(self, difference: Interval, digits: int = 3) -> str:
        """A difference and its 95% interval, or why it has none."""
        mean, low, high = (f"{value:+.{digits}f}" for value in (difference.mean, difference.low, difference.high))
        if self.has_interval:
            return f"{mean} [{low}, {high}]"
        return f"{mean} [{counted(self.segments, 'segment')}: too few for an interval]"


def prices_of(folder: Folder) -> list[Price]:
    """How every model but a base read each kind of text; of a run only where its base read it too."""
    read: dict[str, dict[str, dict[tuple[int, int], ReadingRecord]]] = {}  # by arm and kind
    for r in folder.records:
        if isinstance(r, ReadingRecord) and r.data == OTHER_TEXT:
            read.setdefault(r.arm, {}).setdefault(r.document, {})[r.window, r.begin] = r
    bases = {arm: folder.base_of(arm) for arm in read}
    return [
        price
        for arm, kinds in read.items()
        if bases[arm] or (folder.models and arm not in bases.values())
        for kind, ours in kinds.items()
        if (price := _price(arm, kind, ours, read.get(bases[arm], {}).get(kind, {}) if bases[arm] else None))
    ]


def _price(arm: str, kind: str, ours: _Read, theirs: _Read | None) -> Price | None:
    """Compare the segments that both have read: all, unless the run was stopped in between.

    A run that an earlier version began may have segments of two lengths, of which the shorter ones count.
    """
    both = sorted(ours.keys() & (ours if theirs is None else theirs).keys())
    shared = [key for key in both if key[0] == both[0][0]]
    own, base = [ours[key] for key in shared], None if theirs is None else [theirs[key] for key in shared]
    if not own or (base is not None and difference(own, base) is None):
        return None
    return Price(arm, kind, _compared(own, base), _compared(own, base, "hits", 100), len(shared), own[0].window)


def _compared(
    own: list[ReadingRecord], base: list[ReadingRecord] | None, sums: Sums = "nll", unit: float = 1
) -> Compared:
    mean = loss(own, sums=sums).mean * unit
    if base is None:
        return Compared(mean, None, None)
    change = difference(own, base, sums=sums, by_segment=True)
    return Compared(mean, loss(base, sums=sums).mean * unit, change.times(unit) if change else None)


def price_warning(folder: Folder) -> str:
    """What to say if the loss on a kind of text rises too much, of each model; else empty."""
    prices = prices_of(folder)
    high: dict[str, list[Price]] = {}
    for price in prices:
        if price.rise > COST_LIMIT:
            high.setdefault(price.arm, []).append(price)
    named = len({price.arm for price in prices}) > 1
    return " ".join((f"{arm_name(arm)}: " if named else "") + _warning(folder, own) for arm, own in high.items())


def _warning(folder: Folder, prices: list[Price]) -> str:
    settings, way = folder.info.get("settings", {}), "" if folder.models else " (--set teacher.weight=1)"
    for name in ("teacher.weight", "teacher.written_weight"):  # the first that is above 0
        weight = settings.get(name)
        if isinstance(weight, int | float) and weight > 0:
            most = 1000  # a recipe takes no higher weight
            way = f" more (--set {name}={min(4 * weight, most):g}, now {weight:g})" if weight < most else ""
            break
    rises = " and ".join(f"{price.rise:.3f} on {price.kind}" for price in prices)
    ways = f"Let the base teach{way}, or train on such text too" if way else "Train on such text too"
    return (
        f"Inside the original window the loss rises by {rises} (nats per token), more than {COST_LIMIT}: the model reads "
        f"such text worse than its base. {ways}."
    )

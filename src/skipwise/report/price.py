"""What an extension cost inside the original window on text of other kinds than it was trained on."""

from collections.abc import Mapping
from dataclasses import dataclass

from skipwise.errors import counted
from skipwise.report.summary import COST_LIMIT, Folder, mapping
from skipwise.results.records import OTHER_TEXT, ReadingRecord
from skipwise.results.statistics import Interval, difference, loss

FEWEST_SEGMENTS = 8  # of which an interval is given: one of fewer misses the mean too often (docs/evaluation.md)


@dataclass(frozen=True)
class Price:
    """What one kind of other text cost; losses are in nats a token."""

    arm: str  # the extended one
    kind: str
    base: float
    extended: float
    difference: Interval
    segments: int
    tokens: int  # of each segment

    @property
    def has_interval(self) -> bool:
        """Whether there are segments enough for the interval of the difference."""
        return self.segments >= FEWEST_SEGMENTS

    @property
    def told(self) -> str:
        """The difference and its 95% interval, or why it has none."""
        if self.has_interval:
            return str(self.difference)
        return f"{self.difference.mean:+.3f} [{counted(self.segments, 'segment')}: too few for an interval]"


def prices_of(folder: Folder) -> list[Price]:
    """The price of each kind of text; empty where the base or the extended model did not read it."""
    read: dict[str, dict[str, dict[int, ReadingRecord]]] = {}  # by kind, arm and beginning
    for r in folder.records:
        if isinstance(r, ReadingRecord) and r.data == OTHER_TEXT:
            read.setdefault(r.document, {}).setdefault(r.arm, {})[r.begin] = r
    return [
        price
        for kind, arms in read.items()
        for arm in arms
        if arm != "original" and (price := _price(kind, arm, arms[arm], arms.get("original", {})))
    ]


def _price(kind: str, arm: str, ours: Mapping[int, ReadingRecord], theirs: Mapping[int, ReadingRecord]) -> Price | None:
    shared = sorted(ours.keys() & theirs.keys())  # all, unless the run was stopped in between
    extended, base = [ours[begin] for begin in shared], [theirs[begin] for begin in shared]
    apart = difference(extended, base, by_segment=True)
    if apart is None:
        return None
    return Price(arm, kind, loss(base).mean, loss(extended).mean, apart, len(shared), base[0].window)


def price_warning(folder: Folder) -> str:
    """What to say if the price of a kind of text is high; else empty."""
    high = [price for price in prices_of(folder) if price.difference.mean > COST_LIMIT]
    if not high:
        return ""
    settings, way = mapping(folder.info.get("settings")), " (--set teacher.weight=1)"
    for name in ("teacher.weight", "teacher.written_weight"):  # the first that is above 0
        weight = settings.get(name)
        if isinstance(weight, int | float) and weight > 0:
            most = 1000  # a recipe takes no higher weight
            way = f" more (--set {name}={min(4 * weight, most):g}, now {weight:g})" if weight < most else ""
            break
    rises = " and ".join(f"{price.difference.mean:.3f} on {price.kind}" for price in high)
    ways = f"Let the base teach{way}, train longer" if way else "Train longer"
    return (
        f"Inside the original window the loss rises by {rises} (nats per token), more than {COST_LIMIT}: the model reads "
        f"such text worse than its base. {ways}, or train on such text too."
    )

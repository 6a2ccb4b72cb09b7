"""What was measured of the model in training, at the steps that ``evaluation.steps`` names."""

from collections import defaultdict

from skipwise.report.folder import Folder
from skipwise.results.records import ReadingRecord
from skipwise.results.statistics import Interval, loss


def perplexity_by_step(folder: Folder) -> dict[tuple[str, int], dict[int, Interval]]:
    """Return by (mode, window in tokens) and by step the perplexity of the first text.

    In sliding windows all tokens count. In segments, which ``evaluation.keep: best`` reads, those beyond the original window do.
    A step that a kill left with a part of its records is left out.
    """
    asked = folder.info.get("evaluation", {}).get("documents")
    first = next(iter(asked), None) if isinstance(asked, dict) else None  # a resumed run may name another text
    read: dict[tuple[str, int], dict[int, dict[str, ReadingRecord]]] = defaultdict(lambda: defaultdict(dict))
    for record in folder.records:
        if isinstance(record, ReadingRecord) and record.step is not None and first in (None, record.data):
            read[record.mode, record.window][record.step][record.key] = record
    curves = {}
    for (mode, window), steps in read.items():
        arm = next(record.arm for records in steps.values() for record in records.values())
        begin = folder.length("original", arm) or 0 if mode == "segment" else 0
        whole = max(len(records) for records in steps.values())
        curves[mode, window] = {
            step: loss(list(records.values()), begin).exp()
            for step, records in sorted(steps.items())
            if len(records) == whole
        }
    return curves

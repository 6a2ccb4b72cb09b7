"""What a run wrote -> plain dictionaries of numbers; of all here the one file that knows how records and tables are written.

Golden files hold what these functions return, and nothing else of the records. Who changes the records changes this file,
so that it returns the same. Arms are named as on the command line and in tables, documents by their file; of a document that
is cut into several segments each is "document, segment 1" and so on. A window is as many tokens as are read at once. Of a run
the sum over documents is kept, and small buckets of positions are put together.
"""

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Measured = dict[str, dict[str, Any]]
Numbers = Iterator[tuple[str, str, Any]]  # the dictionary's name, the key in it, the value

_OTHER = "skipwise:other"  # the text of other kinds that ships with the package
_ORIGINAL = 256  # window of the model that is extended
_SUMMED = ("nats", "tokens", "nats by step", "tokens by step")


def losses(file: Path) -> dict[str, float]:
    """The loss of each logged training step."""
    return {f"{r['arm']}|{r['step']}": r["loss"] for r in _records(file) if r["kind"] == "training"}


def measured(file: Path, edges: Sequence[int] = (), window: int | None = None) -> Measured:
    """Every number of an evaluation by kind, or those of one window; ``edges`` are the buckets to compare [all]."""
    records = [record for record in _records(file) if window is None or record.get("window") == window]
    run = any(record["kind"] == "training" for record in records)
    found: Measured = defaultdict(dict)
    far: dict[str, list[float]] = defaultdict(list)
    for name, key, value in _numbers(records, run, edges):
        if name == "far loss by step":
            far[key].append(value)
        elif name in _SUMMED and key in found[name]:
            assert key.endswith("|all"), f"{name} of {key} is there twice"
            found[name][key] += value
        else:
            assert key not in found[name], f"{name} of {key} is there twice"
            found[name][key] = value
    if far:
        found["far loss by step"] = {key: sum(values) / len(values) for key, values in far.items()}
    return dict(found)


def kept(folder: Path) -> dict[str, Any]:
    """Which step's weights a run kept, as it says itself."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))["kept"]
    return {"step": facts["step"], "far loss": facts["far_loss"]}


def _records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _numbers(records: list[dict[str, Any]], run: bool, edges: Sequence[int]) -> Numbers:
    seen: Counter[tuple[str, str, int]] = Counter()
    for record in records:
        if record["kind"] == "trial":
            yield from _trial(record)
        elif record["kind"] == "reading" and record["step"] is not None:
            yield from _step(record)
        elif record["kind"] == "reading" and record["data"] == _OTHER:
            key = f"{record['arm']}|{record['window']}|{record['document']}|all"
            yield "nats", key, sum(record["nll"])
            yield "tokens", key, record["edges"][-1] - record["edges"][0]
        elif record["kind"] == "reading" and record["mode"] == "segment":
            place = (record["arm"], record["document"], record["window"])
            seen[place] += 1
            key = f"{record['arm']}|{record['window']}|{record['document']}, segment {seen[place]}"
            yield from _buckets(key, record, edges)
        elif record["kind"] == "reading":
            key = f"{record['arm']}|{record['window']}|{'all' if run else record['document']}"
            yield "nats", key, sum(record["nll"])
            yield "tokens", key, record["edges"][-1] - record["edges"][0]
            if not run:
                yield from _buckets(key, record, edges)


def _buckets(key: str, record: dict[str, Any], edges: Sequence[int]) -> Numbers:
    """Sums over the buckets of a reading, or over the larger ones between ``edges``."""
    lows = record["edges"][:-1]
    for begin, end in pairwise(edges or record["edges"]):
        inside = [i for i, low in enumerate(lows) if begin <= low < end]
        yield "nats by position", f"{key}|{begin}..{end - 1}", sum(record["nll"][i] for i in inside)
        yield "hits by position", f"{key}|{begin}..{end - 1}", sum(record["hits"][i] for i in inside)


def _step(record: dict[str, Any]) -> Numbers:
    """The model in training: sliding windows, summed over documents, or the far part of a segment."""
    key = f"{record['arm']}|{record['step']}"
    if record["mode"] == "sliding":
        yield "nats by step", f"{key}|{record['window']}|all", sum(record["nll"])
        yield "tokens by step", f"{key}|{record['window']}|all", record["edges"][-1] - record["edges"][0]
    else:
        far = [nats for low, nats in zip(record["edges"], record["nll"], strict=False) if low >= _ORIGINAL]
        yield "far loss by step", key, sum(far) / (record["edges"][-1] - _ORIGINAL)


def _trial(record: dict[str, Any]) -> Numbers:
    key = f"{record['arm']}|{record['task']}|{record['length']}|{record['trial']}"
    yield "found", key, record["hit"]
    yield "answers", key, record["answer"]
    yield "depths", key, record["depth"]
    yield "prompt tokens", key, record["prompt_tokens"]


_BARS = re.compile(r"[━╸╺]")  # of progress
_RULES = re.compile(r"[│┃]|(?<!\S)\|(?!\S)")  # and no bar inside a word
_LABELLED = re.compile(r"\w+:  ")  # "model:  runs/demo/model"


def printed_tables(text: str) -> list[str]:
    """The lines of every table in what a command printed, an empty one between two tables.

    A line of a table has two cells or more; sentences have one, and how they are worded is not compared.
    """
    kept: list[str] = []
    for line in text.splitlines():
        if len(cells(line)) > 1 and not _BARS.search(line) and not _LABELLED.match(line):
            kept.append(line.rstrip())
        elif kept and kept[-1]:
            kept.append("")
    return kept[:-1] if kept and not kept[-1] else kept


def markdown_table(page: Path) -> list[str]:
    """The lines of the only table of a Markdown page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|") and not re.fullmatch(r"[\s|:-]+", line)]


def csv_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def cells(line: str) -> list[str]:
    """The cells of a line of a printed or a Markdown table; how wide a column is is not compared."""
    return [cell.strip() for cell in re.split(r"\s{2,}", _RULES.sub("  ", line).strip()) if cell.strip()]


def csv_cells(line: str) -> list[str]:
    return next(csv.reader([line]), [])

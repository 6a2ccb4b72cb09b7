"""Records made up for tests of statistics and reports: perplexities, passkeys, runs and evaluations."""

import json
import math
from itertools import pairwise
from pathlib import Path

from skipwise.results.records import ReadingRecord, TrialRecord, append_record

WINDOWS = (256, 512, 1024, 2048)
DOCUMENTS = 6
INFO = {"model": {"name": "nano", "original_length": 256, "target_length": 2048}}


def readings(
    arm: str,
    window: int,
    perplexity: float | list[float],
    data: str = "held out",
    *,
    documents: int = DOCUMENTS,
    digest: str = "d",
) -> list[ReadingRecord]:
    """Documents as long as the longest window; ``perplexity`` is that of all, or of each bucket of positions.

    The buckets end at 64, 128, 256, 512, 1024 and 2048. Documents differ a little, so that there is an interval.
    """
    edges = [1, 64, 128, *WINDOWS]
    levels = perplexity if isinstance(perplexity, list) else [perplexity] * (len(edges) - 1)
    sizes = [high - low for low, high in pairwise(edges)]
    made = []
    for n in range(documents):
        apart = 0.002 * (n - (documents - 1) / 2)  # nats; zero on average
        nll = [size * (math.log(level) + apart) for size, level in zip(sizes, levels, strict=True)]
        hits = [size // 3 for size in sizes]
        made.append(
            ReadingRecord(arm, data, f"d{n}", "sliding", 0, window, 128, edges, "float32", digest, None, nll, hits, 1.0)
        )
    return made


def trials(arm: str, length: int, hits: int, asked: int = 100, task: str = "passkey") -> list[TrialRecord]:
    """Prompts at even depths, of which the first ``hits`` are answered rightly."""
    return [
        TrialRecord(arm, task, length, 0, i, "spread", "float32", "d", i / asked, length - 3, i < hits, "1", 0.1)
        for i in range(asked)
    ]


def arm(name: str, perplexities: list[float], hits: list[int]) -> list[ReadingRecord | TrialRecord]:
    """One arm at every window of ``WINDOWS``: its perplexity, and passkeys found of a hundred."""
    made: list[ReadingRecord | TrialRecord] = []
    for window, perplexity, found in zip(WINDOWS, perplexities, hits, strict=True):
        made += [*readings(name, window, perplexity), *trials(name, window, found)]
    return made


ORIGINAL = arm("original", [15.7, 79, 109, 134], [100, 0, 0, 0])
PI_ONLY = arm("untrained", [18.9, 18.5, 18.6, 19.3], [70, 70, 60, 30])
POSE = arm("pose", [15.3, 15.0, 15.2, 15.4], [100, 100, 99, 98])


def run_folder(folder: Path, records: list, info: object = INFO, recipe: str = "model: nano\n") -> Path:
    """Write the folder of a run."""
    folder.mkdir(parents=True)
    append_record(folder / "results.jsonl", *records)
    if info is not None:
        (folder / "run.json").write_text(json.dumps(info))
    (folder / "recipe.yaml").write_text(recipe)
    return folder


def evaluation_folder(folder: Path, measured: list, base: str = "base", **facts: object) -> Path:
    """Write the folder of an evaluation of a model ``m``, extended from 256 to 2,048 tokens, and of its base."""
    model = {"label": "m", "name": "m", "original": 256, "target": 2048, "base": base, "control": False}
    behind = {**model, "label": "base", "base": "", "control": True}
    folder.mkdir(parents=True)
    asked = {"windows": list(WINDOWS), "models": [model, behind]}
    (folder / "run.json").write_text(json.dumps({"evaluation": asked, **facts}))
    append_record(folder / "results.jsonl", *measured)
    return folder

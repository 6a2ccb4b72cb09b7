"""Tokens a second and memory of ``build_token_store``, over as many tokens as you like.

    python benchmarks/tokenising.py [--tokens 1e9] [--document 20k] [--folder /tmp]

The text is made on the spot, in JSON Lines files of 32 MB: lines of Python's standard library, drawn with a seed.
Checked: the store holds every document that was written. Flat memory is the claim: the peak after the last tenth is at
most 10% above the peak after the first.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from skipwise.data.store import build_token_store
from skipwise.data.text import open_corpus
from skipwise.method.lengths import parse_length
from skipwise.model.loading import load_tokenizer

FILE_BYTES = 2**25
SHOWN = 10  # parts of the text after which a line is printed


def documents(lines: list[str], characters: int) -> Iterator[str]:
    """Documents of about so many characters, without end: lines drawn with a seed."""
    draw = np.random.default_rng(0)
    mean = sum(map(len, lines)) / len(lines)
    while True:
        yield "".join(lines[i] for i in draw.integers(0, len(lines), max(1, round(characters / mean))))


def write_corpus(folder: Path, made: Iterator[str], total: int) -> tuple[int, int]:
    """Write documents of ``total`` characters in all; returns the documents and their characters."""
    count = written = file = 0
    while written < total:
        with open(folder / f"{file:06}.jsonl", "w", encoding="utf-8") as out:
            while written < total and out.tell() < FILE_BYTES:
                text = next(made)
                out.write(json.dumps({"text": text}) + "\n")
                count, written = count + 1, written + len(text)
        file += 1
    return count, written


def resident() -> int:
    """The memory that this process holds now, in bytes; 0 where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


class Watch:
    """Prints a line after each tenth of the documents; an ``on_progress`` of ``build_token_store``."""

    def __init__(self, documents: int) -> None:
        self.documents, self.began = documents, time.perf_counter()
        self.peaks: list[int] = []

    def __call__(self, documents: int, tokens: int, share: float | None) -> None:
        while documents >= self.documents * (len(self.peaks) + 1) // SHOWN and len(self.peaks) < SHOWN:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kB
            self.peaks.append(peak)
            rate = tokens / (time.perf_counter() - self.began)
            print(
                f"{len(self.peaks) / SHOWN:4.0%} {tokens:14,} tokens {rate:10,.0f} tokens/s   "
                f"peak {peak / 2**20:7,.0f} MiB   now {resident() / 2**20:7,.0f} MiB",
                flush=True,
            )


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=parse_length, default=50_000_000, help="about so many, for example 1e9")
    parser.add_argument("--document", type=parse_length, default=20_000, help="characters of a document")
    parser.add_argument("--model", default="nano", help="whose tokenizer: nano, a folder, or a name on the hub")
    parser.add_argument("--folder", help="where the text and the store are made for the time of the run")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.model)
    lines = [line for document in open_corpus("stdlib") for line in document.text.splitlines(keepends=True)]
    sample = next(documents(lines, 100_000))
    total = round(options.tokens * len(sample) / len(tokenizer(sample, verbose=False)["input_ids"]))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        (corpus := Path(folder) / "corpus").mkdir()
        began = time.perf_counter()
        count, characters = write_corpus(corpus, documents(lines, options.document), total)
        print(f"{count:,} documents, {characters:,} characters, made in {time.perf_counter() - began:.0f} s")
        watch = Watch(count)
        os.environ["SKIPWISE_CACHE"] = str(Path(folder) / "cache")
        store = build_token_store(corpus, tokenizer, on_progress=watch)
        seconds = time.perf_counter() - watch.began
        assert len(store) == count
    print(f"whole {len(store.tokens):14,} tokens {len(store.tokens) / seconds:10,.0f} tokens/s, hashing included")
    print(f"memory: peak {watch.peaks[-1] / watch.peaks[0] - 1:+.1%} from the first tenth to the last")


if __name__ == "__main__":
    main()

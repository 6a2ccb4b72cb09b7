"""What digests and seals cost: of a whole run, and before a large model is measured.

    python benchmarks/sealing.py [-- options of skipwise extend]

Runs ``skipwise extend`` into a folder that is removed afterwards, and counts the seconds within the functions that hash,
write and check files. Then seals and checks a file of 500 MB, as ``evaluate`` does before it loads a model.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

COUNTED = (
    "file_digest", "read_json", "require_sealed", "seal", "sync_folder", "write_json", "write_text",
)  # fmt: skip
BYTES = 500_000_000


class Stopwatch:
    """Counts the seconds in functions; one that another of them calls is part of it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.depth = 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted."""

        @wraps(function)
        def wrapped(*args: Any, **options: Any) -> Any:
            self.depth += 1
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.calls[function.__name__] += 1
                    self.seconds[function.__name__] += time.perf_counter() - began

        return wrapped


def run(options: list[str]) -> None:
    """Run ``skipwise extend``, and print the share of its time that went into digests and seals."""
    import skipwise.results.files as files

    watch = Stopwatch()
    for name in COUNTED:  # before anything else imports them
        setattr(files, name, watch.counted(getattr(files, name)))
    from skipwise.cli import main

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["skipwise", "extend", "--out", f"{folder}/run", *options]
        began = time.perf_counter()
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        whole = time.perf_counter() - began
    for name, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1]):
        print(f"{name:16} {watch.calls[name]:8,} calls {seconds:9.3f} s")
    total = sum(watch.seconds.values())
    print(f"{'all':16} {total:24.3f} s of {whole:,.0f} s, {total / whole:.2%}")


_CHECK = """
import sys, time
from pathlib import Path
from skipwise.model.config import require_unchanged
began = time.perf_counter()
require_unchanged(Path(sys.argv[1]))
print(f"{time.perf_counter() - began:.3f} s")
"""


def large() -> None:
    """Seal a file of 500 MB, and print how long its check takes in another process."""
    from skipwise.model.config import write_seal

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(os.urandom(2**20) * (BYTES // 2**20))
        began = time.perf_counter()
        write_seal(model, {})
        print(f"500 MB: sealed in {time.perf_counter() - began:.3f} s")
        words = [sys.executable, "-c", _CHECK, str(model)]
        print(f"500 MB: checked in {subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()}")


if __name__ == "__main__":
    run(sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:])
    large()

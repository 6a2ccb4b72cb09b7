"""The engines in their environments (``.ci/engines`` makes them), and many checkpoints read by each."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from skipwise.engines import export
from skipwise.engines.check import (
    ENVIRONMENT,
    READER,
    TOLERANCE,
    Comparison,
    Engine,
    Request,
    compare,
    engine_here,
    find_engines,
    plan_request,
    reason_of,
)
from skipwise.errors import EngineError
from skipwise.model.loading import load_tokenizer
from tests.engines.models import TARGET, WINDOW

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-engines"
# Reader: engine, and environment; the reference is the newest transformers, in the environment of the tests.
READERS = {
    "transformers 4.45": ("transformers", "transformers-4.45"),
    "transformers 4.57": ("transformers", "transformers-4.57"),
    "transformers 5, oldest": ("transformers", "transformers-oldest"),
    "vLLM": ("vllm", "vllm"),
    "llama.cpp": ("llama.cpp", None),
}
_GIBIBYTES = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # of vLLM's cache, by default 4


def python_of(reader: str) -> str:
    """The Python of a reader's environment."""
    return str(ENVIRONMENTS / str(READERS[reader][1]) / "bin" / "python")


@cache
def reference() -> Engine:
    return engine_here("transformers")


@cache
def engine_of(reader: str) -> Engine:
    """The engine of a reader, as the product finds it."""
    name, environment = READERS[reader]
    python = python_of(reader) if environment else reference().python
    return next(found for found in find_engines([name], [python]) if found.python == python)


@dataclass(frozen=True)
class Read(Engine):
    """An engine that has read these models already."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    def answer(self, request: Request) -> dict[str, Any]:
        known = self.answers[request.model]
        if "stderr" in known:
            why = reason_of(subprocess.CompletedProcess([], 1, "", known["stderr"]))
            raise EngineError(f"{self.name} {self.version} cannot read {request.model}: {why}")
        return known


@cache
def request() -> Request:
    """The request for every model: the first 2,048 tokens of the standard library."""
    return plan_request("", load_tokenizer("nano"), WINDOW, TARGET)


def read_many(engine: Engine, folders: Sequence[Path], work: Path) -> Read:
    """Let one process of an engine read several checkpoints."""
    asked, answers = work / "requests.json", work / "answers.json"
    asked.write_text(json.dumps([vars(request().of(folder)) for folder in folders]))
    answers.unlink(missing_ok=True)
    words = [engine.python, Path(__file__).with_name("read_many.py"), READER, engine.name, asked, answers]
    ended = subprocess.run(words, capture_output=True, text=True, env=os.environ | ENVIRONMENT | _GIBIBYTES)
    assert not ended.returncode, (
        f"{engine.name} {engine.version} ended with {ended.returncode}:\n{ended.stderr[-2000:]}"
    )
    read = json.loads(answers.read_text())
    return Read(engine.name, engine.python, engine.version, dict(zip(map(str, folders), read, strict=True)))


def compare_gguf(reference: Read, folder: Path, work: Path, tolerance: float = TOLERANCE) -> Comparison:
    """Convert a checkpoint and read it in llama.cpp, as ``skipwise check`` does."""
    engine, file = engine_of("llama.cpp"), work / f"{folder.name}.gguf"
    asked = request().of(folder)
    try:
        with patch.object(export, "find_pre_tokenizer", pre_tokenizer):
            export.write_gguf(folder, file, "f32", Console(quiet=True))
        return compare(reference.answer(asked), engine, asked.of(file), tolerance)
    except EngineError as error:
        return Comparison(engine, {}, TOLERANCE, str(error))
    finally:
        file.unlink(missing_ok=True)


_find_pre_tokenizer = export.find_pre_tokenizer
_names: list[str] = []


def pre_tokenizer(tokenizer: Any, console: Console) -> str:
    """llama.cpp's name for the pre-tokenizer of nano's tokenizer, which all models have; looked for once."""
    if not _names:
        _names.append(_find_pre_tokenizer(tokenizer, console))
    return _names[0]

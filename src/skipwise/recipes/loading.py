"""Read a recipe from YAML with the changes of a command line, and write it back with every default.

A recipe has the fields of ``skipwise.recipes.schema``; ``extends`` gives another recipe to start from.
"""

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from skipwise.errors import RecipeError, nearest
from skipwise.method.lengths import WINDOW
from skipwise.recipes.names import expanded, is_secret, refusal
from skipwise.recipes.schema import METHODS, RATES, Lora, Recipe, Section, merged
from skipwise.results.files import write_text

_SHIPPED = Path(str(resources.files("skipwise") / "recipes"))
_SHOWN = 160  # characters of a value in a message
_KEYS = {"": list(Recipe.model_fields)} | {  # by section
    name: list(type(section).model_fields) for name, section in Recipe(lora=Lora()) if isinstance(section, Section)
}


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with ``1e-5`` as a number, and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.MarkedYAMLError(problem=f"key {repeated[0]} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that ``_Loader`` would read as a number."""


for _each in (_Loader, _Dumper):
    _exponent = re.compile(r"^[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _exponent, list("-+.0123456789"))


def read_text(text: str) -> Any:
    """Read YAML text; other text is a ValueError."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def to_text(values: Any) -> str:
    """Return YAML text that ``read_text`` reads as ``values``."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def shipped_recipes() -> list[str]:
    """Return the names of the recipes in the package, for ``--recipe NAME``."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_recipe(source: str | Path | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from a YAML file or by its shipped name (None: the defaults), then apply dotted ``changes``.

    Changes, e.g. ``{"training.learning_rate": 1e-5}``, override the file.

    Raises:
        RecipeError: the file is missing or not YAML, a key is unknown, or a value breaks its rule.
    """
    values = {} if source is None else _read_recipe(source)
    # An empty section means its defaults; null is a choice for lora.
    values = {key: value for key, value in values.items() if value is not None or key == "lora"}
    given: dict[str, Any] = {}
    for key, value in (changes or {}).items():
        for part in reversed(key.split(".")):
            value = {part: value}
        given = merged(given, value)
    try:
        return Recipe.model_validate(_over(values, given))
    except ValidationError as error:
        raise RecipeError(_explain(error)) from None


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the changes in ``key=value`` words; the value is YAML, e.g. ``1e-5``, ``true`` or ``[1k, 2k]``."""
    changes: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {word!r:.{_SHOWN}} must be KEY=VALUE, for example training.learning_rate=1e-5")
        if is_secret(key):  # no message may show the value
            raise RecipeError(refusal(f"--set {key}"))
        try:
            changes[key.strip()] = read_text(text)
        except ValueError as error:
            raise RecipeError(f"--set {key}: {text!r:.{_SHOWN}} is not a YAML value ({error}); correct it") from None
    return changes


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write every setting as YAML that ``load_recipe`` reads back as an equal recipe."""
    write_text(path, to_text(recipe.model_dump(mode="json")))


def _read_recipe(source: str | Path) -> dict[str, Any]:
    """Return the keys of a recipe over those of the recipe in its ``extends``."""
    path = Path(expanded(str(source)))
    if not path.is_file():
        path = _SHIPPED / f"{str(source).removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    if not path.is_file():
        shipped = shipped_recipes()
        raise RecipeError(
            f"recipe {str(source)!r} is neither a file nor shipped{nearest(path.stem, shipped)}; "
            f"give a file or one of {', '.join(shipped)}"
        )
    try:
        values = read_text(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} is not YAML: {error}; correct the file") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{path} must hold keys and values, not a {type(values).__name__}")
    if (parent := values.pop("extends", None)) is None:
        return values
    sibling = path.parent / expanded(parent)
    return _over(_read_recipe(sibling if sibling.is_file() else parent), values)


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe ``base`` with ``changes``.

    A finished run's file has every setting. Another method or interpolation replaces the settings of the old one; LoRA turned
    on or off replaces the old default of the learning rate.
    """
    base = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    lora, training = base.get("lora"), base.get("training")
    turned = "lora" in base and (changes.get("lora", lora) is None) != (lora is None)
    if turned and isinstance(training, dict) and training.get("learning_rate") == RATES[lora is not None]:
        del training["learning_rate"]
    if "method" in base and changes.get("method", base["method"]) != base["method"]:
        for settings in METHODS.values():
            for section, keys in settings.items():
                if isinstance(base.get(section), dict):
                    base[section] = {key: value for key, value in base[section].items() if key not in keys}
    if changes.get("target") == WINDOW and "interpolation" not in changes:  # it belongs to the recipe's own target
        base.pop("interpolation", None)
        base.pop("rope", None)
    if changes.get("interpolation", base.get("interpolation")) != base.get("interpolation"):
        base.pop("rope", None)
    return merged(base, changes)


def _explain(error: ValidationError) -> str:
    """Return one line per key: its value and the rule, or the nearest valid key."""
    lines: dict[str, str] = {}
    for problem in error.errors():
        place, rule = problem["loc"], problem["msg"].removeprefix("Value error, ")
        key = ".".join(map(str, place)) or "recipe"
        if problem["type"] == "extra_forbidden":
            *section, name = map(str, place)
            valid = _KEYS[".".join(section)]
            elsewhere = [".".join(filter(None, [home, name])) for home, keys in _KEYS.items() if name in keys]
            hint = f" (did you mean {' or '.join(elsewhere)}?)" if elsewhere else nearest(name, valid)
            lines[key] = f"unknown key {key}{hint}; valid here: {', '.join(valid)}"
        elif not place or rule.startswith(f"{key}."):  # a check of a whole section
            lines[key] = rule
        else:
            lines[key] = f"{key} = {problem['input']!r:.{_SHOWN}}: {rule}"
    return "\n".join(lines.values())

"""A recipe from its file, with the changes of a command line, and back to a file.

A recipe is YAML with the fields of ``skipwise.recipes.schema``. An unknown key is an error that names the nearest valid key.
A recipe may start from another one, named by ``like``, and give only the differences. Each run folder holds its recipe with
every default written out.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from skipwise.errors import RecipeError, nearest
from skipwise.recipes.methods import merged, over
from skipwise.recipes.names import expanded
from skipwise.recipes.other_names import one_name, renamed
from skipwise.recipes.private import is_secret, refusal
from skipwise.recipes.reading import read_file, read_text, to_text
from skipwise.recipes.schema import Recipe
from skipwise.results.files import write_text

_SHIPPED = resources.files("skipwise") / "recipes"
_SHOWN = 160  # characters of a value in a message
_KINDS = {
    "list_type": "must be a list, as [A, B]",
    "model_type": "must be a section of keys and values, or left out",
    "string_type": "must be text; quotes make text of a number, a date or a yes, as in --set 'model=\"2e5\"'",
}


def shipped_recipes() -> list[str]:
    """Return the names of the recipes in the package, for ``--recipe NAME``."""
    names = (entry.name for entry in _SHIPPED.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_recipe(source: str | Path | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from a YAML file or by its shipped name, then apply dotted ``changes``.

    Args:
        source: a path, a shipped name (``nano``, or ``recipes/nano.yaml``), or None for the defaults.
        changes: ``{"training.learning_rate": 1e-5, ...}``; they override the file.

    Raises:
        RecipeError: the file is missing or not YAML, a key is unknown, or a value breaks its rule.
    """
    read = {} if source is None else _read_yaml(source)
    # An empty section has its defaults; to have no teacher, method or LoRA is a choice.
    values = {key: value for key, value in read.items() if value is not None or key in ("teacher", "method", "lora")}
    given: dict[str, Any] = {}
    for key, value in (changes or {}).items():  # given by both names, the last counts
        for part in reversed(one_name(key).split(".")):
            value = {part: value}
        given = merged(given, value)
    values = _over(values, given)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_explain(error)) from None


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the changes in ``key=value`` words; the value is YAML, such as ``1e-5``, ``true`` or ``[1k, 2k]``."""
    changes: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {_short(word)} must be KEY=VALUE, for example training.learning_rate=1e-5")
        if is_secret(key):  # before the value could stand in a message
            raise RecipeError(refusal(f"--set {key}"))
        try:
            value = read_text(text)
        except ValueError as error:
            raise RecipeError(f"--set {key}: {_short(text)} is not a YAML value ({error}); correct it") from None
        changes[key.strip()] = value  # given twice, the last counts: what plan proposes is added to a command
    return changes


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write every setting, with the defaults, as YAML that ``load_recipe`` reads back as an equal recipe."""
    write_text(path, to_text(recipe.model_dump(mode="json")))


def _read_yaml(source: str | Path, behind: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the keys of a recipe, with those of the recipe named by ``like``; ``behind`` led here by ``like``."""
    path = Path(expanded(str(source)))
    name = str(source).removeprefix("recipes/").removesuffix(".yaml")
    shipped = shipped_recipes()
    if not os.path.isfile(path) and name in shipped:
        path = Path(str(_SHIPPED / f"{name}.yaml"))
    if not os.path.isfile(path):  # a pipe or a device is none, and could be read without end
        raise RecipeError(
            f"recipe {str(source)!r} is neither a file nor shipped{nearest(path.stem, shipped)}; "
            f"give a file or one of {', '.join(shipped)}"
        )
    values = read_file(path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RecipeError(f"{path} must hold keys and values, not a {type(values).__name__}")
    like = values.pop("like", None)
    if like is None:
        return values
    if not isinstance(like, str) or path.resolve() in behind:
        raise RecipeError(f"{path}: like = {_short(like)} must name another recipe, a file or a shipped one")
    beside = path.parent / expanded(like)
    return _over(_read_yaml(beside if os.path.isfile(beside) else like, (*behind, path.resolve())), values)


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``; what stands in ``base`` in the place of a section that changes is refused."""
    for key, change in changes.items():
        if isinstance(change, dict) and _is_section(key) and not isinstance(value := base.get(key), dict | None):
            raise RecipeError(f"{key} = {_short(value)}: {_KINDS['model_type']}")
    try:  # a change counts, by whichever name of it the base has another value
        base, changes = ({key: renamed(value) for key, value in values.items()} for values in (base, changes))
    except ValueError as error:
        raise RecipeError(str(error)) from None
    return over(base, changes)


def _short(value: Any) -> str:
    """A value in a message: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}... ({len(text):,} characters)"


def _explain(error: ValidationError) -> str:
    """Return one line per key: its value, the rule, the nearest valid name."""
    lines: dict[str, str] = {}
    for problem in error.errors():
        unknown = problem["type"] == "extra_forbidden"
        # Of a setting that may be of several kinds pydantic names each, as list[str].
        key = ".".join(str(part) for part in problem["loc"] if unknown or "[" not in str(part)) or "recipe"
        if unknown:
            valid = list(_section_at(problem["loc"][:-1]).model_fields)
            meant = _elsewhere(key) or nearest(str(problem["loc"][-1]), valid)
            lines[key] = f"unknown key {key}{meant}; valid here: {', '.join(valid)}"
        else:
            rule = _KINDS.get(problem["type"], problem["msg"].removeprefix("Value error, "))
            if str(problem["input"]).lower() == "none" and _may_be_none(problem["loc"]):
                rule += f"; none is --set {key}=null, or null in a file"
            said = not problem["loc"] or rule.startswith(f"{key}.")  # by a check of a section as a whole
            told = rule if said else f"{key} = {_short(problem['input'])}: {rule}"
            lines[key] = f"{lines[key]}, or {rule}" if key in lines else told
    # If one item of a list is wrong, that item is said, and not that another type was expected.
    return "\n".join(told for key, told in lines.items() if not any(place.startswith(f"{key}.") for place in lines))


def _elsewhere(key: str) -> str:
    """Return `` (did you mean x?)`` with the settings of that name in a section, where ``key`` names none; else nothing."""
    names = [
        f"{one}.{key}" for one in filter(_is_section, Recipe.model_fields) if key in _section_at((one,)).model_fields
    ]
    return f" (did you mean {' or '.join(names)}?)" if names else ""


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    section: type[BaseModel] = Recipe
    for part in location:
        annotation = section.model_fields[str(part)].annotation
        kinds = get_args(annotation) or (annotation,)  # Lora | None
        section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return section


def _is_section(key: str) -> bool:
    with suppress(KeyError, StopIteration):
        return issubclass(_section_at((key,)), BaseModel)
    return False


def _may_be_none(location: tuple[int | str, ...]) -> bool:
    with suppress(KeyError, StopIteration):  # a part of a value, as a place in a list
        return type(None) in get_args(_section_at(location[:-1]).model_fields[str(location[-1])].annotation)
    return False

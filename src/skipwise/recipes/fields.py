"""Types of a recipe's settings: each reads a value, and says its rule if the value breaks it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from skipwise.errors import RecipeError, one_of
from skipwise.method import interpolation
from skipwise.method.lengths import parse_length
from skipwise.method.limits import LONGEST
from skipwise.method.positions import SCHEMES
from skipwise.recipes.names import expanded
from skipwise.recipes.other_names import renamed


def reported(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turn the RecipeError of ``check`` into a ValueError, which pydantic reports together with the key."""

    def reporting(value: Any) -> Any:
        try:
            return check(value)
        except RecipeError as error:
            raise ValueError(str(error)) from error

    return reporting


def spelled(source: Any) -> Any:
    """A path as its name."""
    return str(source) if isinstance(source, Path) else source


def _no_truth(value: Any) -> Any:
    """Refuse true, which pydantic would read as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def listed(value: Any) -> Any:
    """Read a single string as a list of one."""
    return [value] if isinstance(value, str) else value


def once(values: list[Any]) -> list[Any]:
    """A list without what it repeats."""
    return list(dict.fromkeys(values))


Whole = Annotated[int, BeforeValidator(_no_truth)]
Real = Annotated[float, BeforeValidator(_no_truth)]
Tokens = Annotated[int, BeforeValidator(reported(parse_length)), Field(gt=0)]
Length = Annotated[Tokens, Field(le=LONGEST)]
Name = Annotated[str, AfterValidator(reported(expanded))]
Lengths = Annotated[list[Length], Field(min_length=1), AfterValidator(once)]
FITTED, AUTO = "fitted", "auto"  # auto: fitted where the factor is large, else YaRN
_FIT_FILE = ".json"


def is_fit(name: str) -> bool:
    """Return whether an interpolation is still to be fitted, or is a file of ``skipwise fit``."""
    return name in (FITTED, AUTO) or name.endswith(_FIT_FILE)


def _interpolation(name: str) -> str:
    if name not in interpolation.NAMES and os.path.isfile(
        file := os.path.join(name, "fit.json")
    ):  # the folder of a fit
        return file
    return expanded(name) if is_fit(name) else one_of("interpolation", name, (*interpolation.NAMES, FITTED, AUTO))


Interpolation = Annotated[str, AfterValidator(reported(_interpolation))]
Scheme = Annotated[str, AfterValidator(reported(lambda name: one_of("scheme", name, SCHEMES)))]


class Section(BaseModel):
    """A part of the recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class RenamedSection(Section):
    """A section with settings that may be given by another name too."""

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, values: Any) -> Any:
        return renamed(values)

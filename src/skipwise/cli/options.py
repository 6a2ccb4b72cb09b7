"""Options that several commands have, and how their values are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipwise.errors import RecipeError, one_of
from skipwise.method.lengths import LAST_SEED, parse_length
from skipwise.recipes.names import expanded, model_name

if TYPE_CHECKING:
    from skipwise.recipes.schema import Recipe

_TEXT = [f"data.{key}" for key in ("split", "subset", "streaming", "max_train_tokens", "text_field")]


def read_path(text: str) -> Path:
    """Read the path of a file or folder; ``~`` is the home folder."""
    if not text.strip():
        raise typer.BadParameter("the path is empty. Give a file or folder, or leave the option out")
    return Path(expanded(text))


Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe, e.g. training.learning_rate=1e-5")
]
Interpolation = Annotated[
    str | None, typer.Option(help="none, linear, ntk, yarn, yarn-revised, power, theta, factors, fitted, fit.json")
]
Lora = Annotated[bool, typer.Option("--lora", help="train LoRA only")]
MethodName = Annotated[str | None, typer.Option(help="pose, or paper (PoSE as published)")]
Model = Annotated[str, typer.Argument(parser=model_name, help="nano, smollm2, a model or run folder, a hub name")]
RecipeName = Annotated[str | None, typer.Option(help="YAML file, or name of a shipped recipe")]
StartingModel = Annotated[
    str | None, typer.Argument(parser=model_name, help="nano, smollm2, a model folder, a hub name [nano]")
]
Target = Annotated[str | None, typer.Option(help="target length, e.g. 32k [8 times the original]")]
Text = Annotated[str, typer.Option(metavar="TEXT", help="file, folder, data set name or stdlib")]
Seed = Annotated[int, typer.Option(min=0, max=LAST_SEED, help="seed of chunks and prompts")]


def read_settings(text: str, assignments: list[str] | None, *more: str) -> "Recipe":
    """Return the recipe of a text with the changes of ``--set``: settings of reading it, or keys among ``more``."""
    from skipwise.recipes.loading import load_recipe, parse_changes

    changes = parse_changes(assignments or [])
    for key in changes:
        one_of("--set", key, [*_TEXT, *more])
    return load_recipe(None, {"data.source": text, **changes})


def read_lengths(text: str | None) -> list[int]:
    """Read ``2k,4k``; no lengths where it is not given."""
    return [parse_length(part.strip()) for part in text.split(",")] if text else []


def read_length(text: str | None) -> int | None:
    """Read ``2k``, where it is given."""
    return None if text is None else parse_length(text)


def read_shard(text: str) -> tuple[int, int]:
    """Read ``2/3``."""
    part, slash, parts = text.partition("/")
    if slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise RecipeError(f"shard {text!r} must be PART/PARTS, as 2/3: the second of three")


def read_gigabytes(text: str) -> float:
    """Read ``80GB``, ``80G`` or ``80`` as bytes; ``80GiB`` as the driver counts them, 1,024 to the third power each."""
    number, unit = text.strip().upper().removesuffix("B"), 1e9
    if number.endswith("GI"):
        number, unit = number.removesuffix("I"), 2.0**30
    try:
        return float(number.removesuffix("G")) * unit
    except ValueError:
        raise RecipeError(f"--gpu-memory {text!r} must be a number of gigabytes, as 80GB") from None

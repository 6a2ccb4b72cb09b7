"""Options that several commands have, and how their values are read."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipwise.errors import RecipeError
from skipwise.method.lengths import parse_length
from skipwise.method.limits import LAST_SEED
from skipwise.recipes.names import expanded, model_name

if TYPE_CHECKING:
    from skipwise.evaluation.server import Server
    from skipwise.recipes.schema import Data


def read_path(text: str) -> Path:
    """Read the path of a file or folder; ``~`` is the home folder."""
    if not text.strip():
        raise typer.BadParameter("the path is empty. Give a file or folder, or leave the option out")
    return Path(expanded(text))


Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe, e.g. training.learning_rate=1e-5")
]
ExistingRope = Annotated[str | None, typer.Option(help="refuse or replace the model's RoPE scaling")]
Interpolation = Annotated[
    str | None, typer.Option(help="none, linear, ntk, yarn, yarn-revised, power, theta, factors, fitted or a fit.json")
]
Lora = Annotated[bool, typer.Option("--lora", help="train LoRA only")]
MethodName = Annotated[str | None, typer.Option(help="skipwise, or paper (PoSE as published)")]
Model = Annotated[str, typer.Argument(parser=model_name, help="nano, smollm2, a model or run folder, a hub name")]
RecipeName = Annotated[str | None, typer.Option(help="YAML file, or name of a shipped recipe")]
StartingModel = Annotated[
    str | None, typer.Argument(parser=model_name, help="nano, smollm2, a model or run folder, a hub name [nano]")
]
Target = Annotated[str | None, typer.Option(help="target length, e.g. 32k [8 times the original]")]
Seed = Annotated[int, typer.Option(min=0, max=LAST_SEED, help="seed of the prompts")]


@dataclass(frozen=True)
class TextOptions:
    """The text to measure on."""

    data: Annotated[
        str, typer.Option(parser=expanded, metavar="TEXT", help="file, folder, data set name or stdlib")
    ] = "stdlib"
    text_field: Annotated[
        str, typer.Option(metavar="FIELD", help="field with the text (JSON Lines, Parquet, data sets)")
    ] = "text"
    split: Annotated[str, typer.Option(metavar="NAME", help="split of a data set")] = "train"
    subset: Annotated[str | None, typer.Option(metavar="NAME", help="subset of a data set [the default one]")] = None

    def read(self) -> "Data":
        """Return the text as a section of a recipe."""
        from skipwise.recipes.schema import Data

        return Data(source=self.data, text_field=self.text_field, split=self.split, subset=self.subset)


@dataclass(frozen=True)
class ServerOptions:
    """The server that answers the prompts."""

    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="answer prompts by an OpenAI-compatible server; key: $OPENAI_API_KEY"),
    ] = None
    server_model: Annotated[str | None, typer.Option(metavar="NAME", help="model, if the server has several")] = None
    server_requests: Annotated[int, typer.Option(min=1, max=1024, help="prompts at a time")] = 8
    server_timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="seconds for a prompt")] = 600.0

    def connect(self) -> "Server | None":
        """Connect to the server; None without ``--server``."""
        if self.server is None:
            return None
        from skipwise.evaluation.server import connect

        return connect(self.server, self.server_model, at_once=self.server_requests, timeout=self.server_timeout)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer can read it: a parameter that is a data class becomes an option for each field."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += inspect.signature(group).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


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

"""What all commands share: options, the environment before torch starts, the console, messages."""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipwise.errors import PeerError, RecipeError, SkipwiseError, out_of_memory, out_of_room, reason
from skipwise.method.lengths import LAST_SEED, parse_length
from skipwise.recipes.names import expanded, model_name, without_passwords

if TYPE_CHECKING:
    from skipwise.recipes.schema import Recipe

_TEXT = [f"data.{key}" for key in ("split", "subset", "streaming", "max_train_tokens", "text_field")]
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit statuses


def read_path(text: str) -> Path:
    """Read the path of a file or folder; ``~`` is the home folder."""
    return Path(expanded(text))


def path_option(help: str, *names: str, metavar: str = "FOLDER") -> Any:
    """Declare an option that takes a path."""
    return typer.Option(*names, parser=read_path, metavar=metavar, help=help)


Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe, e.g. training.learning_rate=1e-5")
]
Interpolation = Annotated[str | None, typer.Option(help="yarn, ntk, fitted or another [auto]; or a fit.json")]
Lora = Annotated[bool, typer.Option("--lora", help="train LoRA only")]
MethodName = Annotated[str | None, typer.Option(help="pose, or paper (PoSE as published)")]
Model = Annotated[str, typer.Argument(parser=model_name, help="nano, smollm2, a model or run folder, a hub name")]
RecipeName = Annotated[str | None, typer.Option(help="YAML file, or name of a shipped recipe")]
StartingModel = Annotated[
    str | None, typer.Argument(parser=model_name, help="nano, smollm2, a model folder, a hub name [nano]")
]
Target = Annotated[str | None, typer.Option(help="length, e.g. 32k [8 times the original]")]
TargetOrWindow = Annotated[str | None, typer.Option(help="length, e.g. 32k [8 times the original]; window: keep")]
Text = Annotated[str, typer.Option(metavar="TEXT", help="file, folder, data set name or stdlib")]
Seed = Annotated[int, typer.Option(min=0, max=LAST_SEED, help="seed of chunks and prompts")]


def read_settings(text: str, assignments: list[str] | None, *more: str) -> "Recipe":
    """Return the recipe of a text with the changes of ``--set``: settings of reading it, or keys among ``more``."""
    from skipwise.data.text import require_source
    from skipwise.recipes.loading import load_recipe, parse_changes

    require_source(text)  # mistakes are met before torch is imported
    changes = parse_changes(assignments or [])
    for key in changes:
        if key not in (valid := [*_TEXT, *more]):
            raise RecipeError(
                f"--set {key} is not for this command; it takes {', '.join(valid)}. Others have an option"
            )
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


def prepare_process(*, private: bool = True) -> Any:
    """Set what must be set before torch starts, and return the console.

    Files of a ``private`` command are the user's alone, because they hold text. ``$SKIPWISE_SHARED`` lifts that.
    """
    from skipwise.results.files import is_shared

    if private and not is_shared():
        os.umask(0o077)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not os.environ.get("OMP_WAIT_POLICY"):
        # Next to another program one thread of OpenMP has no core, and all others spin until it has. With this number they stop.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # On import DeepSpeed logs that it found no GPU.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return new_console()


def new_console() -> Any:
    """Return a console that prints names and paths as they are; of several processes rank 0 prints."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack a character
    return Console(highlight=False, markup=False, emoji=False, quiet=_rank() != "0")


def _rank() -> str:
    """Return the number of this process; a variable that another job left is ignored in a single process."""
    return os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"


@contextmanager
def explained(command: str) -> Iterator[None]:
    """In this context an error ends ``command`` with one message and exit status 1.

    ``$SKIPWISE_DEBUG`` shows the traceback. SIGTERM ends the command as Ctrl-C does, with exit status 143.
    """
    try:
        with _sigterm_as_exit():
            yield
    except Exception as error:
        if os.environ.get("SKIPWISE_DEBUG"):
            raise
        rank, message = _rank(), _message(error)
        if rank == "0" or not isinstance(error, SkipwiseError) or isinstance(error, PeerError):
            process = f"process {rank}: " if rank != "0" or isinstance(error, PeerError) else ""
            print(f"skipwise: {process}{without_passwords(message)}", file=sys.stderr)
        raise SystemExit(1) from None
    except (SystemExit, KeyboardInterrupt) as end:
        status = getattr(end, "code", _STOPPED[0])
        if status not in _STOPPED:
            raise
        option = " with --resume" if command == "extend" else ""
        print(f"\nskipwise: stopped; the same command{option} continues", file=sys.stderr)
        raise SystemExit(status) from None


def _message(error: Exception) -> str:
    """Return what is wrong, and what the user can do."""
    if isinstance(error, SkipwiseError):
        return str(error)
    text = reason(error).split(" Of the allocated memory")[0]
    if out_of_memory(error):  # where no stage explains it
        return f"{text}; what was written is kept. End other programs that use memory, or take a smaller model"
    if out_of_room(error):
        return f"{text}; what was written is kept. Free space; then the same command continues, extend with --resume"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}; correct the path, or its rights"
    return f"{type(error).__name__}: {text}; SKIPWISE_DEBUG=1 shows where"


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """In this context SIGTERM raises SystemExit, so that files and processes are cleaned up as after Ctrl-C.

    A launched process keeps the default: it may wait inside a library, where no handler of Python's runs.
    """
    if "RANK" in os.environ or threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != owner:  # a forked worker, which its parent expects to end at once
            os._exit(128 + number)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

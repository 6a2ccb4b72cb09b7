"""The commands: thin, and quick to start; torch is imported only by the command that needs it."""

import sys
from typing import Annotated

import typer

from skipwise import __version__
from skipwise.cli.extension import extend, fit, plan
from skipwise.cli.models import check, convert, evaluate, export, publish, report
from skipwise.cli.terminal import explained
from skipwise.recipes.names import masked

app = typer.Typer(
    name="skipwise", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"skipwise {__version__}")
        raise typer.Exit


@app.callback()
def skipwise(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Extend the context window of a RoPE language model by training on short windows with skipped positions."""


for command in (extend, plan, fit, evaluate, report, check, export, publish, convert):
    app.command()(command)


def main() -> None:
    """Run a command; an error ends in its message and exit status 1, without a traceback.

    Records get the command line from ``sys.argv``, so it keeps no secret; commands get the words as they are.
    """
    words = sys.argv[1:]
    sys.argv[1:] = [masked(word) for word in words]
    with explained(words[0] if words else ""):
        app(words, obj=words)

"""The commands: thin, and quick to start; torch is imported only by the command that needs it."""

import typer

from skipwise.cli import evaluation, extension
from skipwise.cli.terminal import explained

app = typer.Typer(
    name="skipwise",
    help="Extend the context window of a RoPE language model by positional skip-wise training (PoSE).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    extension.extend,
    extension.plan,
    extension.coverage,
    evaluation.evaluate,
    evaluation.perplexity,
    evaluation.passkey,
    evaluation.merge,
    evaluation.benchmark,
    evaluation.report,
    extension.convert,
):
    app.command()(command)


def main() -> None:
    """Run a command; a user's mistake ends in its message and exit status 1, without a traceback."""
    with explained():
        app()

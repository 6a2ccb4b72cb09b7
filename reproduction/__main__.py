"""The command that runs the paper's comparisons: ``python -m reproduction``, or ``make reproduce ARGS=...``."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Changes
from skipwise.cli.terminal import explained, prepare_process
from skipwise.errors import one_of

app = typer.Typer(name="reproduction", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
OUT = Path("runs/reproduction")


@app.command()
def reproduce(
    exhibits: Annotated[
        list[str] | None, typer.Argument(help="names of exhibits, or all; without one, list them")
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"folder of arms and pages; default: {OUT}")] = None,
    scale: Annotated[
        str, typer.Option(help="nano: in miniature; paper: the paper's models and lengths, on GPUs")
    ] = "nano",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="number of seeds of each trained row; default: the exhibit's, 1 or 3")
    ] = None,
    arm: Annotated[list[str] | None, typer.Option(help="a row of the tables; repeatable; default: all")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="a block of the tables, as 'linear, 8x'; repeatable; default: all")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="a text to measure on; repeatable; default: stdlib (held out) and pydoc")
    ] = None,
    set_: Changes = None,
    page_only: Annotated[
        bool,
        typer.Option(
            "--page-only",
            help="train nothing: write the pages of what --out holds, or without --out those of docs/reproduction",
        ),
    ] = False,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="train nothing: put the records of --out, all of them, into docs/reproduction"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, and its cost")] = False,
) -> None:
    """Run the paper's comparisons, in miniature or at full size; a row of several exhibits is trained once."""
    console = prepare_process()
    from reproduction.archive import ARCHIVE, pack
    from reproduction.reproduce import list_exhibits, publish_pages, run
    from reproduction.runs import SCALES
    from skipwise.recipes.loading import parse_changes

    one_of("scale", scale, SCALES)
    if not exhibits:
        list_exhibits(console, OUT)
        return
    changes = {**({"evaluation.source": text} if text else {}), **parse_changes(set_ or [])}
    if publish:
        pack(out or OUT, ARCHIVE, changes)
    if publish or (page_only and out is None):
        publish_pages(console)
    else:
        run(
            exhibits,
            scale,
            out or OUT,
            console,
            seeds=range(seeds or 0),
            changes=changes,
            rows=arm or [],
            blocks=setting or [],
            page_only=page_only,
            dry_run=dry_run,
        )


def main() -> None:
    """Run the command; a user's mistake ends in its message and exit status 1, without a traceback."""
    with explained("reproduce"):
        app()


if __name__ == "__main__":
    main()

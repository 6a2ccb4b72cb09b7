"""The command that runs the paper's comparisons: ``python -m reproduction``, or ``make reproduce ARGS=...``."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Changes
from skipwise.cli.terminal import explained, prepare_process
from skipwise.errors import RecipeError, one_of

app = typer.Typer(name="reproduction", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
OUT = Path("runs/reproduction")


@app.command()
def reproduce(
    context: typer.Context,
    exhibits: Annotated[
        list[str] | None, typer.Argument(help="names of exhibits, or all; without one, list them")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of arms and pages")] = OUT,
    scale: Annotated[
        str, typer.Option(help="nano: in miniature; paper: the paper's models and lengths, on GPUs")
    ] = "nano",
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds of each trained arm")] = 1,
    arm: Annotated[list[str] | None, typer.Option(help="a row of the tables; repeatable; default: all")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="a block of the tables, as 'linear, 8x'; repeatable; default: all")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="a text to measure on; repeatable; default: stdlib (held out) and pydoc")
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="Markdown to put into the pages: a section for each exhibit, ## main")
    ] = None,
    set_: Changes = None,
    page_only: Annotated[
        bool,
        typer.Option(
            "--page-only",
            help="train nothing: write the pages of what --out holds, or without --out those of docs/reproduction",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, and its cost")] = False,
) -> None:
    """Run the paper's comparisons, in miniature or at full size; an arm of several exhibits is trained once."""
    console = prepare_process(trains=True)
    from reproduction.reproduce import Asked, list_exhibits, publish_pages, run
    from reproduction.scales import SCALES
    from skipwise.recipes.loading import parse_changes

    one_of("scale", scale, SCALES)
    given = [
        option.opts[0]
        for option in context.command.params
        if (source := context.get_parameter_source(option.name or "")) and source.name == "COMMANDLINE"
    ]
    given = [name for name in given if name.startswith("--")]
    if not exhibits:
        if given:
            raise RecipeError(f"{given[0]} needs the name of an exhibit, or all; run without options to list them")
        list_exhibits(console)
        return
    if page_only and "--out" not in given:
        if others := [name for name in given if name != "--page-only"]:
            raise RecipeError(
                f"{others[0]} does not apply to the published pages, which --page-only writes without --out; "
                "leave it out, or give --out"
            )
        publish_pages(exhibits, console)
        return
    changes = {**({"evaluation.source": text} if text else {}), **parse_changes(set_ or [])}
    asked = Asked(exhibits, SCALES[scale], range(seeds), changes, arm or [], setting or [])
    run(asked, out, notes, console, page_only=page_only, dry_run=dry_run)


def main() -> None:
    """Run the command; a user's mistake ends in its message and exit status 1, without a traceback."""
    with explained("reproduce"):
        app()


if __name__ == "__main__":
    main()

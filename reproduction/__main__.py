"""The command that runs the paper's comparisons."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Changes, given_options
from skipwise.cli.terminal import prepare_process
from skipwise.errors import RecipeError, nearest


def reproduce(
    context: typer.Context,
    exhibits: Annotated[
        list[str] | None,
        typer.Argument(help="names of exhibits, or all; none lists them with their time here"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of arms and tables")] = Path("runs/reproduction"),
    scale: Annotated[
        str, typer.Option(help="nano, in miniature; or paper, its own models and lengths on GPUs")
    ] = "nano",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds each trained arm gets")] = 1,
    arm: Annotated[
        list[str] | None, typer.Option(help="a row of the tables, as often as wanted; default: all")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="a block of the tables, as 'linear, 8x'; default: all")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="text to measure on, as often as there are; default: stdlib (held out) and pydoc"),
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="Markdown put into the page, a section an exhibit: ## main")
    ] = None,
    set_: Changes = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="write the page of what is there; train nothing")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be run, and what it takes")
    ] = False,
) -> None:
    """Run the paper's comparisons, in miniature or at full size; each arm is trained once and shared."""
    console = prepare_process(trains=True)
    from reproduction.reproduce import list_exhibits, reproduce
    from reproduction.scales import SCALES
    from skipwise.recipes.schema import parse_changes

    if scale not in SCALES:
        raise RecipeError(f"scale {scale!r} is unknown{nearest(scale, SCALES)}; choose {' or '.join(SCALES)}")
    if not exhibits:
        if given := given_options(context):
            raise RecipeError(
                f"{given[0]} needs the name of an exhibit, or all; skipwise reproduce lists them"
            )
        list_exhibits(console)
        return
    reproduce(
        exhibits,
        scale=scale,  # type: ignore[arg-type]
        out=out,
        seeds=range(seeds),
        arms=arm or [],
        settings=setting or [],
        texts=text or [],
        changes=parse_changes(set_ or []),
        notes=notes,
        page_only=page_only,
        dry_run=dry_run,
        console=console,
    )

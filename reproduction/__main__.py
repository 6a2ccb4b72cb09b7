"""The command that runs the paper's comparisons: ``python -m reproduction``, or ``make reproduce ARGS=...``."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.terminal import Changes, explained, prepare_process
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
    from reproduction import reproduce as work
    from reproduction.archive import ARCHIVE, pack, publish_pages
    from reproduction.costs import measure_costs
    from reproduction.exhibits import EXHIBITS
    from reproduction.page import write_pages
    from reproduction.runs import SCALES, ArmRun, distinct, plan_runs, require_undecided, seeds_in, select
    from skipwise.recipes.loading import parse_changes

    one_of("scale", scale, SCALES)
    folder = out or OUT
    if not exhibits:
        work.list_exhibits(console, folder)
        return
    changes = {**({"evaluation.source": text} if text else {}), **parse_changes(set_ or [])}
    if publish:
        pack(folder, ARCHIVE, changes)
    if publish or (page_only and out is None):
        publish_pages(console)
        return
    requested = {one_of("exhibit", name, [*EXHIBITS, "all"]) for name in exhibits}
    names = [name for name in EXHIBITS if "all" in requested or name in requested]
    require_undecided(changes)

    def plan(name: str, numbers: Sequence[int]) -> list[ArmRun]:
        return plan_runs(EXHIBITS[name], SCALES[scale], folder, seeds=numbers, changes=changes)

    plans = select({name: plan(name, range(seeds or 0)) for name in names}, arm or [], setting or [])
    if dry_run:
        for run in chain(*plans.values()):
            state = work.state_of(run, folder, scale)
            console.print(f"{state:18} {run}, {run.tokens:,} tokens", soft_wrap=True)
        return
    if not page_only:
        work.make_all(distinct(plans.values()), folder, console)
        for timed in (planned[0] for name, planned in plans.items() if planned and EXHIBITS[name].show == "costs"):
            measure_costs(timed.recipe, timed.original, folder, console)
    there = seeds_in(folder)  # those of earlier commands too
    shown = [name for name in EXHIBITS if name in names or (folder / f"{name}.md").exists()]
    write_pages({name: plan(name, there) for name in shown}, folder, folder, folder / "reproduction.md")
    for page in (folder / f"{name}.md" for name in names):
        if page.exists():
            work.print_page(page, console)
    console.print(f"page: {folder / 'reproduction.md'}", soft_wrap=True)


def main() -> None:
    """Run the command; a user's mistake ends in its message and exit status 1, without a traceback."""
    with explained("reproduce"):
        app()


if __name__ == "__main__":
    main()

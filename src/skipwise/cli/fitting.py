"""The command that fits an interpolation to a model."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Model, TextOptions, grouped, read_length, read_path
from skipwise.cli.terminal import prepare_process


@grouped
def fit(
    model: Model,
    text: TextOptions,
    target: Annotated[str | None, typer.Option(help="target length, e.g. 128k [8 times the original]")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="time of the search")] = 10.0,
    out: Annotated[
        Path | None,
        typer.Option(parser=read_path, metavar="FOLDER", help="write a checkpoint too [runs/fit-NAME-TARGET, without]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of chunks and prompts")] = 0,
) -> None:
    """Find the best interpolation of a model by measuring it, without training."""
    console = prepare_process()
    from rich.table import Table

    from skipwise.fit.page import write_fit_page
    from skipwise.fit.result import FILE
    from skipwise.fit.search import fit as search
    from skipwise.fit.search import write_model

    found, folder = search(
        model, target=read_length(target), data=text.read(), out=out, minutes=minutes, seed=seed, console=console
    )
    head, rows = found.table()
    table = Table(title="nats per token above the base", title_justify="left")
    for number, column in enumerate(head):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print("*: recommended; to N: loss at that place, less the base's in its own windows; -: given up early")
    console.print("skips: harm by text up to the target away; answers: loss of a passkey's digits")
    console.print(found.verdict, style="bold", soft_wrap=True)
    console.print(found.caveats, soft_wrap=True)
    console.print(f"settings: {found.best.extension.told}", soft_wrap=True)
    if found.plain is not found.best:
        worse = found.total(found.plain) - found.total(found.best)
        console.print(f"Served by every engine: {found.plain.extension.told}, {worse:.2f} nats worse.", soft_wrap=True)
    if out is not None:
        write_model(found, folder / "model")
        console.print(f"model:  {folder / 'model'}", soft_wrap=True)
    console.print(f"report: {write_fit_page(found, folder)}, with the rope_parameters for config.json", soft_wrap=True)
    console.print(
        f"train:  skipwise extend {model} --target {found.target} --interpolation {folder / FILE} --data TEXT",
        soft_wrap=True,
    )

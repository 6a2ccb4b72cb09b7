"""Define the commands check, export and publish."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Model, read_length, read_path
from skipwise.cli.terminal import prepare_process

_Length = Annotated[str | None, typer.Option(help="tokens to compare, e.g. 8k [the target length]")]


def check(
    model: Model,
    engine: Annotated[
        str | None, typer.Option(help="e.g. transformers,vllm,llama.cpp [all that are installed]")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="Python of another environment with engines; may be repeated")
    ] = None,
    length: _Length = None,
) -> None:
    """Compare how engines read a checkpoint; exit status 1 if one differs."""
    console = prepare_process()
    from skipwise.engines.check import check, find_engines, model_folder, print_comparisons

    engines = find_engines([name.strip() for name in engine.split(",")] if engine else [], python or [])
    made = check(model_folder(model), engines, console, length=read_length(length))
    print_comparisons(made, console)
    if not all(one.agrees for one in made):
        raise typer.Exit(1)


def export(
    model: Model,
    type_: Annotated[
        str, typer.Option("--type", help="of the weights: f32, f16, bf16, q8_0, q6_k, q5_k or q4_k")
    ] = "f16",
    out: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FILE", help="GGUF file to write [NAME-TYPE.gguf]")
    ] = None,
    check: Annotated[bool, typer.Option(help="compare the file in llama.cpp with transformers")] = True,
    length: _Length = None,
) -> None:
    """Write a GGUF file and an Ollama Modelfile; check the file in llama.cpp."""
    console = prepare_process(private=False)
    from skipwise.engines.export import export

    export(model, kind=type_, out=out, checked=check, length=read_length(length), console=console)


def publish(
    run: Annotated[Path, typer.Argument(parser=read_path, help="a finished run folder, or the folder of its model")],
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="repository on the model hub; created if not there")
    ],
    upload: Annotated[bool, typer.Option("--upload", help="publish; without it only show what would be")] = False,
    private: Annotated[bool, typer.Option("--private", help="create the repository for its owner alone")] = False,
    base: Annotated[str | None, typer.Option(help="the base's name on the hub, where the card names none")] = None,
    license_: Annotated[str | None, typer.Option("--license", help="the model's, where the card names none")] = None,
) -> None:
    """Show the files and the card of a model, and publish them on the model hub with --upload."""
    console = prepare_process()
    from skipwise.report.sharing import publish

    publish(run, name, console, upload=upload, private=private, base=base, license=license_)

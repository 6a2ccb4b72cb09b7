"""A finished checkpoint leaves: it is checked in other engines, written in another format, or published."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import Model, read_length, read_path
from skipwise.cli.terminal import prepare_process

_Length = Annotated[str | None, typer.Option(help="read no farther than this; default: what it was extended to")]


def check(
    model: Model,
    engine: Annotated[
        str | None, typer.Option(help="engines, as transformers,vllm,llama.cpp; default: all that are installed")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="Python of another environment to look for engines in; may be repeated")
    ] = None,
    length: _Length = None,
) -> None:
    """Read a checkpoint in several engines, and compare what they predict; exit status 1 if one reads it otherwise."""
    console = prepare_process()
    from skipwise.engines.check import check, comparison_table, model_folder
    from skipwise.engines.request import find_engines
    from skipwise.model.serving import unproved

    folder = model_folder(model)
    found = find_engines([name.strip() for name in engine.split(",")] if engine else [], python or [])
    made = check(folder, found, console, length=read_length(length))
    console.print(comparison_table(model, made))
    for one in made:
        if one.problem:
            console.print(f"{one.engine.name} {one.engine.version}: {one.problem}", style="red")
    for name, sentence in unproved(folder, {one.engine.name for one in made}):
        console.print(f"{name}, not run: {sentence}")
    if not all(one.agrees for one in made):
        raise typer.Exit(1)


def export(
    model: Model,
    to: Annotated[str, typer.Option(help="gguf, for llama.cpp, Ollama and what is built on them")] = "gguf",
    type_: Annotated[
        str, typer.Option("--type", help="of the weights: f32, f16, bf16, q8_0, q6_k, q5_k or q4_k")
    ] = "f16",
    out: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FILE", help="file to write; default: NAME-TYPE.gguf here")
    ] = None,
    check: Annotated[bool, typer.Option(help="read the file in llama.cpp and compare it with transformers")] = True,
    length: _Length = None,
) -> None:
    """Write a checkpoint as one GGUF file with an Ollama Modelfile, and check it in llama.cpp."""
    console = prepare_process(private=False)
    from skipwise.engines.export import export

    export(model, to=to, kind=type_, out=out, checked=check, length=read_length(length), console=console)


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
    from skipwise.report.publish import publish

    publish(run, name, console, upload=upload, private=private, base=base, license=license_)

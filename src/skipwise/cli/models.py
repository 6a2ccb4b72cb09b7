"""Define the commands on models that exist: evaluate, report, check, export, publish and convert."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.terminal import (
    Model,
    Seed,
    Text,
    new_console,
    path_option,
    prepare_process,
    read_length,
    read_lengths,
    read_path,
    read_settings,
    read_shard,
)
from skipwise.errors import RecipeError, one_of, pip_install
from skipwise.method.lengths import MOST_TRIALS
from skipwise.recipes.names import expanded, model_name

_SETTINGS = [
    f"evaluation.{key}"
    for key in ("stride", "tokens_per_document", "prompt_lengths", "ruler_data", "other_texts", "load_in_4bit")
]

Length = Annotated[str | None, typer.Option(help="tokens to compare, e.g. 8k [the target length]")]


def evaluate(
    models: Annotated[list[str], typer.Argument(parser=model_name, help="e.g. nano, run folders, names on the hub")],
    data: Text = "stdlib",
    only: Annotated[
        str | None, typer.Option(help="perplexity, prompts or benchmarks [all; benchmarks if given]")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="e.g. 2k,4k,8k [original length, doubled up to the target]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="largest length, e.g. 32k [the model's]")] = None,
    original: Annotated[str | None, typer.Option(help="original length [from run or config]")] = None,
    base: Annotated[str | None, typer.Option(help="base model, or none [from the run]")] = None,
    documents: Annotated[int | None, typer.Option(min=0, help="largest number of documents [16]")] = None,
    tasks: Annotated[
        str, typer.Option(help="passkey,keys,lines,ruler, some of RULER's (ruler:vt), or none")
    ] = "passkey,keys,lines",
    num_prompts: Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="prompts per task and length")] = 100,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of data or evaluation, e.g. data.split=test")
    ] = None,
    benchmarks: Annotated[
        str | None, typer.Option(help="lm-eval tasks: paper, or e.g. boolq,arc_challenge:25 (few-shot)")
    ] = None,
    data_dir: Annotated[Path | None, path_option("benchmark data as OWNER/NAME [the hub]")] = None,
    include_path: Annotated[Path | None, path_option("your own lm-eval task files")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions per benchmark [all]")] = None,
    shard: Annotated[str, typer.Option(help="part of the work, e.g. 2/3")] = "1/1",
    earlier: Annotated[
        list[Path] | None, path_option("take over records, e.g. of shards; repeatable", "--from")
    ] = None,
    out: Annotated[Path | None, path_option("folder [evaluations/NAME, with --only NAME-ONLY]")] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan; measure nothing")] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenAI-compatible server that answers prompts; key: $OPENAI_API_KEY"),
    ] = None,
    server_model: Annotated[str | None, typer.Option(metavar="NAME", help="model, if the server has several")] = None,
    server_requests: Annotated[int, typer.Option(min=1, max=1024, help="prompts at a time")] = 8,
    server_timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="seconds for a prompt")] = 600.0,
) -> None:
    """Measure models: perplexity, retrieval, RULER, benchmarks. The same command continues."""
    console = prepare_process()
    settings = read_settings(data, set_, *_SETTINGS)
    from skipwise.evaluation.evaluate import evaluate, plan_models, time_here
    from skipwise.evaluation.server import connect
    from skipwise.evaluation.specification import find_models, specify
    from skipwise.model.forward import choose_precision
    from skipwise.report.page import evaluation_summary, write_page
    from skipwise.report.rows import read_folder

    part, windows, longest = read_shard(shard), read_lengths(lengths), read_length(target)
    if windows and longest:
        raise RecipeError(f"--lengths {lengths} and --target {target} contradict; give one")
    if only:
        one_of("--only", only, ("perplexity", "prompts", "benchmarks"))
    serving = connect(server, server_model, at_once=server_requests, timeout=server_timeout) if server else None
    if serving and (len(models) > 1 or tasks == "none"):
        raise RecipeError("--server answers the prompts of one model; give one model and --tasks")
    if base is None and (only or serving):  # then a base and, for prompts, documents are measured only if given
        base = "none"
    highest = longest or max(windows, default=None)
    found = find_models(models, "" if base == "none" else base, read_length(original), highest)
    if documents is None:
        documents = 0 if only in ("prompts", "benchmarks") or (serving and only is None) else 16
    chosen = settings.evaluation.model_dump() | {
        "texts": [settings.data],
        "windows": windows,
        "documents": documents,
        "other_texts": settings.evaluation.other_texts and only is None,
        "tasks": [] if tasks == "none" or only in ("perplexity", "benchmarks") else tasks.split(","),
        "num_prompts": num_prompts,
        "seed": seed,
        "precision": choose_precision(precision),
        "server": serving.engine if serving else None,
    }
    originals, targets = [model.original for model in found], [model.target for model in found]
    specification = specify(min(originals), highest or max(targets), **chosen)
    exams = None
    if only == "benchmarks" or (benchmarks and only is None):
        if find_spec("lm_eval") is None:
            raise RecipeError(f"--benchmarks needs lm-eval: {pip_install('benchmarks')}")
        from skipwise.evaluation.benchmarks import Benchmarks

        exams = Benchmarks(benchmarks or "paper", data_dir, include_path, limit, longest)
    if dry_run:
        plan = plan_models(found, specification, console).only(part)
        console.print(f"records: {len(plan.requests):,}; {time_here(plan)}", soft_wrap=True)
        return
    name = found[0].label.replace("/", "-") + (f"-{only}" if only else "")
    folder = evaluate(
        found,
        specification,
        shard=part,
        benchmarks=exams,
        server=serving,
        earlier=earlier or (),
        out=out or Path("evaluations") / name,
        console=console,
    )
    page = write_page([folder.path])
    console.print(evaluation_summary(read_folder(folder.path)))
    console.print(f"report: {page}", soft_wrap=True)


def report(
    runs: Annotated[list[Path], typer.Argument(parser=read_path, help="run folders, or the folder of an evaluation")],
    out: Annotated[Path | None, path_option("folder or FILE.html [run folder]; for several runs")] = None,
) -> None:
    """Write figures and page from the records."""
    from skipwise.report.page import write_page

    new_console().print(f"report: {write_page(runs, out)}", soft_wrap=True)


def check(
    model: Model,
    engine: Annotated[str | None, typer.Option(help="e.g. transformers,vllm,llama.cpp [all installed]")] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="Python of another environment with engines; repeatable")
    ] = None,
    length: Length = None,
) -> None:
    """Compare how engines read a checkpoint. Exit status 1: one differs."""
    console = prepare_process()
    from skipwise.engines.check import check, find_engines, model_folder, print_comparisons

    engines = find_engines([name.strip() for name in engine.split(",")] if engine else [], python or [])
    comparisons = check(model_folder(model), engines, console, length=read_length(length))
    print_comparisons(comparisons, console)
    if not all(comparison.agrees for comparison in comparisons):
        raise typer.Exit(1)


def export(
    model: Model,
    type_: Annotated[str, typer.Option("--type", help="f32, f16, bf16, q8_0, q6_k, q5_k or q4_k")] = "f16",
    out: Annotated[Path | None, path_option("GGUF file to write [NAME-TYPE.gguf]", metavar="FILE")] = None,
    check: Annotated[bool, typer.Option(help="compare the file in llama.cpp with transformers")] = True,
    length: Length = None,
) -> None:
    """Write a GGUF file for llama.cpp and Ollama, and check it."""
    console = prepare_process(private=False)
    from skipwise.engines.export import export

    export(model, kind=type_, out=out, checked=check, length=read_length(length), console=console)


def publish(
    run: Annotated[Path, typer.Argument(parser=read_path, help="a finished run folder, or its model folder")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="repository on the model hub; created if missing")],
    upload: Annotated[bool, typer.Option("--upload", help="publish; else show the files and the card")] = False,
    private: Annotated[bool, typer.Option("--private", help="create a private repository")] = False,
    base: Annotated[str | None, typer.Option(help="the base's name on the hub [from the card]")] = None,
    license_: Annotated[str | None, typer.Option("--license", help="the model's license [from the card]")] = None,
) -> None:
    """Show a model's files and card, or publish them with --upload."""
    console = prepare_process()
    from skipwise.report.sharing import publish

    publish(run, name, console, upload=upload, private=private, base=base, license=license_)


def convert(
    checkpoint: Annotated[str, typer.Argument(parser=expanded, help="folder, hub name or GGUF file")],
    out: Annotated[Path, typer.Argument(parser=read_path, help="folder to write")],
    original: Annotated[str | None, typer.Option(help="original length (PoSE authors' checkpoints), e.g. 2k")] = None,
    check: Annotated[bool, typer.Option(help="compare a GGUF file with llama.cpp, if installed")] = True,
) -> None:
    """Convert GGUF, GPT-J, Baichuan2-7B or PoSE to a stock checkpoint. PoSE: a checkpoint of its authors."""
    console = prepare_process(private=False)
    if checkpoint.lower().endswith(".gguf"):
        from skipwise.engines.export import convert_gguf

        convert_gguf(Path(checkpoint), out, console, checked=check)
    else:
        from skipwise.model.convert import convert

        convert(checkpoint, out, original_length=read_length(original), console=console)
    console.print(f"model: {out}", soft_wrap=True)

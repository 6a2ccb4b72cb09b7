"""Define the commands evaluate and report."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipwise.cli.options import (
    Seed,
    ServerOptions,
    TextOptions,
    grouped,
    read_length,
    read_lengths,
    read_path,
    read_shard,
)
from skipwise.cli.terminal import new_console, prepare_process
from skipwise.errors import RecipeError, one_of, pip_install
from skipwise.method.limits import MOST_TRIALS
from skipwise.recipes.names import model_name

if TYPE_CHECKING:
    from skipwise.evaluation.benchmarks import Benchmarks

_ONLY = ("perplexity", "prompts", "benchmarks")


@grouped
def evaluate(
    models: Annotated[list[str], typer.Argument(parser=model_name, help="e.g. nano, run folders, names on the hub")],
    text: TextOptions,
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
    tokens_per_document: Annotated[
        str | None, typer.Option(help="tokens per document, e.g. 64k [largest length]")
    ] = None,
    stride: Annotated[str | None, typer.Option(help="stride of sliding windows [max(original/2, target/16)]")] = None,
    tasks: Annotated[
        str, typer.Option(help="passkey,keys,lines,ruler, some of RULER's (ruler:vt), or none")
    ] = "passkey,keys,lines",
    trials: Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="prompts per task and length")] = 100,
    seed: Seed = 0,
    ruler_data: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FOLDER", help="RULER's essays and questions")
    ] = None,
    benchmarks: Annotated[
        str | None, typer.Option(help="lm-eval tasks: paper, or e.g. boolq,arc_challenge:25 (few-shot)")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FOLDER", help="benchmark data as OWNER/NAME [the hub]")
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FOLDER", help="your own lm-eval task files")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions per benchmark [all]")] = None,
    shard: Annotated[str, typer.Option(help="part of the work, e.g. 2/3")] = "1/1",
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", parser=read_path, metavar="FOLDER", help="take over records, e.g. of shards; repeatable"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=read_path, metavar="FOLDER", help="folder [evaluations/NAME, with --only NAME-ONLY]"),
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan; measure nothing")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Measure models and their bases: perplexity, retrieval, RULER, benchmarks. The same command continues."""
    console = prepare_process()
    from skipwise.evaluation.evaluate import evaluate, plan_models, time_here
    from skipwise.evaluation.specification import doubled_windows, find_models, specify
    from skipwise.model.precision import choose_precision
    from skipwise.report.page import evaluation_summary, write_page
    from skipwise.report.rows import read_folder

    part, windows, longest = read_shard(shard), read_lengths(lengths), read_length(target)
    if windows and longest:
        raise RecipeError(f"--lengths {lengths} and --target {target} contradict; give one")
    serving = server.connect()
    if serving and (len(models) > 1 or tasks == "none"):
        raise RecipeError("--server answers the prompts of one model; give one model and --tasks")
    if only:
        one_of("--only", only, _ONLY)
    benchmarks = {None: benchmarks, "benchmarks": benchmarks or "paper"}.get(only)
    alone = bool(only or serving)  # then a base and, for prompts, documents are measured only if given
    found = find_models(
        models,
        "" if base == "none" or (alone and base is None) else base,
        read_length(original),
        longest or max(windows, default=None),
    )
    first = min(model.original for model in found)
    windows = windows or doubled_windows(first, longest or max(model.target for model in found))
    if documents is None:
        documents = 0 if only in ("prompts", "benchmarks") or (serving and only is None) else 16
    specification = specify(
        first,
        max(windows),
        texts=[text.read()],
        windows=windows,
        stride=read_length(stride),
        documents=documents,
        tokens_per_document=read_length(tokens_per_document),
        other_texts=only is None,
        tasks=[] if tasks == "none" or only in ("perplexity", "benchmarks") else tasks.split(","),
        ruler_data=ruler_data,
        num_prompts=trials,
        seed=seed,
        precision=choose_precision(precision),
        server=serving.engine if serving else None,
    )
    if only and out is None:
        out = Path("evaluations") / f"{found[0].label.replace('/', '-')}-{only}"
    chosen = _benchmarks(benchmarks, data_dir, include_path, limit, longest)
    if dry_run:
        plan = plan_models(found, specification, console).only(part)
        console.print(f"records: {plan.requests:,}; {time_here(plan)}", soft_wrap=True)
        return
    folder = evaluate(
        found,
        specification,
        shard=part,
        benchmarks=chosen,
        server=serving,
        earlier=earlier or (),
        out=out,
        console=console,
    )
    page = write_page([folder.path])
    console.print(evaluation_summary(read_folder(folder.path)))
    console.print(f"report: {page}", soft_wrap=True)


def _benchmarks(
    tasks: str | None, data_dir: Path | None, include_path: Path | None, limit: int | None, target: int | None
) -> "Benchmarks | None":
    """Return the benchmarks to run; lm-eval is imported only for them."""
    if tasks is None:
        return None
    if find_spec("lm_eval") is None:
        raise RecipeError(f"--benchmarks needs lm-eval: {pip_install('benchmarks')}")
    from skipwise.evaluation.benchmarks import Benchmarks

    return Benchmarks(tasks, data_dir, include_path, limit, target)


def report(
    runs: Annotated[list[Path], typer.Argument(parser=read_path, help="run folders, or the folder of an evaluation")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=read_path, metavar="FOLDER", help="folder, or FILE.html [the run folder]; needed for several runs"
        ),
    ] = None,
) -> None:
    """Write figures and page from the records."""
    from skipwise.report.page import write_page

    new_console().print(f"report: {write_page(runs, out)}", soft_wrap=True)

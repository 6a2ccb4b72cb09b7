"""Commands that measure models, and those that show what was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipwise.cli.options import (
    DataFolder,
    Lengths,
    Model,
    Precision,
    Questions,
    Records,
    Seed,
    ServerOptions,
    Stride,
    TaskFiles,
    TextOptions,
    Tokens,
    grouped,
    read_length,
    read_lengths,
    read_path,
    read_shard,
)
from skipwise.cli.terminal import new_console, prepare_process
from skipwise.errors import RecipeError, counted
from skipwise.method.limits import MOST_TRIALS
from skipwise.recipes.names import model_name

if TYPE_CHECKING:
    from skipwise.evaluation.specification import Specification


@grouped
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            parser=model_name, help="nano, folders of runs or models, or names on the model hub; several are compared"
        ),
    ],
    text: TextOptions,
    target: Annotated[str | None, typer.Option(help="the farthest length; default: what it was extended to")] = None,
    lengths: Lengths = None,
    base: Annotated[
        str | None, typer.Option(help="the model they were extended from, or none; default: as their run says")
    ] = None,
    original: Annotated[str | None, typer.Option(help="original length, where neither run nor config says it")] = None,
    stride: Stride = None,
    documents: Annotated[
        int | None, typer.Option(help="how many at the most, the longest first; default: 16, or 0 with --server")
    ] = None,
    tokens_per_document: Tokens = None,
    tasks: Annotated[
        str, typer.Option(help="of passkey,keys,lines,ruler; ruler:vt,cwe is two of RULER's thirteen; or none")
    ] = "passkey,keys,lines",
    ruler_data: Annotated[
        Path | None,
        typer.Option(
            parser=read_path, metavar="FOLDER", help="RULER's essays, SQuAD and HotpotQA, which are not shipped"
        ),
    ] = None,
    trials: Annotated[int, typer.Option(max=MOST_TRIALS, help="prompts a task and length")] = 100,
    seed: Seed = 0,
    benchmarks: Annotated[
        str | None, typer.Option(help="tasks of lm-evaluation-harness besides, as skipwise benchmark's; of bases too")
    ] = None,
    data_dir: DataFolder = None,
    include_path: TaskFiles = None,
    limit: Questions = None,
    shard: Annotated[str, typer.Option(help="2/3: of three machines the second; skipwise merge joins them")] = "1/1",
    out: Annotated[
        Path | None, typer.Option(parser=read_path, metavar="FOLDER", help="folder; default: evaluations/ and a name")
    ] = None,
    precision: Precision = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what is measured and what it can show; measure nothing")
    ] = False,
    *,
    server: ServerOptions,
) -> None:
    """Measure how far models read, and what the extension cost inside the original window; the same command goes on."""
    console = prepare_process()
    from skipwise.evaluation.benchmarks import Benchmarks
    from skipwise.evaluation.evaluate import evaluate, plan_models
    from skipwise.evaluation.models import find_models
    from skipwise.evaluation.specification import read_tasks, specification_for
    from skipwise.model.precision import choose_precision

    asked = read_lengths(lengths)
    if server.server:
        base, documents = _asked_besides_prompts(models, tasks, base, documents, console)
    serving = server.connect()
    longest = read_length(target) or max(asked, default=None)
    found = find_models(models, "" if base == "none" else base, read_length(original), longest)
    specification = specification_for(
        found,
        text.read(),
        lengths=asked,
        target=read_length(target),
        stride=read_length(stride),
        documents=16 if documents is None else documents,
        tokens_per_document=read_length(tokens_per_document),
        tasks=() if tasks == "none" else read_tasks(tasks.split(","), ruler_data),
        ruler_data=ruler_data,
        trials=trials,
        seed=seed,
        precision=choose_precision(precision),
        server=serving.engine if serving else None,
    )
    _require_read(specification, benchmarks, bool(data_dir or include_path or limit))
    chosen, part = Benchmarks(benchmarks, data_dir, include_path, limit) if benchmarks else None, read_shard(shard)
    if dry_run:
        plan = plan_models(found, specification, console)
        if not chosen:
            plan.require_work(part)
        plan = plan.only(part)
        forecast = plan.forecast(specification.precision, served=serving is not None)
        console.print(f"records: {plan.requests:,}; {forecast}", soft_wrap=True)
        return
    folder = evaluate(found, specification, shard=part, benchmarks=chosen, server=serving, out=out, console=console)
    _show(folder.path, console)


def _require_read(specification: "Specification", benchmarks: str | None, of_benchmarks: bool) -> None:
    """Require something to measure, and refuse options that nothing would read; some are ``of_benchmarks``."""
    from skipwise.evaluation.specification import is_ruler

    if not (specification.documents or specification.tasks or benchmarks):
        raise RecipeError(
            "--documents 0 and --tasks none leave nothing to measure; give documents, tasks or benchmarks"
        )
    if of_benchmarks and not benchmarks:
        raise RecipeError(
            "--data-dir, --include-path and --limit are of benchmarks: name some by --benchmarks, or leave them out"
        )
    if specification.ruler_data and not any(map(is_ruler, specification.tasks)):
        raise RecipeError(
            "--ruler-data is read by RULER's tasks, and none is asked: add ruler to --tasks, or leave it out"
        )


@grouped
def perplexity(
    model: Model,
    text: TextOptions,
    windows: Lengths = None,
    stride: Stride = None,
    documents: Annotated[
        int | None, typer.Option(help="how many documents at the most, the longest first; default: 8")
    ] = None,
    tokens_per_document: Tokens = None,
    mode: Annotated[
        str | None, typer.Option(help="sliding windows; truncated: the first tokens, by one pass; or by-position")
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="the paper's: paper, paper-far or paper-truncated, in place of the others")
    ] = None,
    out: Records = None,
    precision: Precision = "auto",
) -> None:
    """Measure perplexity; every token is scored once, and no document that the model was trained on is read."""
    console = prepare_process()
    from skipwise.evaluation.models import find_models
    from skipwise.evaluation.single import measure_perplexity, perplexity_settings
    from skipwise.model.precision import choose_precision
    from skipwise.report.command_tables import perplexity_table
    from skipwise.report.tables import rich_table

    asked = read_lengths(windows)
    [found] = find_models([model], base="", length=max(asked, default=None))
    how = perplexity_settings(
        settings,
        found,
        mode=mode,
        windows=asked,
        stride=read_length(stride),
        documents=documents,
        tokens_per_document=read_length(tokens_per_document),
        precision=choose_precision(precision),
        text=text.read(),
    )
    readings, ends = measure_perplexity(found, how, out, console)
    console.print(rich_table(perplexity_table(how.mode, readings, ends)))


@grouped
def passkey(
    model: Model,
    lengths: Lengths = None,
    trials: Annotated[int, typer.Option(max=MOST_TRIALS, help="prompts for each length")] = 50,
    task: Annotated[str, typer.Option(help="passkey; keys: one of four; or lines: one line of a register")] = "passkey",
    seed: Seed = 0,
    out: Records = None,
    precision: Precision = "auto",
    *,
    server: ServerOptions,
) -> None:
    """Hide a five-digit number at every depth of a prompt and ask for it."""
    console = prepare_process()
    from skipwise.evaluation.models import find_models
    from skipwise.evaluation.single import measure_retrieval
    from skipwise.evaluation.specification import Specification, doubled_windows
    from skipwise.model.precision import choose_precision
    from skipwise.report.command_tables import trials_table
    from skipwise.report.tables import rich_table

    asked = read_lengths(lengths)
    [found] = find_models([model], base="", length=max(asked, default=None))
    serving = server.connect()
    specification = Specification(
        documents=0,
        tasks=(task,),
        prompt_lengths=tuple(sorted(set(asked or doubled_windows(found.original, found.target)))),
        trials=trials,
        seed=seed,
        precision=choose_precision(precision),
        server=serving.engine if serving else None,
    )
    records = measure_retrieval(found, specification, out, console, serving)
    console.print(rich_table(trials_table(task, records)))


def merge(
    parts: Annotated[
        list[Path], typer.Argument(parser=read_path, help="folders of evaluate, each a shard of the same evaluation")
    ],
    out: Annotated[Path, typer.Option(parser=read_path, metavar="FOLDER", help="a new folder")],
) -> None:
    """Put the shards of one evaluation together."""
    console = prepare_process()
    from skipwise.evaluation.evaluate import merge

    parts = list({part.resolve(): part for part in parts}.values())
    folder = merge(parts, out)
    console.print(f"merged {counted(len(parts), 'folder')}: {folder.path}", soft_wrap=True)
    _show(folder.path, console)


def benchmark(
    model: Model,
    tasks: Annotated[
        str, typer.Option(help="paper, or tasks of lm-evaluation-harness, as ruler,arc_challenge:25 (few-shot)")
    ] = "paper",
    data_dir: DataFolder = None,
    include_path: TaskFiles = None,
    limit: Questions = None,
    target: Annotated[
        str | None, typer.Option(help="length that no request may exceed, as 32k; default: the model's")
    ] = None,
    batch_size: Annotated[str, typer.Option(help="requests at a time; auto: what fits on a GPU, 1 on a CPU")] = "auto",
    out: Records = None,
    precision: Precision = "auto",
) -> None:
    """Run tasks of EleutherAI's lm-evaluation-harness at the extended length; what is too long is refused."""
    console = prepare_process()
    from skipwise.evaluation.benchmarks import Benchmarks
    from skipwise.evaluation.models import find_models
    from skipwise.evaluation.single import run_benchmarks
    from skipwise.model.precision import choose_precision
    from skipwise.report.command_tables import benchmarks_table
    from skipwise.report.tables import rich_table

    chosen = Benchmarks(tasks, data_dir, include_path, limit, batch_size)
    [found] = find_models([model], base="", length=read_length(target))
    records = run_benchmarks(found, chosen, read_length(target), choose_precision(precision), out, console)
    console.print(rich_table(benchmarks_table(records)))


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=read_path, help="run folders, of which several are compared; or an evaluation's"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=read_path,
            metavar="FOLDER",
            help="for report.html and its figures, or FILE.html; default: the run folder; needed for several runs",
        ),
    ] = None,
) -> None:
    """Make figures and the page again from the records alone."""
    from skipwise.report.page import write_page

    new_console().print(f"report: {write_page(runs, out)}", soft_wrap=True)


def _asked_besides_prompts(
    models: list[str], tasks: str, base: str | None, documents: int | None, console: Any
) -> tuple[str, int]:
    """The base and the documents that are asked for beside the prompts of a server: none, unless the command names them.

    Raises:
        RecipeError: the server has nothing to answer, or several models are named.
    """
    if len(models) > 1:
        raise RecipeError(f"--server serves one model, and {', '.join(models)} are named: evaluate each by a command")
    if tasks == "none":
        raise RecipeError("--server answers prompts, and --tasks none asks for none: name tasks, or leave --server out")
    if base is None or documents is None:
        console.print(
            "the server answers prompts; what it does not answer is measured here, and only if it is asked for: documents "
            "(--documents 16), the base (--base NAME)",
            soft_wrap=True,
        )
    return base or "none", documents or 0


def _show(folder: Path, console: Any) -> None:
    """Write the page of an evaluation, and print what it says."""
    from skipwise.report.folder import read_folder
    from skipwise.report.page import write_page
    from skipwise.report.tables import evaluation_summary

    page = write_page([folder])
    console.print(evaluation_summary(read_folder(folder)))
    console.print(f"report: {page}", soft_wrap=True)

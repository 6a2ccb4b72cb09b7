"""Commands that measure models, and those that show what was measured."""

from pathlib import Path
from typing import Annotated

import typer

from skipwise.cli.options import (
    DataFolder,
    Field,
    Model,
    Precision,
    Questions,
    Records,
    Split,
    Subset,
    TaskFiles,
    read_lengths,
    read_share,
)
from skipwise.cli.terminal import new_console, prepare_process
from skipwise.lengths import parse_length


def evaluate(
    models: Annotated[
        list[str], typer.Argument(help="nano, folders, or names on the model hub; several are compared")
    ],
    data: Annotated[str, typer.Option(help="text to read: file, folder, data set name, stdlib")] = "stdlib",
    text_field: Field = "text",
    split: Split = "train",
    subset: Subset = None,
    target: Annotated[
        str | None, typer.Option(help="the farthest length; default: what the config says")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="as 4k,8k,32k; default: the original length, doubled up to the target")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="the model they were extended from, or none; default: as their run says"),
    ] = None,
    original: Annotated[
        str | None, typer.Option(help="original length, where neither run nor config says it")
    ] = None,
    stride: Annotated[
        str | None, typer.Option(help="of the windows; default: half the original length")
    ] = None,
    documents: Annotated[int, typer.Option(help="how many at the most, the longest first; 0 for none")] = 16,
    tasks: Annotated[str, typer.Option(help="of passkey,keys,lines; or none")] = "passkey,keys,lines",
    trials: Annotated[int, typer.Option(help="prompts a task and length")] = 100,
    seed: Annotated[int, typer.Option(help="of the prompts")] = 0,
    benchmarks: Annotated[
        str | None,
        typer.Option(help="tasks of lm-evaluation-harness besides, as skipwise benchmark's; of bases too"),
    ] = None,
    data_dir: DataFolder = None,
    include_path: TaskFiles = None,
    limit: Questions = None,
    share: Annotated[
        str, typer.Option(help="2/3: of three machines the second; skipwise merge joins them")
    ] = "1/1",
    out: Annotated[Path | None, typer.Option(help="folder; default: evaluations/ and a name")] = None,
    precision: Precision = "auto",
) -> None:
    """Measure how far models read, and what that cost inside the original window; the same command goes on."""
    console = prepare_process()
    from skipwise.evaluate import ask, evaluate
    from skipwise.exam import Exam
    from skipwise.measure import precision_of
    from skipwise.recipe import Data
    from skipwise.subjects import subjects

    found = subjects(
        models, "" if base == "none" else base, parse_length(original) if original is not None else None
    )
    question = ask(
        found,
        Data(source=data, text_field=text_field, split=split, subset=subset),
        lengths=read_lengths(lengths) if lengths is not None else None,
        target=parse_length(target) if target is not None else None,
        stride=parse_length(stride) if stride is not None else None,
        documents=documents,
        tasks=[] if tasks == "none" else [task.strip() for task in tasks.split(",")],
        trials=trials,
        seed=seed,
        precision=precision_of(precision),
        console=console,
    )
    exam = Exam(benchmarks, data_dir, include_path, limit) if benchmarks else None
    evaluate(found, question, share=read_share(share), exam=exam, out=out, console=console)


def perplexity(
    model: Model,
    data: Annotated[
        str, typer.Option(help="text to measure on: file, folder, data set name, stdlib")
    ] = "stdlib",
    text_field: Field = "text",
    split: Split = "train",
    subset: Subset = None,
    windows: Annotated[str | None, typer.Option(help="lengths, as 2k,4k,8k; default: 256,512,1k,2k")] = None,
    stride: Annotated[str | None, typer.Option(help="tokens that a window moves on; default: 128")] = None,
    documents: Annotated[
        int | None, typer.Option(help="how many documents at the most, the longest first; default: 8")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="sliding windows; truncated: the first tokens, by one pass; or by-position"),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(help="the paper's: paper, paper-far or paper-truncated, in place of the others"),
    ] = None,
    out: Records = None,
    precision: Precision = "auto",
) -> None:
    """Measure perplexity; every token is scored once."""
    console = prepare_process()
    from skipwise.parts import perplexity_command, reading
    from skipwise.recipe import Data

    how = reading(
        settings,
        mode=mode,
        windows=read_lengths(windows) if windows is not None else None,
        stride=parse_length(stride) if stride is not None else None,
        documents=documents,
    )
    text = Data(source=data, text_field=text_field, split=split, subset=subset)
    perplexity_command(model, text, how, precision, out, console)


def passkey(
    model: Model,
    lengths: Annotated[str, typer.Option(help="prompt lengths, as 2k,4k,8k")] = "256,512,1k,2k",
    trials: Annotated[int, typer.Option(help="prompts a length")] = 50,
    task: Annotated[
        str, typer.Option(help="passkey; keys: one of four; or lines: one line of a register")
    ] = "passkey",
    seed: Annotated[int, typer.Option(help="of keys and depths")] = 0,
    out: Records = None,
    precision: Precision = "auto",
) -> None:
    """Hide a five-digit key at every depth and ask for it."""
    console = prepare_process()
    from skipwise.parts import passkey_command

    passkey_command(model, task, read_lengths(lengths), trials, seed, precision, out, console)


def merge(
    parts: Annotated[
        list[Path], typer.Argument(help="folders of evaluate, each a share of the same question")
    ],
    out: Annotated[Path, typer.Option(help="a new folder")],
) -> None:
    """Put the shares of one evaluation together."""
    from skipwise.evaluate import merge

    merge(parts, out, prepare_process())


def benchmark(
    model: Model,
    tasks: Annotated[
        str,
        typer.Option(help="paper, or tasks of lm-evaluation-harness, as ruler,arc_challenge:25 (few-shot)"),
    ] = "paper",
    data_dir: DataFolder = None,
    include_path: TaskFiles = None,
    limit: Questions = None,
    target: Annotated[
        str | None, typer.Option(help="length that no request may exceed, as 32k; default: the model's")
    ] = None,
    batch_size: Annotated[
        str, typer.Option(help="requests at a time; auto: what fits on a GPU, 1 on a CPU")
    ] = "auto",
    out: Records = None,
    precision: Precision = "auto",
) -> None:
    """Run tasks of EleutherAI's lm-evaluation-harness at the extended length; what is too long is refused."""
    console = prepare_process()
    from skipwise.exam import Exam
    from skipwise.parts import benchmark_command

    exam = Exam(tasks, data_dir, include_path, limit, batch_size)
    benchmark_command(model, exam, parse_length(target) if target else None, precision, out, console)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="run folders, of which several are compared; or an evaluation's")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="the page; default: report.html in the run folder; needed for several runs"),
    ] = None,
) -> None:
    """Make figures and the page again from the records alone."""
    from skipwise.report.evaluation import is_evaluation
    from skipwise.report.evaluation_page import write_evaluation
    from skipwise.report.page import write_report

    alone = len(runs) == 1 and is_evaluation(runs[0])
    page = write_evaluation(runs[0], out) if alone else write_report(runs, out)
    new_console().print(f"report: {page}", soft_wrap=True)

"""The commands: thin, and quick to start; torch is imported only by the command that needs it."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from skipwise.errors import RecipeError, SkipwiseError
from skipwise.lengths import parse_length

app = typer.Typer(
    name="skipwise",
    help="Extend the context window of a RoPE language model by positional skip-wise training (PoSE).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Setting = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe, as training.learning_rate=1e-5")
]


@app.command("extend")
def extend_command(
    model: Annotated[
        str | None, typer.Argument(help="nano (embedded, the default), a folder, or a name on the model hub")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="target length, as 32k; default: 8 times the original")
    ] = None,
    interpolation: Annotated[str | None, typer.Option(help="none, linear, ntk, yarn or yarn-revised")] = None,
    data: Annotated[
        str | None, typer.Option(help="text to train on: file, folder, data set name, stdlib")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; default: runs/ and a name")] = None,
    recipe: Annotated[str | None, typer.Option(help="YAML file, or the name of a shipped recipe")] = None,
    existing_rope: Annotated[
        str | None, typer.Option(help="refuse or replace a scaling already there")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="of examples and training")] = None,
    lora: Annotated[
        bool, typer.Option("--lora", help="train low-rank additions only, as the recipe's lora section says")
    ] = False,
    set_: Setting = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was stopped")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan; train nothing")] = False,
    launch: Annotated[
        str | None, typer.Option(help="train in several processes: ddp, fsdp, zero3 or zero3-offload")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="how many, with --launch; default: one a GPU")] = None,
) -> None:
    """Extend a model to a longer context, measure it beside its controls, and write a report."""
    console = _prepare_process()
    if launch is None and processes is not None:
        raise RecipeError(
            f"--processes {processes} says how many processes --launch starts: give --launch ddp, fsdp, zero3 or "
            "zero3-offload, or leave it out"
        )
    if launch is not None:
        from skipwise.launch import launch as start
        from skipwise.launch import processes_of

        processes = processes_of(launch, processes)
        if not dry_run:
            start(launch, processes, _without(sys.argv[1:], "--launch", "--processes"))
            return
    from skipwise.arms import plan_evaluation
    from skipwise.extend import extend
    from skipwise.job import describe, describe_examples, prepare
    from skipwise.recipe import parse_changes
    from skipwise.training_arguments import accumulation

    options: dict[str, Any] = {
        "model": model,
        "target": target,
        "interpolation": interpolation,
        "data.source": data,
        "existing_rope": existing_rope,
        "seed": seed,
    }
    changes = {key: value for key, value in options.items() if value is not None}
    changes.update(parse_changes(set_ or []))
    source: Path | str | None = "nano" if recipe is None and model in (None, "nano") else recipe
    if resume and out is not None and model is None and recipe is None:
        from skipwise.run_folder import recipe_of

        recipe_of(out)  # a folder that holds no run is refused
        source = out / "recipe.yaml"
    settings = _recipe(source, changes, lora)
    if dry_run:
        accumulation(settings.training, processes or 1)
        job = prepare(settings, console)
        plan_evaluation(job, console)  # refuses what could not be measured
        describe(job, console)
        describe_examples(job, console)
        return
    extend(settings, out=out, resume=resume, console=console)


@app.command("plan")
def plan_command(
    model: Annotated[str | None, typer.Argument(help="nano, a folder, or a name on the model hub")] = None,
    target: Annotated[
        str | None, typer.Option(help="target length, as 32k; default: 8 times the original")
    ] = None,
    gpus: Annotated[int, typer.Option(help="how many GPUs share the work")] = 1,
    gpu_memory: Annotated[str, typer.Option(help="memory of each, as 80GB")] = "80GB",
    tflops: Annotated[
        float, typer.Option(help="bf16 TFLOP/s of each: 312 is an A100's, 989 an H100's or H200's")
    ] = 312.0,
    utilisation: Annotated[float, typer.Option(help="the share of them that training reaches")] = 0.4,
    recipe: Annotated[str | None, typer.Option(help="YAML file, or the name of a shipped recipe")] = None,
    existing_rope: Annotated[
        str | None, typer.Option(help="refuse or replace a scaling already there")
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", help="train low-rank additions only")] = False,
    set_: Setting = None,
) -> None:
    """Say what a run will hold and take, PoSE beside full-length, from the model's config alone."""
    console = _prepare_process()
    from skipwise.plan import Machine, plan_command
    from skipwise.recipe import parse_changes

    options: dict[str, Any] = {"model": model, "target": target, "existing_rope": existing_rope}
    changes = {key: value for key, value in options.items() if value is not None}
    changes.update(parse_changes(set_ or []))
    source = "nano" if recipe is None and model in (None, "nano") else recipe
    plan_command(
        _recipe(source, changes, lora),
        Machine(gpus, _gigabytes(gpu_memory), tflops * 1e12, utilisation),
        console,
    )


@app.command()
def coverage(
    context: typer.Context,
    original: Annotated[str, typer.Option(help="original length, the tokens of an example")] = "2k",
    target: Annotated[str, typer.Option(help="target length")] = "16k",
    chunks: Annotated[int, typer.Option(help="number of chunks, N")] = 2,
    scheme: Annotated[str, typer.Option(help="pose, randpos or cream")] = "pose",
    lengths: Annotated[str, typer.Option(help="how chunk lengths are drawn: paper or released")] = "paper",
    skips: Annotated[
        str, typer.Option(help="how PoSE's skips are drawn: uniform or end_anchored")
    ] = "uniform",
    samples: Annotated[
        int | None, typer.Option(help="draw so many examples in place of a closed form")
    ] = None,
    seed: Annotated[int, typer.Option(help="of those examples")] = 0,
    figure: Annotated[Path | None, typer.Option(help="write the curve to this .svg or .png file")] = None,
) -> None:
    """Show how likely one example trains each relative distance."""
    if scheme != "pose" and (given := _given(context, "--chunks", "--lengths", "--skips")):
        raise RecipeError(f"{given[0]} is a setting of pose, and {scheme} has none; leave it out")
    from rich.table import Table

    from skipwise.coverage import coverage as compute
    from skipwise.coverage import coverage_record

    if figure is not None:
        from skipwise.report.plots import coverage_figure, require_figure_ending

        require_figure_ending(figure)
    result = compute(
        parse_length(original),
        parse_length(target),
        chunks,
        scheme=scheme,  # type: ignore[arg-type]
        lengths=lengths,  # type: ignore[arg-type]
        skips=skips,  # type: ignore[arg-type]
        samples=samples,
        seed=seed,
    )
    monte_carlo = result.samples > 0
    table = Table(title=f"coverage, {original} -> {target}, {scheme}, {chunks} chunks")
    for column in ("distance", "probability", *(["standard error"] if monte_carlo else [])):
        table.add_column(column, justify="right")
    for distance in _shown_distances(parse_length(original), parse_length(target)):
        row = [f"{distance:,}", f"{result.probability[distance - 1]:.4f}"]
        if monte_carlo:
            row.append(f"{result.standard_error[distance - 1]:.4f}")
        table.add_row(*row)
    console = _console()
    console.print(table)
    console.print("Monte Carlo" if monte_carlo else "closed form")
    if figure is not None:
        label = f"{chunks} chunks" if scheme == "pose" else scheme
        coverage_figure([coverage_record(result, label)], figure)
        console.print(f"figure: {figure}", soft_wrap=True)


@app.command("evaluate")
def evaluate_command(
    models: Annotated[
        list[str], typer.Argument(help="nano, folders, or names on the model hub; several are compared")
    ],
    data: Annotated[str, typer.Option(help="text to read: file, folder, data set name, stdlib")] = "stdlib",
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
    data_dir: Annotated[
        Path | None, typer.Option(help="of the benchmarks' data sets, as OWNER/NAME; default: the hub")
    ] = None,
    include_path: Annotated[Path | None, typer.Option(help="folder of task files of your own (YAML)")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions a benchmark; default: all")] = None,
    share: Annotated[
        str, typer.Option(help="2/3: of three machines the second; skipwise merge joins them")
    ] = "1/1",
    out: Annotated[Path | None, typer.Option(help="folder; default: evaluations/ and a name")] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
) -> None:
    """Measure how far models read, and what that cost inside the original window; the same command goes on."""
    console = _prepare_process()
    from skipwise.evaluate import ask, evaluate
    from skipwise.exam import Exam
    from skipwise.measure import precision_of
    from skipwise.subjects import subjects

    found = subjects(
        models, "" if base == "none" else base, parse_length(original) if original is not None else None
    )
    question = ask(
        found,
        data,
        lengths=_lengths(lengths) if lengths is not None else None,
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
    evaluate(found, question, share=_share(share), exam=exam, out=out, console=console)


@app.command()
def perplexity(
    model: Annotated[str, typer.Argument(help="nano, a folder, or a name on the model hub")],
    data: Annotated[
        str, typer.Option(help="text to measure on: file, folder, data set name, stdlib")
    ] = "stdlib",
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
    out: Annotated[
        Path | None, typer.Option(help="append the records to this results.jsonl, and go on with it")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
) -> None:
    """Measure perplexity; every token is scored once."""
    console = _prepare_process()
    from skipwise.parts import perplexity_command, reading

    how = reading(
        settings,
        mode=mode,
        windows=_lengths(windows) if windows is not None else None,
        stride=parse_length(stride) if stride is not None else None,
        documents=documents,
    )
    perplexity_command(model, data, how, precision, out, console)


@app.command()
def passkey(
    model: Annotated[str, typer.Argument(help="nano, a folder, or a name on the model hub")],
    lengths: Annotated[str, typer.Option(help="prompt lengths, as 2k,4k,8k")] = "256,512,1k,2k",
    trials: Annotated[int, typer.Option(help="prompts a length")] = 50,
    task: Annotated[
        str, typer.Option(help="passkey; keys: one of four; or lines: one line of a register")
    ] = "passkey",
    seed: Annotated[int, typer.Option(help="of keys and depths")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="append the records to this results.jsonl, and go on with it")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
) -> None:
    """Hide a five-digit key at every depth and ask for it."""
    console = _prepare_process()
    from skipwise.parts import passkey_command

    passkey_command(model, task, _lengths(lengths), trials, seed, precision, out, console)


@app.command("merge")
def merge_command(
    parts: Annotated[
        list[Path], typer.Argument(help="folders of evaluate, each a share of the same question")
    ],
    out: Annotated[Path, typer.Option(help="a new folder")],
) -> None:
    """Put the shares of one evaluation together."""
    from skipwise.evaluate import merge

    merge(parts, out, _prepare_process())


@app.command()
def benchmark(
    model: Annotated[str, typer.Argument(help="nano, a folder, or a name on the model hub")],
    tasks: Annotated[
        str,
        typer.Option(help="paper, or tasks of lm-evaluation-harness, as ruler,arc_challenge:25 (few-shot)"),
    ] = "paper",
    data_dir: Annotated[
        Path | None, typer.Option(help="folder of data sets, as OWNER/NAME; default: the hub")
    ] = None,
    include_path: Annotated[Path | None, typer.Option(help="folder of task files of your own (YAML)")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions a task; default: all")] = None,
    target: Annotated[
        str | None, typer.Option(help="length that no request may exceed, as 32k; default: the model's")
    ] = None,
    batch_size: Annotated[
        str, typer.Option(help="requests at a time; auto: what fits on a GPU, 1 on a CPU")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="append the records to this results.jsonl; tasks in it are not run again"),
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, bf16, fp16 or float32")] = "auto",
) -> None:
    """Run tasks of EleutherAI's lm-evaluation-harness at the extended length; what is too long is refused."""
    console = _prepare_process()
    from skipwise.exam import Exam
    from skipwise.parts import benchmark_command

    exam = Exam(tasks, data_dir, include_path, limit, batch_size)
    benchmark_command(model, exam, parse_length(target) if target else None, precision, out, console)


@app.command()
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
    _console().print(f"report: {page}", soft_wrap=True)


@app.command("convert")
def convert_command(
    checkpoint: Annotated[str, typer.Argument(help="a folder, or a name on the model hub")],
    out: Annotated[Path, typer.Argument(help="the folder to write; it must not exist")],
    original: Annotated[
        str | None, typer.Option(help="original length of a checkpoint extended by PoSE's authors")
    ] = None,
) -> None:
    """Write GPT-J, Baichuan2-7B, or a checkpoint of PoSE's authors as a stock class with the same logits."""
    console = _prepare_process()
    from skipwise.model.convert import convert

    convert(checkpoint, out, original_length=parse_length(original) if original else None, console=console)
    console.print(f"model: {out}", soft_wrap=True)


@app.command("reproduce")
def reproduce_command(
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
    set_: Setting = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="write the page of what is there; train nothing")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be run, and what it takes")
    ] = False,
) -> None:
    """Run the paper's comparisons, in miniature or at full size; each arm is trained once and shared."""
    console = _prepare_process()
    from skipwise.recipe import nearest, parse_changes
    from skipwise.reproduction.reproduce import list_exhibits, reproduce
    from skipwise.reproduction.scales import SCALES

    if scale not in SCALES:
        raise RecipeError(f"scale {scale!r} is unknown{nearest(scale, SCALES)}; choose {' or '.join(SCALES)}")
    if not exhibits:
        if given := _given(context):
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


def _given(context: typer.Context, *only: str) -> list[str]:
    """Options that stand on the command line; of ``only`` these, where there are any."""
    return [
        option.opts[0]
        for option in context.command.params
        if option.opts[0].startswith("--")
        and (not only or option.opts[0] in only)
        and (source := context.get_parameter_source(option.name or ""))
        and source.name == "COMMANDLINE"
    ]


def main() -> None:
    """Run a command; a user's mistake ends in its message and exit status 1, without a traceback."""
    try:
        app()
    except SkipwiseError as error:
        if os.environ.get("RANK", "0") == "0":  # of several processes one says it
            print(f"skipwise: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"skipwise: the disk cannot be written{where}: {error.strerror}; what was written is kept. Make room, and "
            "go on: extend with --resume, other commands as they are",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    except SystemExit as end:
        if end.code == 130:  # typer's, of Ctrl-C
            ways_on = {
                "extend": "; the same command with --resume goes on, if its run folder was begun",
                "reproduce": "; the same command goes on, and what is done is not done again",
                "evaluate": "; the same command goes on, and what is measured is not measured again",
            }
            print(f"\nskipwise: stopped{ways_on.get(sys.argv[1], '')}", file=sys.stderr)
        raise


def _prepare_process() -> Any:
    """Set what must be set before torch starts, and return the console."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from skipwise.allocator import keep_freed_memory

    keep_freed_memory()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return _console()


def _console() -> Any:
    """A console that prints names and paths as they are."""
    from rich.console import Console

    quiet = os.environ.get("RANK", "0") != "0"  # of several processes one prints
    return Console(highlight=False, markup=False, emoji=False, quiet=quiet)


def _recipe(source: Path | str | None, changes: dict[str, Any], lora: bool) -> Any:
    """The recipe, with LoRA as its defaults say where ``--lora`` asks for it and the recipe does not."""
    from skipwise.recipe import load_recipe

    if lora and changes.get("lora", {}) is None:
        raise RecipeError("--lora asks for LoRA, and --set lora=null for none; leave one of them out")
    settings = load_recipe(source, changes)
    return load_recipe(source, {"lora": {}, **changes}) if lora and settings.lora is None else settings


def _without(words: list[str], *options: str) -> list[str]:
    """The command line without some options and their values, as ``--launch ddp`` or ``--launch=ddp``."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in options and not word.startswith(tuple(f"{o}=" for o in options)):
            kept.append(word)
        skip = not skip and word in options
    return kept


def _share(text: str) -> tuple[int, int]:
    """Read ``2/3``."""
    part, slash, parts = text.partition("/")
    if slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise RecipeError(f"share {text!r} must be PART/PARTS, as 2/3: the second of three")


def _gigabytes(text: str) -> float:
    """Read ``80GB``, ``80G`` or ``80`` as bytes."""
    number = text.strip().upper().removesuffix("B").removesuffix("G")
    try:
        return float(number) * 1e9
    except ValueError:
        raise RecipeError(f"--gpu-memory {text!r} must be a number of gigabytes, as 80GB") from None


def _lengths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if any(part.startswith("0") for part in parts):
        raise RecipeError(
            f"{text!r} is no list of lengths: write them without separators, as 2048,4096 or 2k,4k"
        )
    return [parse_length(part) for part in parts]


def _shown_distances(original: int, target: int) -> list[int]:
    """Distances at which the curve bends, and some between."""
    marks = {1, original // 2, original - 1, original, target - original, target - original + 1, target - 1}
    marks |= {target * k // 8 for k in range(1, 8)}
    return sorted(d for d in marks if 1 <= d < target)

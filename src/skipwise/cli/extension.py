"""Define the commands extend, plan, fit and convert."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from skipwise.cli.options import (
    Changes,
    ExistingRope,
    Interpolation,
    Lora,
    MethodName,
    Model,
    RecipeName,
    StartingModel,
    Target,
    TextOptions,
    grouped,
    read_gigabytes,
    read_length,
    read_path,
)
from skipwise.cli.terminal import new_console, prepare_process
from skipwise.errors import RecipeError, SkipwiseError
from skipwise.method.lengths import parse_length
from skipwise.progress import doing
from skipwise.recipes.names import expanded


def extend(
    context: typer.Context,
    model: StartingModel = None,
    target: Target = None,
    interpolation: Interpolation = None,
    data: Annotated[
        list[str] | None, typer.Option(help="training text: file, folder, data set name, stdlib", metavar="TEXT")
    ] = None,
    out: Annotated[Path | None, typer.Option(parser=read_path, metavar="FOLDER", help="run folder [runs/NAME]")] = None,
    recipe: RecipeName = None,
    method: MethodName = None,
    existing_rope: ExistingRope = None,
    seed: Annotated[int | None, typer.Option(help="seed of examples and training")] = None,
    lora: Lora = False,
    set_: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue a stopped run")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan; train nothing")] = False,
    launch: Annotated[str | None, typer.Option(help="several processes: ddp, fsdp, zero3 or zero3-offload")] = None,
    processes: Annotated[int | None, typer.Option(help="number of processes with --launch [one per GPU]")] = None,
) -> None:
    """Extend a model to a longer context, measure it and its baselines, and write a report."""
    console = prepare_process(trains=True)
    if launch is None and processes is not None:
        raise RecipeError(
            f"--processes {processes} needs --launch; give --launch ddp, fsdp, zero3 or zero3-offload, or leave it out"
        )
    if launch is not None:
        from skipwise.training.processes import launch as start
        from skipwise.training.processes import processes_of

        processes = processes_of(launch, processes)
        if not dry_run:
            start(launch, processes, _without(context.obj, "--launch", "--processes"))
            return
    from skipwise.evaluation.evaluate import require_measurable, seconds_here, time_of
    from skipwise.extend import extend, plan_run_evaluation
    from skipwise.fit.search import fitted_recipe
    from skipwise.model.cost import training_seconds
    from skipwise.recipes.schema import AUTO, FITTED
    from skipwise.results.run_folder import RunFolder
    from skipwise.training.arguments import accumulation
    from skipwise.training.plan import print_examples, print_plan, require_fits, timed_tokens
    from skipwise.training.prepare import prepare
    from skipwise.training.run import RUNS, require_ours

    options: dict[str, Any] = {
        "model": model,
        "target": target,
        "interpolation": interpolation,
        "method": method,
        "data.source": _one_source(data),
        "existing_rope": existing_rope,
        "seed": seed,
    }
    source: Path | str | None = recipe
    if resume and out is not None and model is None and recipe is None:
        from skipwise.training.run import recipe_of

        recipe_of(out)  # a folder that holds no run is refused
        source = out / "recipe.yaml"
    settings = _recipe(source, options, set_, lora)
    if dry_run:
        if settings.interpolation not in (FITTED, AUTO):
            settings, _ = fitted_recipe(settings, out, resume, console)
        if out is not None:
            require_ours(RunFolder(out), settings, resume)
        accumulation(settings.training, processes or 1)
        prepared = prepare(settings, console, launch)
        evaluation = plan_run_evaluation(prepared, console)  # refuses what could not be measured
        print_plan(prepared, console)
        with _said(console):
            require_fits(settings, None if resume else out or RUNS, several=launch is not None)
        with _said(console):
            require_measurable(evaluation, prepared.device)
        how = prepared.config, timed_tokens(prepared), prepared.window, prepared.precision, prepared.device
        training = training_seconds(*how)
        measuring = seconds_here(evaluation.batches, prepared.config, prepared.precision)
        about = timedelta(seconds=round(training))
        console.print(f"on this machine: training about {about}, {time_of(measuring)}", soft_wrap=True)
        if sum(measuring.values()) > training:
            console.print("to measure less, lower evaluation.num_prompts, .windows or .documents", soft_wrap=True)
        print_examples(prepared, console)
        return
    extend(settings, out=out, resume=resume, console=console)


def plan(
    model: StartingModel = None,
    target: Target = None,
    interpolation: Interpolation = None,
    gpus: Annotated[int, typer.Option(min=1, help="number of GPUs")] = 1,
    gpu_memory: Annotated[str, typer.Option(help="memory of each GPU, e.g. 80GB or 80GiB")] = "80GB",
    tflops: Annotated[float, typer.Option(min=1, help="bf16 TFLOP/s of each GPU (A100: 312, H100: 989)")] = 312.0,
    mfu: Annotated[float, typer.Option(min=0.01, max=1, help="share of the TFLOP/s that training reaches (MFU)")] = 0.4,
    recipe: RecipeName = None,
    method: MethodName = None,
    existing_rope: ExistingRope = None,
    lora: Lora = False,
    set_: Changes = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="print the probability of training each distance")
    ] = False,
) -> None:
    """Estimate memory and time of a run against full-length training, from the config."""
    with doing("starting", new_console()):  # torch and transformers take seconds
        console = prepare_process()
        from skipwise.evaluation.evaluate import print_planned
        from skipwise.training.plan import Hardware, compare_costs

    options = {
        "model": model,
        "target": target,
        "interpolation": interpolation,
        "method": method,
        "existing_rope": existing_rope,
    }
    settings = _recipe(recipe, options, set_, lora)
    if coverage:
        _print_coverage(settings, console)
        return
    hardware = Hardware(gpus, read_gigabytes(gpu_memory), tflops * 1e12, mfu)
    compare_costs(settings, hardware, console)
    print_planned(settings, hardware.peak * hardware.mfu, hardware.memory, console)


def _print_coverage(recipe: Any, console: Any) -> None:
    """Print how likely one example of a recipe trains each relative distance."""
    from rich.table import Table

    from skipwise.method.coverage import coverage
    from skipwise.model.config import load_config
    from skipwise.model.extension import extension_of
    from skipwise.training.prepare import window_of

    extension, rule = extension_of(load_config(recipe.model), recipe), recipe.positions
    original, target = window_of(recipe, extension), extension.target_length
    curve = coverage(original, target, rule.rules, scheme=rule.scheme)
    table = Table(title=f"coverage, {original:,} -> {target:,}, {rule.scheme}")
    for column in ("distance", "probability", *(["standard error"] if curve.samples else [])):
        table.add_column(column, justify="right")
    bends = {1, original // 2, original - 1, original, target - original, target - original + 1, target - 1}
    between = {target * k // 8 for k in range(1, 8)}
    for distance in sorted(d for d in bends | between if 1 <= d < target):
        cells = [curve.probability, *([curve.standard_error] if curve.samples else [])]
        table.add_row(f"{distance:,}", *(f"{column[distance - 1]:.4f}" for column in cells))
    console.print(table)


def convert(
    checkpoint: Annotated[str, typer.Argument(parser=expanded, help="folder, hub name or GGUF file")],
    out: Annotated[Path, typer.Argument(parser=read_path, help="folder to write")],
    original: Annotated[str | None, typer.Option(help="original length (PoSE authors' checkpoints), e.g. 2k")] = None,
    check: Annotated[bool, typer.Option(help="compare a GGUF file with llama.cpp, if installed")] = True,
) -> None:
    """Convert GGUF, GPT-J, Baichuan2-7B or a checkpoint of PoSE's authors to a stock checkpoint."""
    console = prepare_process(private=False)
    if checkpoint.lower().endswith(".gguf"):
        from skipwise.engines.export import convert_gguf

        convert_gguf(Path(checkpoint), out, console, checked=check)
    else:
        from skipwise.model.convert import convert

        convert(checkpoint, out, original_length=parse_length(original) if original else None, console=console)
    console.print(f"model: {out}", soft_wrap=True)


@contextmanager
def _said(console: Any) -> Iterator[None]:
    """Print the refusal of a run, which may be planned here for a larger machine."""
    try:
        yield
    except SkipwiseError as error:
        console.print(f"not on this machine: {error}", style="yellow", soft_wrap=True)


def _recipe(source: Path | str | None, options: dict[str, Any], set_: list[str] | None, lora: bool) -> Any:
    """The recipe with the changes of the command line, and with LoRA where only ``--lora`` asks for it.

    Without a recipe the models that come by name have their own, and other models the defaults.
    """
    from skipwise.recipes.loading import load_recipe, parse_changes

    changes = {key: value for key, value in options.items() if value is not None} | parse_changes(set_ or [])
    if source is None:
        source = {"nano": "nano", "smollm2": "smollm2-32k"}.get(str(changes.get("model", "nano")))
    settings = load_recipe(source, changes)
    return load_recipe(source, {"lora": {}, **changes}) if lora and settings.lora is None else settings


def _one_source(data: list[str] | None) -> str | None:
    """The text that was given; several are refused, of which the last alone would be read."""
    if data and len(data) > 1:
        raise RecipeError(
            f"--data is given {len(data)} times ({', '.join(data)}), and a run reads one source: put the files, or links to them, "
            "into one folder, and give that"
        )
    return data[0] if data else None


def _without(words: list[str], *options: str) -> list[str]:
    """The command line without some options and their values, as ``--launch ddp`` or ``--launch=ddp``."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in options and not word.startswith(tuple(f"{o}=" for o in options)):
            kept.append(word)
        skip = not skip and word in options
    return kept


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

    from skipwise.fit.result import FILE, write_fit_page
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

"""Define the commands on a model to extend: extend, plan and fit."""

from pathlib import Path
from typing import Annotated, Any

import typer

from skipwise.cli import terminal
from skipwise.errors import RecipeError


def extend(
    context: typer.Context,
    model: terminal.StartingModel = None,
    target: terminal.TargetOrWindow = None,
    interpolation: terminal.Interpolation = None,
    data: Annotated[
        str | None, typer.Option(help="training text: file, folder, data set name, stdlib", metavar="TEXT")
    ] = None,
    out: Annotated[Path | None, terminal.path_option("run folder [runs/NAME]")] = None,
    recipe: terminal.RecipeName = None,
    method: terminal.MethodName = None,
    seed: Annotated[int | None, typer.Option(help="seed of examples and training")] = None,
    lora: terminal.Lora = False,
    set_: terminal.Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue a stopped run")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan; train nothing")] = False,
    launch: Annotated[str | None, typer.Option(help="several processes: ddp, fsdp, zero3 or zero3-offload")] = None,
    processes: Annotated[int | None, typer.Option(help="number of processes with --launch [one per GPU]")] = None,
) -> None:
    """Extend a model's context, measure it and its baselines, report."""
    if launch is None and processes is not None:
        raise RecipeError(f"--processes {processes} needs --launch; give it, or leave --processes out")
    from skipwise.data.text import require_source
    from skipwise.results.run_folder import RunFolder

    options = {"model": model, "target": target, "interpolation": interpolation, "method": method}
    source: Path | str | None = recipe
    if resume and out is not None and model is None and recipe is None and RunFolder(out).recipe.exists():
        source = RunFolder(out).recipe
    settings = _recipe(source, {**options, "data.source": data, "seed": seed}, set_, lora)
    require_source(settings.data.source)  # mistakes are met before torch is imported
    console = terminal.prepare_process()
    from skipwise.training.processes import choose_engine, launch as start, launched, processes_of

    if launch is not None:
        choose_engine(launch)
    if launch is not None and launched() == 1:
        processes = processes_of(launch, processes)
        if not dry_run:
            start(processes, context.obj)
            return
    from skipwise.extend import extend, rehearse

    if dry_run:
        rehearse(settings, out=out, resume=resume, console=console, launch=launch, processes=processes or 1)
    else:
        extend(settings, out=out, resume=resume, console=console)


def plan(
    model: terminal.StartingModel = None,
    target: terminal.TargetOrWindow = None,
    interpolation: terminal.Interpolation = None,
    gpus: Annotated[int, typer.Option(min=1, help="number of GPUs")] = 1,
    gpu_memory: Annotated[str, typer.Option(help="memory of each GPU, e.g. 80GB or 80GiB")] = "80GB",
    tflops: Annotated[float, typer.Option(min=1, help="bf16 TFLOP/s of each GPU (A100: 312, H100: 989)")] = 312.0,
    mfu: Annotated[float, typer.Option(min=0.01, max=1, help="share of the TFLOP/s that training reaches (MFU)")] = 0.4,
    recipe: terminal.RecipeName = None,
    method: terminal.MethodName = None,
    lora: terminal.Lora = False,
    set_: terminal.Changes = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="print the probability of training each distance")
    ] = False,
) -> None:
    """Estimate memory and time against full-length training."""
    from skipwise.progress import doing

    options = {"model": model, "target": target, "interpolation": interpolation, "method": method}
    settings = _recipe(recipe, options, set_, lora)
    with doing("starting", terminal.new_console()):  # torch and transformers take seconds
        console = terminal.prepare_process()
        from skipwise.evaluation.evaluate import print_planned
        from skipwise.training.plan import Hardware, compare_costs

    if coverage:
        _print_coverage(settings, console)
        return
    hardware = Hardware(gpus, terminal.read_gigabytes(gpu_memory), tflops * 1e12, mfu)
    compare_costs(settings, hardware, console)
    print_planned(settings, hardware.peak * hardware.mfu, hardware.memory, console)


def fit(
    model: terminal.Model,
    data: terminal.Text = "stdlib",
    target: terminal.Target = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="time of the search")] = 10.0,
    out: Annotated[Path | None, terminal.path_option("write a checkpoint too [runs/fit-NAME-TARGET, without]")] = None,
    seed: terminal.Seed = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of data, e.g. data.split=test")] = None,
) -> None:
    """Find the best interpolation of a model, without training."""
    console = terminal.prepare_process()
    text = terminal.read_settings(data, set_, "data.held_out").data
    from skipwise.fit.result import FILE, write_fit_page
    from skipwise.fit.search import fit as search, write_model
    from skipwise.report.page import rich_table

    found, folder = search(
        model, target=terminal.read_length(target), data=text, out=out, minutes=minutes, seed=seed, console=console
    )
    console.print(rich_table(found.table))
    console.print("*: recommended; to N: loss at that place, less the base's in its own windows; -: given up early")
    console.print("skips: harm by text up to the target away; answers: loss of a passkey's digits")
    console.print(found.verdict, style="bold", soft_wrap=True)
    lines = [found.caveats, f"settings: {found.best.extension.description}"]
    if found.plain is not found.best:
        worse = found.total(found.plain) - found.total(found.best)
        lines.append(f"Served by every engine: {found.plain.extension.description}, {worse:.2f} nats worse.")
    if out is not None:
        write_model(found, folder / "model")
        lines.append(f"model:  {folder / 'model'}")
    lines.append(f"report: {write_fit_page(found, folder)}, with the rope_parameters for config.json")
    lines.append(f"train:  skipwise extend {model} --target {found.target} --interpolation {folder / FILE} --data TEXT")
    console.print("\n".join(lines), soft_wrap=True)


def _print_coverage(recipe: Any, console: Any) -> None:
    """Print how likely one example of a recipe trains each relative distance."""
    from skipwise.method.coverage import coverage
    from skipwise.model.config import load_config
    from skipwise.model.extension import extension_of
    from skipwise.report.page import Table, rich_table
    from skipwise.training.prepare import window_of

    extension, rule = extension_of(load_config(recipe.model), recipe), recipe.positions
    original, target = window_of(recipe, extension), extension.target_length
    curve = coverage(original, target, rule.rules, scheme=rule.scheme)
    columns = [curve.probability, *([curve.standard_error] if curve.samples else [])]
    bends = {1, original // 2, original - 1, original, target - original, target - original + 1, target - 1}
    between = {target * k // 8 for k in range(1, 8)}
    distances = sorted(d for d in bends | between if 1 <= d < target)
    rows = [[f"{d:,}", *(f"{column[d - 1]:.4f}" for column in columns)] for d in distances]
    head = ["distance", "probability", "standard error"][: len(columns) + 1]
    console.print(rich_table(Table(f"coverage, {original:,} -> {target:,}, {rule.scheme}", "", head, rows)))


def _recipe(source: Path | str | None, options: dict[str, Any], set_: list[str] | None, lora: bool) -> Any:
    """Return the recipe, by default a packaged model's own, with the changes of the command line."""
    from skipwise.recipes.loading import load_recipe, parse_changes

    changes = {key: value for key, value in options.items() if value is not None} | parse_changes(set_ or [])
    if source is None:
        source = {"nano": "nano", "smollm2": "smollm2-32k"}.get(str(changes.get("model", "nano")))
    settings = load_recipe(source, changes)
    return load_recipe(source, {"lora": {}, **changes}) if lora and settings.lora is None else settings

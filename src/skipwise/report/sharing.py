"""Share a run: the model card, the upload to the model hub, the results in trackers.

The card is the ``README.md`` of an extended model. Its head is for the hub (https://huggingface.co/docs/hub/model-cards): the
base, its license, and the results. transformers' callbacks log the training to the trackers of ``training.report_to``; the
results come after it, and accelerate's trackers log them into the same run.
"""

import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCard, ModelCardData, try_to_load_from_cache
from rich.console import Console

from skipwise.errors import ModelError, RunError, reason
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.config import (
    GGUF_LLAMA,
    MANIFEST,
    by_frequency,
    extended_set,
    promised_length,
    read_seal,
    require_unchanged,
    resolve,
    write_seal,
)
from skipwise.model.extension import KEPT, Extension
from skipwise.recipes.names import display_name, model_name, public_name
from skipwise.recipes.schema import Recipe
from skipwise.report.numbers import TRACKED, ReportData
from skipwise.report.page import render, summary_markdown
from skipwise.report.rows import Folder, perplexity_by_step
from skipwise.results.files import replacing, short_digest, write_text
from skipwise.results.run_folder import RunFolder

HERE = "path/to/this/folder"  # the model, in commands of the card
_CARD = "README.md"


def write_run_card(run: RunFolder, measured: Folder, recipe: Recipe, extension: Extension) -> None:
    """Write the card of a run's model."""
    facts, original = run.read(), extension.rope.original_length
    best = {}
    if kept := facts.get("kept"):
        text = recipe.measured_sources[0]
        best["step"] = (
            f"{kept['step']:,} of {kept['of']:,}, chosen by the loss beyond {original:,} tokens on held-out {public_name(text)}"
        )
    name = public_name(recipe.model)
    about = {
        "method": f"{display_name(recipe.positions.scheme)}, trained on windows of {facts['model']['train_length']:,} tokens",
        "interpolation": f"{extension.description} x{extension.factor:g}",
        "text": f"{public_name(recipe.data.source)} (fingerprint {facts['data']['fingerprint'][:16]})",
        **best,
        "seed": str(recipe.seed),
        "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
    }
    title = f"{name}, extended from {original:,} to {extension.target_length:,} tokens"
    if extension.interpolation == KEPT:
        about["interpolation"] = "none; the RoPE is the base's"
        title = f"{name}, trained on short windows; its {original:,} tokens are kept"
    write_card(run.model, ReportData([measured]), title, about, recipe.model, run.figures / "perplexity.png")


def write_card(
    folder: Path, data: ReportData, title: str, facts: Mapping[str, str], base: str = "", figure: Path | None = None
) -> None:
    """Write the card into ``folder``, with a copy of the PNG ``figure``."""
    results = eval_results(data)
    head = ModelCardData(
        base_model=base if is_hub_name(base) and not Path(base).exists() else None,
        license=license_of(base) if base else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["long-context", "pose", "rope"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    if figure is not None and figure.exists():
        with replacing(folder / figure.name) as copy:
            copy.write(figure.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope, adapted = extended_set(config.get("rope_parameters") or {}), lora.base_of(str(folder))
    card = render(
        "card.md.j2",
        head=head.to_yaml().strip(),
        title=title,
        headline=data.judged[0].headline if data.judged else "The effective length was not measured",
        warning=" ".join(data.warnings),
        facts=facts,
        adapted=json.dumps(resolve(adapted)) if adapted else "",
        here=HERE,
        length=promised_length(str(folder)) or config["max_position_embeddings"],
        gguf=not by_frequency(rope) or config["model_type"] in GGUF_LLAMA,
        model_type=config["model_type"],
        table=summary_markdown(data),
        figure=figure.name if figure is not None and figure.exists() else "",
    )
    write_text(folder / _CARD, card)


def eval_results(data: ReportData) -> list[EvalResult]:
    """Return the results of the extended models for the hub."""
    task = "text-generation"
    return [
        EvalResult(task, dataset, name, metric, round(number.value.mean, 3), metric_name=metric_name)
        for number in data.numbers
        if number.hub and number.label in data.extended
        for dataset, name, metric, metric_name in [number.hub]
    ]


def is_hub_name(name: str) -> bool:
    """Return True for OWNER/NAME, which may be a model on the hub."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def license_of(base: str) -> str | None:
    """Return the license in a base's local or cached card, or None."""
    folder = Path(resolve(base))
    card = folder / _CARD if folder.is_dir() else Path(str(try_to_load_from_cache(base, _CARD)))
    try:
        named = ModelCard.load(card, ignore_metadata_errors=True).data.license if card.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):  # anybody's file
        return None
    return named if isinstance(named, str) else None


def publish(
    model: Path,
    name: str,
    console: Console,
    *,
    upload: bool = False,
    private: bool = False,
    base: str | None = None,
    license: str | None = None,
) -> None:
    """Show a model's files and card; with ``upload`` publish them as OWNER/NAME.

    ``base`` (a hub name) and ``license`` (an identifier of the hub) replace those of the card.
    """
    folder = Path(model_name(str(model)))
    if not (folder / "config.json").exists() or not (folder / _CARD).exists():
        raise ModelError(f"{folder} has no finished model; finish the run with --resume, or give another folder")
    require_unchanged(folder)
    with _with_hub_base(folder, base) as published:
        card = ModelCard.load(published / _CARD)
        card.text = card.text.replace(HERE, name)
        card.data.base_model = base or card.data.base_model
        card.data.license = license or card.data.license
        files = sorted(published.glob("[!.]*"))  # hidden files may have secrets
        for path in files:
            console.print(f"{path.stat().st_size:>16,}  {path.name}", markup=False, highlight=False)
        console.print(f"\n{card}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{MANIFEST} has the names of the base and of the training text.", style="yellow")
        if not upload:
            console.print(f"Nothing was published. To publish these files as {name}, add --upload.")
            return
        api = HfApi()
        try:
            url = api.create_repo(name, private=private or None, exist_ok=True)
            public = private and not api.repo_info(name).private
            if not public:
                operations = [CommitOperationAdd(path.name, path) for path in files if path.name != _CARD]
                operations.append(CommitOperationAdd(_CARD, str(card).encode()))
                api.create_commit(name, operations, commit_message="Upload by skipwise")
        except Exception as error:  # of the hub's HTTP client
            raise RunError(
                f"the hub refuses {name}: {' '.join(str(error).split())[:300]}. Log in with `hf auth login`, unset HF_HUB_OFFLINE "
                "and repeat the command"
            ) from error
        if public:
            raise RunError(f"{name} exists and is public. Make it private on the hub, or give another name")
        console.print(f"published: {url}")


@contextmanager
def _with_hub_base(folder: Path, base: str | None) -> Iterator[Path]:
    """Yield the folder, or a copy of a local-base adapter with ``base``."""
    present = lora.base_of(str(folder))
    if present is None or is_hub_name(present):
        yield folder
        return
    if base is None:
        raise RunError(f"{folder} is an adapter of {present}, which is not a name on the hub; give --base OWNER/NAME")
    with TemporaryDirectory() as place:
        copied = Path(shutil.copytree(folder, Path(place) / folder.name))
        lora.name_base(copied, base)
        text = (copied / _CARD).read_text(encoding="utf-8")
        text = re.sub(r'(?<=from_pretrained\()".*?"(?=, config=config\))', lambda _: json.dumps(base), text)
        (copied / _CARD).write_text(text, encoding="utf-8")
        facts = {key: value for key, value in read_seal(folder).items() if key != "files"}
        write_seal(copied, facts | {"base": base, "base_fingerprint": None})  # on the hub a commit is the fingerprint
        yield copied


@contextmanager
def one_run(run: RunFolder) -> Iterator[None]:
    """Let all trackers log into one run, also after a resume.

    The user's own environment variables take precedence.
    """
    folder, theirs = run.path.absolute(), dict(os.environ)
    ours = {
        "TENSORBOARD_LOGGING_DIR": str(folder / "events"),
        "WANDB_DIR": str(folder),
        "WANDB_PROJECT": "skipwise",
        "WANDB_RUN_ID": short_digest(f"{run.identity} {run.read().get('created')}".encode()),
        "WANDB_RESUME": "allow",
    }
    os.environ.update(ours | theirs)
    try:
        yield
    finally:
        for name in ours.keys() - theirs.keys():
            os.environ.pop(name, None)


def log_results(trackers: Sequence[str], run: RunFolder, measured: Folder, console: Console) -> None:
    """Log the results of a finished run to each known tracker, once."""
    logged = run.read().get("logged") or []
    for name in trackers:
        if name in logged or name not in ("tensorboard", "wandb", "trackio") or name not in LOGGER_TYPE_TO_CLASS:
            continue
        try:
            _log(name, run, measured)
        except Exception as error:  # network, account or files of a tracker; the run folder has all results
            text = f"{name}: results not logged ({type(error).__name__}: {reason(error)}); --resume logs them"
            console.print(text, style="yellow")
        else:
            logged = [*logged, name]
            run.record(logged=logged)


def _log(name: str, run: RunFolder, measured: Folder) -> None:
    PartialState()  # accelerate's trackers need it
    project, options = {
        "tensorboard": (".", {"logging_dir": os.environ["TENSORBOARD_LOGGING_DIR"]}),
        "wandb": (os.environ["WANDB_PROJECT"], {"name": run.path.name}),
        "trackio": ("skipwise", {"name": run.path.name, "resume": "allow"}),
    }[name]
    tracker = LOGGER_TYPE_TO_CLASS[name](project, **options)
    tracker.start()
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for (mode, window), curve in perplexity_by_step(measured).items():
        for step, value in curve.items():
            by_step[step][f"evaluation/perplexity {mode} {format_length(window)}"] = value.mean
    by_step[int((run.read().get("training") or {}).get("steps", 0))] |= scalars(ReportData([measured]))
    for step, values in sorted(by_step.items()):
        x = {} if name == "tensorboard" else {"train/global_step": step}  # transformers' x axis in wandb
        tracker.log(values | x, step=None if name == "wandb" else step)
    tracker.finish()


def scalars(data: ReportData) -> dict[str, float]:
    """Return the tracked numbers of each model, by their names in trackers."""
    return {
        f"results/{f'{data.ruler_name} ' if n.measure.group == 'ruler by task' else ''}{n.measure.short} "
        f"{format_length(n.length or 0)}/{n.label}": n.value.mean
        for n in data.numbers
        if n.measure.group in TRACKED
    }

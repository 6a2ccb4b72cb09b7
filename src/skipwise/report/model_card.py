"""Write the model card, the ``README.md`` of an extended model, with its results and how to load it; publish the model.

The card's head is for the model hub (https://huggingface.co/docs/hub/model-cards): the base, its license, and the results.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, try_to_load_from_cache
from rich.console import Console

from skipwise.errors import ModelError, RunError, reason
from skipwise.model import lora
from skipwise.model.config import (
    FACTORS_BY_FREQUENCY,
    MANIFEST,
    by_frequency,
    extended_set,
    promised_length,
    read_seal,
    require_unchanged,
    resolve,
    write_seal,
)
from skipwise.model.extension import Extension
from skipwise.recipes.names import arm_name, expanded, model_name
from skipwise.recipes.schema import Recipe
from skipwise.report.folder import Folder
from skipwise.report.numbers import ReportData, task_title
from skipwise.report.rows import other_text_warning
from skipwise.report.tables import plain, summary_markdown
from skipwise.results.files import replacing, write_text
from skipwise.results.run_folder import RunFolder

HERE = "path/to/this/folder"  # the model, in commands of the card
_SHORT_OF_MEMORY = (
    "To save memory pass `dtype=torch.bfloat16`. Do not cast the loaded model: that rounds the rotary frequencies."
)
_CARD = "README.md"
_LEFT_OUT = [".*", _CARD]  # hidden files may have secrets; the card is sent as it was shown


def write_run_card(run: RunFolder, measured: Folder, recipe: Recipe, extension: Extension) -> None:
    """Write the card of a run's model."""
    facts, original, data = run.read(), extension.rope.original_length, ReportData([measured])
    best = {}
    if kept := facts.get("kept"):
        best["step"] = (
            f"{kept['step']:,} of {kept['of']:,}, chosen by the loss beyond {original:,} tokens on held-out documents "
            f"of {recipe.measured_sources[0]}"
        )
    folder = Path(expanded(recipe.model))
    base = folder.absolute().name if folder.is_dir() else recipe.model  # without a local path
    write_card(
        run.model,
        title=f"{base}, extended from {original:,} to {extension.target_length:,} tokens",
        headline=data.judged[0].headline if data.judged else "The effective length was not measured",
        warning=other_text_warning(measured),
        facts={
            "method": f"{arm_name(recipe.arm)}, trained on windows of {facts['model']['train_length']:,} tokens",
            "interpolation": f"{extension.told} x{extension.factor:g}",
            "text": f"{recipe.data.source} (fingerprint {facts['data']['fingerprint'][:16]})",
            **best,
            "seed": str(recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        figure=run.figures / "perplexity.png",
        base=recipe.model,
        data=data,
    )


def write_card(
    folder: Path,
    *,
    title: str,
    headline: str,
    warning: str = "",
    facts: Mapping[str, str],
    figure: Path | None = None,
    base: str = "",
    data: ReportData | None = None,
) -> None:
    """Write the card into ``folder``, with a copy of the PNG ``figure``."""
    data = data or ReportData([])
    lines = ["---", _head(title, base, data), "---", "", f"# {plain(title)}", "", f"{headline}.", ""]
    lines += [plain(warning), ""] if warning else []
    lines += [f"- {name}: {plain(value)}" for name, value in facts.items()]
    lines += ["", *_ways_to_load(folder), "", "## Measured on held-out text", "", summary_markdown(data)]
    if figure is not None and figure.exists():
        with replacing(folder / figure.name) as copy:
            copy.write(figure.read_bytes())
        lines += ["", f"![Perplexity by window]({figure.name})"]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _head(title: str, base: str, data: ReportData) -> str:
    """Return the card's YAML, without a base that is local."""
    results = eval_results(data)
    head = ModelCardData(
        base_model=base if is_hub_name(base) and not Path(base).exists() else None,
        license=license_of(base),
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["long-context", "pose", "rope"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    return head.to_yaml().strip()


def eval_results(data: ReportData) -> list[EvalResult]:
    """Return the results of the extended models for the hub."""
    results = []
    for number in data.numbers:
        if number.measure.hub and number.label in data.extended:
            task = number.measure.short
            fields = {"text": number.text, "task": task, "title": task_title(task), "length": number.length}
            names = ("dataset_type", "dataset_name", "metric_type", "metric_name")
            about: dict[str, Any] = dict(
                zip(names, (part.format(**fields) for part in number.measure.hub), strict=True)
            )
            value = round(number.value.mean, 3)
            results.append(EvalResult(task_type="text-generation", metric_value=value, **about))
    return results


def is_hub_name(name: str) -> bool:
    """Return True for OWNER/NAME, which may be a model on the hub."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def license_of(base: str) -> str | None:
    """Return the license in a base's local card, or None."""
    folder = Path(resolve(base)) if base else None
    card = folder / "README.md" if folder and folder.is_dir() else None
    if card is None and is_hub_name(base):
        cached = try_to_load_from_cache(base, "README.md")
        card = Path(cached) if isinstance(cached, str) else None
    if card is None or not card.is_file():
        return None
    try:
        named = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, yaml.YAMLError):  # anybody's file
        return None
    return named if isinstance(named, str) and re.fullmatch(r"[\w.-]+", named) else None


def _ways_to_load(folder: Path) -> list[str]:
    """Return the lines on transformers, vLLM and llama.cpp."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    length = promised_length(str(folder)) or config["max_position_embeddings"]
    if base := lora.base_of(str(folder)):
        return [
            "This is an adapter. Its base needs this folder's `config.json`, which has the extended RoPE.\n",
            f"```python\n{_peft_code(resolve(base), HERE)}\n```\n",
            f"Ignore peft's warning on `rope_parameters`. {_SHORT_OF_MEMORY}\n",
            'Engines need it merged: `model.merge_and_unload().save_pretrained("merged")`, or `lora.save_as: merged` in the recipe.',
        ]
    return [
        "Stock transformers loads it; the interpolation is in `config.json`:\n",
        f"```python\n{_transformers_code(HERE)}\n```\n",
        f"{_SHORT_OF_MEMORY}\n",
        f"- vLLM: `vllm serve {HERE} --max-model-len {length}`",
        f"- llama.cpp: {llama_cpp(config, length, HERE)}",
    ]


def llama_cpp(config: dict[str, Any], length: int, path: str) -> str:
    """Return the commands for llama.cpp, or why it cannot serve the model."""
    rope = extended_set(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if by_frequency(rope) and config["model_type"] not in FACTORS_BY_FREQUENCY:
        return (
            f"cannot read this RoPE in {config['model_type']}. Extend with yarn without settings, ntk, theta or linear"
        )
    return (
        f"`skipwise export {path} --out model.gguf`, which checks the file in llama.cpp, then "
        f"`llama-server -m model.gguf -c {length}`"
    )


def _transformers_code(path: str) -> str:
    """Return Python code that loads a checkpoint."""
    return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""


def _peft_code(base: str, path: str) -> str:
    """Return Python code that loads an adapter with its base."""
    return f"""\
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

config = AutoConfig.from_pretrained({json.dumps(path)})  # has the extended RoPE
base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, config=config)
model = PeftModel.from_pretrained(base, {json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""


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

    Raises:
        ModelError: there is no finished model.
        RunError: a name is not OWNER/NAME, the card has no license, or the hub refuses.
    """
    folder = Path(model_name(str(model)))
    if not (folder / "config.json").exists() or not (folder / _CARD).exists():
        raise ModelError(f"{folder} has no finished model; finish the run with --resume, or give another folder")
    require_unchanged(folder)
    for given in filter(None, (name, base)):
        if not is_hub_name(given):
            raise RunError(f"{given!r} is not a name on the hub; give OWNER/NAME")
    with _with_hub_base(folder, base) as published:
        card = ModelCard.load(published / _CARD)
        card.text = card.text.replace(HERE, name)
        card.data.base_model = base or card.data.base_model
        card.data.license = license or card.data.license
        if not card.data.license:
            raise RunError(f"{folder / _CARD} has no license; give the base's, for example --license apache-2.0")
        files = [path for path in sorted(published.iterdir()) if path.is_file() and not path.name.startswith(".")]
        for path in files:
            console.print(f"{path.stat().st_size:>16,}  {path.name}", markup=False, highlight=False)
        console.print(f"\n{card}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{MANIFEST} has the names of the base and of the training text.", style="yellow")
        if not upload:
            console.print(f"Nothing was published. To publish these files as {name}, add --upload.")
            return
        api = HfApi()
        try:
            card.validate()  # by the hub, before a repository is made
            url = api.create_repo(name, private=private or None, exist_ok=True)
            public = private and not api.repo_info(name).private
            if not public:
                api.upload_folder(repo_id=name, folder_path=published, ignore_patterns=_LEFT_OUT)
                api.upload_file(repo_id=name, path_or_fileobj=str(card).encode(), path_in_repo=_CARD)
        except Exception as error:  # of the hub's HTTP client
            text = reason(ValueError(" ".join(str(error).split())))
            raise RunError(
                f"the hub refuses {name} ({type(error).__name__}: {text}); log in with `hf auth login`, unset "
                "HF_HUB_OFFLINE, check name, license and network, and run the command again"
            ) from error
        if public:
            raise RunError(f"{name} exists and is public; make it private on the hub, or give another name")
        console.print(f"published: {url}")


@contextmanager
def _with_hub_base(folder: Path, base: str | None) -> Iterator[Path]:
    """Yield the folder, or a copy of a local-base adapter with ``base``."""
    own = lora.base_of(str(folder))
    if own is None or is_hub_name(own):
        yield folder
        return
    if base is None:
        raise RunError(f"{folder} is an adapter of {own}, which is not a name on the hub; give --base OWNER/NAME")
    with TemporaryDirectory() as place:
        copied = Path(shutil.copytree(folder, Path(place) / folder.name))
        lora.name_base(copied, base)
        text = (copied / _CARD).read_text(encoding="utf-8")
        text = re.sub(r'(?<=from_pretrained\()".*?"(?=, config=config\))', lambda _: json.dumps(base), text)
        (copied / _CARD).write_text(text, encoding="utf-8")
        facts = {key: value for key, value in (read_seal(folder) or {}).items() if key != "files"}
        write_seal(copied, facts | {"base": base, "base_fingerprint": None})  # on the hub a commit is the fingerprint
        yield copied

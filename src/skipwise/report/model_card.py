"""The model card: the ``README.md`` beside an extended model, with what was measured and how each engine loads it.

Its head is what the model hub reads (https://huggingface.co/docs/hub/model-cards): the base, its license, and the results.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from skipwise.errors import printable
from skipwise.model import lora, serving
from skipwise.model.config import resolve
from skipwise.model.extension import Extension
from skipwise.model.origin import promised_length
from skipwise.recipes.names import arm_name, expanded
from skipwise.recipes.schema import Recipe
from skipwise.report.folder import Folder
from skipwise.report.price import price_warning
from skipwise.report.ruler_tables import ruler_name
from skipwise.report.shown import Shown
from skipwise.report.summary import Row
from skipwise.report.tables import plain, summary_markdown, task_title
from skipwise.results.files import replacing, write_text
from skipwise.results.run_folder import RunFolder

HERE = "path/to/this/folder"  # in the lines of a card, the model itself
_SHORT_OF_MEMORY = (
    "Where memory is short pass `dtype=torch.bfloat16`. Do not cast the loaded model, because that rounds the rotary "
    "frequencies."
)


def write_run_card(run: RunFolder, measured: Folder, recipe: Recipe, extension: Extension) -> None:
    """Write the card of a run's model from what was measured."""
    facts, original, shown = run.read(), extension.rope.original_length, Shown([measured])
    trained, text, best = facts["model"], facts["data"], {}
    margin = (
        f", for {extension.reach:,} tokens: a margin of {extension.margin:g} of the target" if extension.margin else ""
    )
    if kept := facts.get("kept"):
        chosen_on = recipe.measured_sources[0]
        best["step"] = (
            f"{kept['step']:,} of {kept['of']:,}, chosen by the loss beyond {original:,} tokens on held-out documents "
            f"of {chosen_on}"
        )
    write_card(
        run.model,
        title=f"{_base_name(recipe.model)}, extended from {original:,} to {extension.target_length:,} tokens",
        headline=shown.judged[0].headline if shown.judged else "How far it reads was not measured",
        warning=price_warning(measured),
        facts={
            "method": f"{arm_name(recipe.arm)}, trained on windows of {trained['train_length']:,} tokens",
            "interpolation": f"{extension.told} x{extension.factor:g}{margin}",
            "text": f"{recipe.data.source} (fingerprint {text['fingerprint'][:16]})",
            **best,
            "seed": str(recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        table=summary_markdown(measured),
        longppl=[one.sentence for one in shown.longppl],
        figure=run.figures / "perplexity.png",
        base=recipe.model,
        rows=shown.rows,
    )


def _base_name(model: str) -> str:
    """The name of a base in the title, which may be published: of a folder not the path to it."""
    folder = Path(expanded(model))
    return folder.absolute().name if folder.is_dir() else model


def write_card(
    folder: Path,
    *,
    title: str,
    headline: str,
    warning: str = "",
    facts: Mapping[str, str],
    table: str,
    longppl: Sequence[str] = (),
    figure: Path | None,
    base: str = "",
    rows: Sequence[Row] = (),
) -> None:
    """Write the card into the model's ``folder``: headline, warning if there is one, facts, table (Markdown), a sentence on
    LongPPL for each text of which it was measured, and a copy of the figure (PNG); in its head the name and the license of
    the ``base``, and the results of the extended model's ``rows``."""
    lines = ["---", _head(printable(title), base, rows), "---", "", f"# {plain(title)}", "", f"{headline}.", ""]
    lines += [plain(warning), ""] if warning else []
    lines += [f"- {name}: {plain(value)}" for name, value in facts.items()]
    lines += ["", *_ways_to_load(folder), "", "## Measured on held-out text", "", table]
    for sentence in longppl:
        lines += ["", plain(sentence)]
    if figure is not None and figure.exists():
        with replacing(folder / figure.name) as copy:
            copy.write(figure.read_bytes())
        lines += ["", f"![Perplexity by window]({figure.name})"]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _head(title: str, base: str, rows: Sequence[Row]) -> str:
    """What the hub reads of the card, as YAML; a base that has no name on the hub is not named."""
    results = [result for row in rows if row.judged for result in _results(row)]
    data = ModelCardData(
        base_model=base if is_hub_name(base) and not Path(base).exists() else None,
        license=license_of(base),
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["long-context", "pose", "rope"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _results(row: Row) -> list[EvalResult]:
    """Perplexity by window, and the share of prompts answered by task and length."""
    text = printable(row.data)
    results = [
        _result(
            text, f"{text}, held out", "perplexity", f"perplexity, sliding windows of {window:,} tokens", measured.mean
        )
        for window, measured in row.perplexity.items()
    ]
    results += [
        _result(
            f"skipwise/{task}", task_title(task), "accuracy", f"share found, prompts of {n:,} tokens", right / asked
        )
        for task, lengths in row.found.items()
        for n, (right, asked) in lengths.items()
    ]
    if row.ruler:
        name = ruler_name([row.ruler])
        results += [
            _result(
                f"skipwise/ruler-{task}", f"{name}, {task}", "accuracy", f"mean score, prompts of {n:,} tokens", score
            )
            for task, n, score in row.ruler.means
        ]
    return results


def _result(dataset: str, title: str, metric: str, name: str, value: float) -> EvalResult:
    return EvalResult(
        task_type="text-generation",
        dataset_type=dataset,
        dataset_name=title,
        metric_type=metric,
        metric_name=name,
        metric_value=round(value, 3),
    )


def is_hub_name(name: str) -> bool:
    """Return whether a name could be that of a model on the hub, OWNER/NAME."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def license_of(base: str) -> str | None:
    """Return the license that the card of a base names, where that is on this machine; None if it is not known."""
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
    """The lines on transformers, vLLM and llama.cpp."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path, length = HERE, promised_length(str(folder)) or config["max_position_embeddings"]
    if base := lora.base_of(str(folder)):
        return [
            "This is an adapter. It is right only on a base that has this folder's `config.json`, which holds the "
            "extended RoPE.",
            "",
            "```python",
            serving.peft(resolve(base), path),
            "```",
            "",
            "peft warns that it does not know `rope_parameters`: they stand there as a reminder. " + _SHORT_OF_MEMORY,
            "",
            'Engines that serve it need it merged: `model.merge_and_unload().save_pretrained("merged")`, which is '
            "what `lora.saved: merged` would have saved.",
        ]
    return [
        "Stock transformers loads it; the interpolation is in `config.json`:",
        "",
        "```python",
        serving.transformers(path),
        "```",
        "",
        _SHORT_OF_MEMORY,
        "",
        f"- vLLM: {serving.vllm(length, path)}",
        f"- llama.cpp: {serving.llama_cpp(config, length, path)}",
    ]

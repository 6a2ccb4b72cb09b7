"""The model card: the ``README.md`` beside an extended model, with what was measured and how each engine loads it."""

import json
from collections.abc import Mapping
from pathlib import Path

from skipwise.model import lora, serving
from skipwise.model.loading import resolve
from skipwise.model.origin import promised_length
from skipwise.report.tables import plain
from skipwise.results.files import replacing, write_text

_SHORT_OF_MEMORY = (
    "Where memory is short pass `dtype=torch.bfloat16`. Do not cast the loaded model, because that rounds the rotary "
    "frequencies."
)


def write_card(
    folder: Path,
    *,
    title: str,
    headline: str,
    warning: str = "",
    facts: Mapping[str, str],
    table: str,
    figure: Path | None,
) -> None:
    """Write the card into the model's ``folder``: headline, warning if there is one, facts, table (Markdown), and a copy of
    the figure (PNG)."""
    lines = ["---", "library_name: transformers", "tags: [long-context, pose, rope]", "---", ""]
    lines += [f"# {plain(title)}", "", f"{headline}.", ""]
    lines += [plain(warning), ""] if warning else []
    lines += [f"- {name}: {plain(value)}" for name, value in facts.items()]
    lines += ["", *_ways_to_load(folder), "", "## Measured on held-out text", "", table]
    if figure is not None and figure.exists():
        with replacing(folder / figure.name) as copy:
            copy.write(figure.read_bytes())
        lines += ["", f"![Perplexity by window]({figure.name})"]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _ways_to_load(folder: Path) -> list[str]:
    """The lines on transformers, vLLM and llama.cpp."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path, length = "path/to/this/folder", promised_length(str(folder)) or config["max_position_embeddings"]
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

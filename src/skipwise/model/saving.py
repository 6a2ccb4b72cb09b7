"""The extended checkpoint: stock files that load anywhere, checked by loading them."""

import html
import json
import os
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.errors import ModelError, RunError
from skipwise.model.loading import Extension, load_model


def save_extended(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, extension: Extension, folder: Path
) -> None:
    """Write safetensors, config and tokenizer, check them by a stock reload, then move them to ``folder``.

    A folder of that name therefore is always whole: a kill leaves only a temporary one beside it.

    Raises:
        ModelError: the reloaded model gives other logits at positions beyond the original length.
    """
    temporary = folder.with_name(folder.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.model_max_length = extension.target_length
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    difference = reload_difference(model, temporary, extension)
    if difference > 1e-5:
        raise ModelError(
            f"the saved checkpoint gives logits {difference:g} away from the model's at positions beyond "
            f"{extension.rope.original_length:,}; it was left in {temporary} and is not to be used"
        )
    os.replace(temporary, folder)


def require_whole(folder: Path) -> None:
    """Require a saved model to have every file that its config and index name.

    Raises:
        RunError: something was taken away since it was saved.
    """
    index = folder / "model.safetensors.index.json"
    names = {
        "config.json",
        "tokenizer.json" if (folder / "tokenizer.json").exists() else "tokenizer_config.json",
    }
    names |= (
        set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    )
    if lost := sorted(name for name in names if not (folder / name).exists()):
        raise RunError(
            f"{folder} has lost {', '.join(lost)}: delete the folder, and --resume saves the model again from the "
            "last checkpoint"
        )


@torch.no_grad()
def reload_difference(model: PreTrainedModel, folder: Path, extension: Extension) -> float:
    """Largest absolute difference of logits, model against reload, at the last positions of the target."""
    reloaded = load_model(str(folder), dtype=model.dtype, device=model.device)
    tokens = min(64, extension.target_length)
    ids = (torch.arange(tokens, device=model.device) * 7 + 3) % model.config.vocab_size
    batch = {
        "input_ids": ids[None],
        "position_ids": torch.arange(
            extension.target_length - tokens, extension.target_length, device=model.device
        )[None],
        "attention_mask": torch.ones(1, tokens, dtype=torch.long, device=model.device),
    }
    was_training = model.training
    ours, theirs = model.eval()(**batch).logits, reloaded.eval()(**batch).logits
    model.train(was_training)
    return (ours - theirs).abs().max().item()


def write_card(folder: Path, *, title: str, facts: dict[str, str], table: str, figure: Path | None) -> None:
    """Write the model card, ``README.md``, with the results' table and, beside it, their figure."""
    lines = [
        "---",
        "library_name: transformers",
        "tags: [long-context, pose, rope]",
        "---",
        "",
        f"# {html.escape(title, quote=False)}",
        "",
    ]
    lines += [f"- {name}: {html.escape(value, quote=False)}" for name, value in facts.items()]
    lines += [
        "",
        "Stock transformers loads it; the interpolation is in `config.json`:",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        "```",
        "",
        "Load it with `dtype=torch.bfloat16` where memory is short; do not cast the loaded model, which would "
        "round the rotary frequencies.",
        "",
        "## Measured on held-out text",
        "",
        table,
    ]
    if figure is not None and figure.exists():
        shutil.copyfile(figure, folder / figure.name)
        lines += ["", f"![Perplexity by window]({figure.name})"]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

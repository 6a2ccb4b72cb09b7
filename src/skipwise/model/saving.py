"""The extended checkpoint: stock files that load anywhere, checked by loading them."""

import html
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.errors import ModelError, RunError
from skipwise.model import lora, serving
from skipwise.model.loading import load_model, resolve
from skipwise.model.rope import Extension


def save_extended(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extension: Extension,
    folder: Path,
    *,
    adapter_of: str | None = None,
) -> None:
    """Write safetensors, config and tokenizer, check them by a stock reload, then move them to ``folder``.

    A folder of that name therefore is always whole: a kill leaves only a temporary one beside it.

    Args:
        model: the extended model.
        tokenizer: its own.
        extension: what was asked for.
        folder: where to.
        adapter_of: the base of a model whose adapter alone is to be written.

    Raises:
        ModelError: the reloaded model gives other logits at positions beyond the original length.
    """
    temporary = folder.with_name(folder.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.model_max_length = extension.target_length
    if adapter_of:
        lora.save_adapter(model, temporary, adapter_of)
    else:
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
    if lora.base_of(str(folder)):
        names.add("adapter_model.safetensors")
    else:
        shards = json.loads(index.read_text())["weight_map"].values() if index.exists() else ()
        names |= set(shards) or {"model.safetensors"}
    if lost := sorted(name for name in names if not (folder / name).exists()):
        raise RunError(
            f"{folder} has lost {', '.join(lost)}: delete the folder, and --resume saves the model again from what "
            "training left in checkpoints/"
        )


@torch.no_grad()
def reload_difference(model: PreTrainedModel, folder: Path, extension: Extension) -> float:
    """Largest absolute difference of logits, model against reload, at the last positions of the target."""
    dtype = _held_in(model)
    reloaded = load_model(
        str(folder),
        dtype=dtype,
        device=model.device,
        four_bits=getattr(model, "is_loaded_in_4bit", False),
        merge=False,
    )
    tokens = min(64, extension.target_length)
    ids = (torch.arange(tokens, device=model.device) * 7 + 3) % model.config.vocab_size
    batch = {
        "input_ids": ids[None],
        "position_ids": torch.arange(
            extension.target_length - tokens, extension.target_length, device=model.device
        )[None],
        "attention_mask": torch.ones(1, tokens, dtype=torch.long, device=model.device),
        "use_cache": False,
    }
    was_training = model.training
    with torch.autocast(model.device.type, dtype) if dtype != torch.float32 else nullcontext():
        ours, theirs = model.eval()(**batch).logits, reloaded.eval()(**batch).logits
    model.train(was_training)
    return (ours - theirs).abs().max().item()


def _held_in(model: PreTrainedModel) -> torch.dtype:
    """The type of the weights; where a part is trained, as with LoRA, of those that are not."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    frozen = [weight for weight in weights if not weight.requires_grad]
    return (frozen or weights)[0].dtype


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
    lines += ["", *_ways_to_load(folder), "", "## Measured on held-out text", "", table]
    if figure is not None and figure.exists():
        shutil.copyfile(figure, folder / figure.name)
        lines += ["", f"![Perplexity by window]({figure.name})"]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _ways_to_load(folder: Path) -> list[str]:
    """The model card's lines on transformers, vLLM and llama.cpp."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = "path/to/this/folder"
    short_of_memory = (
        "Where memory is short pass `dtype=torch.bfloat16`; do not cast the loaded model, which would round the rotary "
        "frequencies."
    )
    if base := lora.base_of(str(folder)):
        return [
            "This is an adapter: it is right only on a base that has this folder's `config.json`, where the extended "
            "RoPE is.",
            "",
            "```python",
            serving.peft(resolve(base), path),
            "```",
            "",
            "peft warns that it does not know `rope_parameters`: they are there to remind of this. "
            + short_of_memory,
            "",
            'Engines that serve it want it merged: `model.merge_and_unload().save_pretrained("merged")`, which is '
            "what `lora.saved: merged` would have saved.",
        ]
    return [
        "Stock transformers loads it; the interpolation is in `config.json`:",
        "",
        "```python",
        serving.transformers(path),
        "```",
        "",
        short_of_memory,
        "",
        f"- vLLM: {serving.vllm(config, path)}",
        f"- llama.cpp: {serving.llama_cpp(config, path)}",
    ]

"""Write a checkpoint as the same network in a stock class, shard by shard: ``skipwise convert``."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from skipwise.errors import ModelError, out_of_room, reason
from skipwise.model.families import Conversion, plan_conversion
from skipwise.model.legacy_config import write_legacy_keys
from skipwise.model.sealed import write_seal
from skipwise.model.stock_tokenizer import require_readable, write_stock_tokenizer
from skipwise.results.files import new_folder, require_free

_SHARD_BYTES = 2**30  # of a shard that has more than one tensor
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt")
_BESIDE = (
    *_TOKENIZER,
    *(
        "added_tokens.json",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
    ),
)


def convert(
    checkpoint: str, out: Path, *, original_length: int | str | None = None, console: Console | None = None
) -> Path:
    """Write ``checkpoint`` to ``out`` as a checkpoint of a stock class with the same logits, and return ``out``.

    ``checkpoint`` is a folder or a name on the model hub, with safetensors or ``.bin`` weights. Memory holds one tensor of
    the source and one shard of the result at a time. ``original_length`` is L_o of a checkpoint of PoSE's authors, if its
    config does not give the true one.
    """
    console = console or Console(quiet=True)
    require_free(out)
    folder = _folder(checkpoint)
    plan = _plan(folder / "config.json", original_length)
    remote_tokenizer = _has_remote_tokenizer(folder)
    if remote_tokenizer:
        require_readable(folder)
    for line in (f"{plan.source} -> {type(plan.config).__name__.removesuffix('Config')}", *plan.notes):
        console.print(line, soft_wrap=True)
    try:
        with new_folder(out) as partial:
            _write_weights(plan, _shards(folder), partial, console)
            plan.config.save_pretrained(partial)
            write_legacy_keys(partial)
            _require_every_weight(partial)
            for beside in filter(Path.exists, (folder / name for name in _BESIDE)):
                shutil.copyfile(beside, partial / beside.name)
            if remote_tokenizer:
                write_stock_tokenizer(partial)
            write_seal(partial, {"converted_from": checkpoint})
    except SafetensorError as error:
        if (code := out_of_room(error)) is None:
            raise
        raise OSError(code, os.strerror(code), str(out)) from error
    return out


def _plan(path: Path, original_length: int | str | None) -> Conversion:
    config = _read_json(path)
    try:
        return plan_conversion(config, original_length)
    except KeyError as error:
        raise ModelError(f"{path} lacks {error}; fetch it again") from error
    except (TypeError, ValueError, ArithmeticError, StrictDataclassError) as error:
        raise ModelError(f"{path} has an impossible value ({error}); correct it or fetch it again") from error


def _folder(checkpoint: str) -> Path:
    """Return the checkpoint's folder; of a model on the hub, download only the files that are read here."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    try:
        wanted = ["config.json", *_BESIDE, "*.safetensors", "*.index.json", "pytorch_model*.bin"]
        return Path(snapshot_download(checkpoint, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"checkpoint {checkpoint!r} is neither a folder here nor reachable on the model hub; download it and "
            "give its folder"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}; give the folder of a checkpoint") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); fetch it again") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path} does not hold a JSON object; fetch it again")
    return read


def _shards(folder: Path) -> list[Path]:
    """Return the weight files that the index names; safetensors if the checkpoint has both kinds."""
    for index in _INDEXES:
        if (folder / index).exists():
            files = _read_json(folder / index).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
                raise ModelError(f"{folder / index} does not say which file holds which weights; fetch it again")
            names = sorted(set(files.values()))
            if outside := [name for name in names if Path(name).name != name]:
                raise ModelError(f"{folder / index} names a file outside its folder, {outside[0]!r}; fetch it again")
            if missing := [name for name in names if not (folder / name).exists()]:
                lost = f"{len(missing)} of its {len(names)} weight files: {missing[0]}"
                raise ModelError(f"{folder} lacks {lost}; fetch it again")
            return [folder / name for name in names]
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).exists():
            return [folder / single]
    raise ModelError(
        f"{folder} has neither model.safetensors nor pytorch_model.bin, nor an index of several; fetch it again"
    )


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor as it is read; no code of a pickle is run (``weights_only``)."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dictionary)
                    yield name, file.get_tensor(name)
        else:
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
    except UnpicklingError as error:
        raise ModelError(
            f"{path} is a pickle of more than weights, or of torch before 1.6, and is not executed; get the "
            "checkpoint as safetensors"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as weights ({reason(error)}); fetch it again") from error


def _write_weights(plan: Conversion, shards: list[Path], folder: Path, console: Console) -> None:
    """Write converted shards and their index, and set the config's dtype and vocabulary size to those of the weights."""
    held: dict[str, torch.Tensor] = {}
    files: list[list[str]] = []
    total = held_bytes = 0

    def flush() -> None:
        nonlocal held_bytes
        save_file(held, folder / f"{len(files)}.safetensors", metadata={"format": "pt"})
        files.append(list(held))
        held.clear()
        held_bytes = 0

    for number, shard in enumerate(shards, start=1):
        console.print(f"{number} of {len(shards)}: {shard.name}", soft_wrap=True)
        for name, tensor in _tensors(shard):
            for new, value in plan.tensors(name, tensor):
                if not torch.isfinite(value).all():
                    raise ModelError(f"{shard.name}: {name} holds NaN or infinity; fetch the checkpoint again")
                if held and held_bytes + value.nbytes > _SHARD_BYTES:
                    flush()
                held[new] = value.contiguous()
                held_bytes += value.nbytes
                total += value.nbytes
                if new == "model.embed_tokens.weight":
                    plan.config.dtype = value.dtype
                    plan.config.vocab_size = len(value)  # the config may not count an added pad token
    flush()
    _name_shards(folder, files, total)


def _name_shards(folder: Path, files: list[list[str]], total: int) -> None:
    """Rename the shards as transformers expects; the names contain their number, which is known only now."""
    if len(files) == 1:
        os.replace(folder / "0.safetensors", folder / "model.safetensors")
        return
    where: dict[str, str] = {}
    for number, names in enumerate(files):
        final = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        os.replace(folder / f"{number}.safetensors", folder / final)
        where |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / _INDEXES[0]).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _require_every_weight(folder: Path) -> None:
    """Require the written names and shapes to be those of the stock class."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    written: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            written |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for name in sorted((wanted.keys() | written.keys()) - tied):
        if wanted.get(name) != written.get(name):
            raise ModelError(
                f"{name} has shape {written.get(name)} in the converted checkpoint and {wanted.get(name)} in its class; "
                "the checkpoint is incomplete, or its config belongs to another network"
            )


def _has_remote_tokenizer(folder: Path) -> bool:
    """Return whether the tokenizer's class is remote code and only its SentencePiece model can be read."""
    path = folder / "tokenizer_config.json"
    if not path.exists() or "auto_map" not in _read_json(path) or (folder / "tokenizer.json").exists():
        return False
    if not (folder / "tokenizer.model").exists():
        raise ModelError(
            f"{folder} has a tokenizer whose class is remote code, and neither tokenizer.model nor tokenizer.json; fetch it "
            "again, or put a stock tokenizer there"
        )
    return True

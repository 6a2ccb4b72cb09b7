"""A model's fingerprint: a hash of every byte that decides its outputs."""

import hashlib
import json
import os
from pathlib import Path

from skipwise.errors import ModelError
from skipwise.model import lora
from skipwise.model.config import load_config, resolve
from skipwise.model.sealed import read_seal
from skipwise.results.files import file_digest

_PARTS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")  # weights, configs, tokenizer


def weights_fingerprint(name: str) -> str:
    """Return a hash of a model in hex.

    Of a folder: weights, configs, tokenizer and the base of an adapter. Files in its manifest count by their SHA-256 there,
    which is checked where the model is opened. Of a model on the hub: its commit.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        if commit := getattr(load_config(name), "_commit_hash", None):
            return str(commit)
        raise ModelError(f"model {name!r} has no commit hash; download it and give its folder")
    known = (read_seal(folder) or {}).get("files", {})
    digest = hashlib.sha256()
    for path in sorted({*(path for part in _PARTS for path in folder.glob(part)), *_shards(folder)}):
        if path.is_file():
            file = os.path.relpath(path, folder)
            digest.update(f"{file} {known[file]['digest'] if file in known else file_digest(path)}\n".encode())
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()


def _shards(folder: Path) -> set[Path]:
    """Return the weight files in an index, which may be in folders below."""
    found: set[Path] = set()
    for index in folder.glob("*.index.json"):
        try:
            found |= {folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (ValueError, KeyError) as error:
            raise ModelError(f"{index} is damaged ({error}); copy the model again") from error
    return found

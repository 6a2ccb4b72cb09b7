"""A model's fingerprint: a hash of every byte that decides its outputs."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from skipwise.errors import ModelError
from skipwise.model import lora
from skipwise.model.config import load_config, resolve
from skipwise.results.files import file_digest

_PARTS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")  # weights, configs, tokenizer


def weights_fingerprint(name: str) -> str:
    """Return a hash of a model in hex: the commit of a model on the hub, or all bytes of a folder's files.

    The hash covers weights, configs and tokenizer, and the base of an adapter. Digests of files are remembered in this
    process and in the user's cache folder, so that a large model is read once.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        if commit := getattr(load_config(name), "_commit_hash", None):
            return str(commit)
        raise ModelError(f"model {name!r} has no commit hash; download it and give its folder")
    digest = hashlib.sha256()
    for path in sorted({*(path for part in _PARTS for path in folder.glob(part)), *_shards(folder)}):
        if path.is_file():
            digest.update(f"{os.path.relpath(path, folder)} {file_digest(path)}\n".encode())
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()


def _shards(folder: Path) -> set[Path]:
    """The files of weights that an index names, which may lie in folders below."""
    named: set[Path] = set()
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # loading says it
            named |= {folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    return named

"""A model's fingerprint: a hash of every byte that decides its outputs."""

import hashlib
from pathlib import Path

from skipwise.errors import ModelError
from skipwise.model import lora
from skipwise.model.loading import load_config, resolve
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
    for path in sorted({path for part in _PARTS for path in folder.glob(part) if path.is_file()}):
        digest.update(f"{path.name} {file_digest(path)}\n".encode())
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()

"""A model's fingerprint: a hash of every byte that decides its outputs."""

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from skipwise.errors import ModelError
from skipwise.model import lora
from skipwise.model.loading import load_config, resolve
from skipwise.recipes.schema import default_cache

_PARTS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")  # weights, configs, tokenizer
_BLOCK = 2**23  # bytes that one thread hashes at a time
_SETTLED = 2.0  # seconds; a file changed later than this may change again within the same time stamp
_REMEMBERED = 1000  # files
_CACHE = "weights.json"

_known: dict[str, str] = {}  # file and its time stamps -> SHA-256


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
        digest.update(f"{path.name} {_file_digest(path)}\n".encode())
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    """Return a file's hash, from memory or the cache if its size, time stamps and inode are unchanged."""
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"
    if key not in _known:
        _known.update(_read_cache())
    if key in _known:
        return _known[key]
    begun = time.time()
    with ThreadPoolExecutor() as pool:
        blocks = pool.map(lambda start: _block_digest(path, start), range(0, stat.st_size, _BLOCK))
        digest = hashlib.sha256(b"".join(blocks)).hexdigest()
    if begun - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
        _known[key] = digest
        if stat.st_size > _BLOCK:  # small files are read again faster than they are looked up
            _write_cache(_read_cache() | {key: digest})
    return digest


def _block_digest(path: Path, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(_BLOCK)).digest()


def _read_cache() -> dict[str, str]:
    try:
        read = json.loads((default_cache() / _CACHE).read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in read.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_cache(digests: dict[str, str]) -> None:
    """Write the newest digests. Without a writable cache folder, the next process hashes the files again."""
    path = default_cache() / _CACHE
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        newest = dict(list(digests.items())[-_REMEMBERED:])
        temporary.write_text(json.dumps(newest, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)

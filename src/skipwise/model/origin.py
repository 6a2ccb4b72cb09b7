"""``skipwise.json`` of a saved model: its manifest, its base and its training text; and fingerprints of models.

A model that was cut off in a copy, or edited, still loads; the manifest (size and SHA-256 of every file) shows it. Other
software ignores the file.
"""

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skipwise.errors import ModelError
from skipwise.model import lora
from skipwise.model.config import load_config, reach_of, resolve
from skipwise.recipes.schema import Data
from skipwise.results.files import file_digest, read_json, require_sealed, seal, write_json

FILE = "skipwise.json"
_WRITTEN_LATER = {FILE, "README.md", "perplexity.png"}  # every report writes the model card again
_PARTS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")  # weights, configs, tokenizer


def write_seal(folder: Path, about: dict[str, Any]) -> None:
    """Write ``about`` and the manifest of all files in ``folder``."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    write_json(folder / FILE, about | {"files": seal(folder, [name for name in names if name not in _WRITTEN_LATER])})


def read_seal(folder: Path) -> dict[str, Any] | None:
    """Read ``skipwise.json``; None without the file.

    Raises:
        ModelError: the file is damaged.
    """
    if not (folder / FILE).exists():
        return None
    try:
        return read_json(folder / FILE)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{folder / FILE} is damaged ({error}). Copy the model again") from error


def require_unchanged(folder: Path, fix: str = "") -> None:
    """Check the files of a model against its manifest, if it has one.

    Raises:
        ModelError: the manifest is damaged.
        RunError: a file is missing or changed; the message ends in ``fix``.
    """
    changed = f"copy the model again; to change it on purpose, copy {folder} without {FILE}"
    require_sealed(folder, (read_seal(folder) or {}).get("files", {}), fix or changed)


@dataclass(frozen=True)
class Origin:
    """Base and training text of a model."""

    base: str  # a folder, or a name on the model hub
    original_length: int  # tokens
    text: Data  # training text
    # TokenStore.digests of the training documents; uint64 [n]
    documents: np.ndarray = field(default_factory=lambda: np.empty(0, dtype="<u8"))
    base_fingerprint: str | None = None  # weights_fingerprint
    target_length: int | None = None  # tokens; None: as in the config
    rope_theta: float | None = None  # of the base before any interpolation; None: as in the config

    def write(self, folder: Path) -> None:
        """Write ``skipwise.json`` with the manifest."""
        about = {
            "base": self.base,
            "base_fingerprint": self.base_fingerprint,
            "original_length": self.original_length,
            "target_length": self.target_length,
            "rope_theta": self.rope_theta,
            "data": self.text.model_dump(exclude={"cache"}),
            "documents": base64.b64encode(np.sort(self.documents).astype("<u8").tobytes()).decode(),
        }
        write_seal(folder, about)


def read_origin(name: str) -> Origin | None:
    """Read the origin of a model; None if Skipwise did not train it.

    Raises:
        ModelError: the file is damaged.
    """
    about = read_seal(Path(resolve(name)).resolve())
    if about is None or "converted_from" in about:
        return None
    return Origin(
        base=about["base"],
        original_length=about["original_length"],
        text=Data(**about["data"]),
        documents=np.frombuffer(base64.b64decode(about["documents"]), dtype="<u8"),
        base_fingerprint=about["base_fingerprint"],
        target_length=about["target_length"],
        rope_theta=about["rope_theta"],
    )


def promised_length(name: str, original: int | None = None) -> int | None:
    """Return the tokens that a model is made to read: its target length, or the window of its config.

    Qwen's instructions add YaRN to a config and leave ``max_position_embeddings``: then it is the scaled length. A linear
    scaling is read this way only with ``original`` (tokens).
    """
    origin = read_origin(name)
    if origin and origin.target_length:
        return origin.target_length
    config = load_config(name).get_text_config()
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if kind == "yarn" or (kind == "linear" and original):
        return reach_of(config, original)
    return getattr(config, "max_position_embeddings", None)


def weights_fingerprint(name: str) -> str:
    """Return a hash of every byte that decides a model's outputs.

    For a folder: weights, configs, tokenizer and an adapter's base; files of its manifest count by their SHA-256 there. For a
    model on the hub: its commit.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        if commit := getattr(load_config(name), "_commit_hash", None):
            return str(commit)
        raise ModelError(f"model {name!r} has no commit hash. Download it and give its folder")
    known = (read_seal(folder) or {}).get("files", {})
    digest = hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in folder.glob(part)):
        digest.update(
            f"{path.name} {known[path.name]['digest'] if path.name in known else file_digest(path)}\n".encode()
        )
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()

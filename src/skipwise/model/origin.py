"""``skipwise.json``: what a saved model was made from. It lies beside the weights and is copied with them.

An adapter or a model that ``skipwise extend`` saved has one; every engine passes over it.
"""

import base64
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from skipwise.model.config import load_config, resolve
from skipwise.model.rope import reach_of
from skipwise.model.sealed import damaged, read_seal, write_seal
from skipwise.recipes.schema import Data


@dataclass(frozen=True)
class Origin:
    """What a model was made from."""

    base: str  # a folder, or a name on the model hub
    original_length: int  # tokens
    text: Data  # that it was trained on
    # TokenStore.digests of those trained on; uint64 [n]
    documents: np.ndarray = field(default_factory=lambda: np.empty(0, dtype="<u8"))
    base_fingerprint: str | None = None  # skipwise.model.fingerprint; None: not known
    target_length: int | None = None  # tokens; None: what its config says
    rope_theta: float | None = None  # of the base, before any interpolation; None: what its config says

    def write(self, folder: Path) -> None:
        """Write it into a model's folder, which this seals."""
        about = {
            "base": self.base,
            "base_fingerprint": self.base_fingerprint,
            "original_length": self.original_length,
            "target_length": self.target_length,
            "rope_theta": self.rope_theta,
            "data": self.text.model_dump(exclude={"cache", "workers"}),
            "documents": base64.b64encode(np.sort(self.documents).astype("<u8").tobytes()).decode(),
        }
        write_seal(folder, about)


def read_origin(name: str) -> Origin | None:
    """Read what a model was made from; None for a model that Skipwise did not make.

    Raises:
        ModelError: the file is damaged.
    """
    folder = Path(resolve(name)).resolve()
    about = read_seal(folder)
    if about is None or "converted_from" in about:  # what that was trained on is not known
        return None
    try:
        documents = np.frombuffer(base64.b64decode(about["documents"], validate=True), dtype="<u8")
        text, fingerprint = Data(**about["data"]), about.get("base_fingerprint")
        lengths = about["original_length"], about.get("target_length")
        return Origin(about["base"], lengths[0], text, documents, fingerprint, lengths[1], about.get("rope_theta"))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, error) from error


def promised_length(name: str, original: int | None = None) -> int | None:
    """The tokens that a model is meant to read: what it was extended to, without the margin that it was trained with.

    Of other models what their config says, if it says so: ``max_position_embeddings``, or under YaRN the factor times the
    original length where that is more. Qwen's instructions add YaRN to a config and leave ``max_position_embeddings``. Under
    a linear scaling that may be so too; whether it is tells only ``original``, the original length in tokens.
    """
    origin = read_origin(name)
    if origin and origin.target_length:
        return origin.target_length
    config = load_config(name).get_text_config()
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if kind == "yarn" or (kind == "linear" and original):
        return reach_of(config, original)
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) else None

"""Skipwise extends the context window of a RoPE language model by positional skip-wise training (PoSE).

The public names are imported on first use, so that ``import skipwise`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "PoseDataset": "skipwise.data.examples",
    "collate": "skipwise.data.examples",
    "Keys": "skipwise.keys",
    "Plans": "skipwise.positions",
    "pose": "skipwise.positions",
    "Rope": "skipwise.interpolation",
    "frequencies": "skipwise.interpolation",
    "rope_parameters": "skipwise.interpolation",
    "Extension": "skipwise.model.rope",
    "plan_extension": "skipwise.model.rope",
    "load_model": "skipwise.model.loading",
    "probe_connectivity": "skipwise.model.probe",
    "sliding_perplexity": "skipwise.evaluation.perplexity",
    "passkey_accuracy": "skipwise.evaluation.retrieval",
    "Recipe": "skipwise.recipe",
    "load_recipe": "skipwise.recipe",
    "SkipwiseError": "skipwise.errors",
}

__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from skipwise.data.examples import PoseDataset as PoseDataset
    from skipwise.data.examples import collate as collate
    from skipwise.errors import SkipwiseError as SkipwiseError
    from skipwise.evaluation.perplexity import sliding_perplexity as sliding_perplexity
    from skipwise.evaluation.retrieval import passkey_accuracy as passkey_accuracy
    from skipwise.interpolation import Rope as Rope
    from skipwise.interpolation import frequencies as frequencies
    from skipwise.interpolation import rope_parameters as rope_parameters
    from skipwise.keys import Keys as Keys
    from skipwise.model.loading import load_model as load_model
    from skipwise.model.probe import probe_connectivity as probe_connectivity
    from skipwise.model.rope import Extension as Extension
    from skipwise.model.rope import plan_extension as plan_extension
    from skipwise.positions import Plans as Plans
    from skipwise.positions import pose as pose
    from skipwise.recipe import Recipe as Recipe
    from skipwise.recipe import load_recipe as load_recipe


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'skipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Extend the context window of a RoPE language model on short windows with skipped positions (PoSE).

The public names are imported on first use, so ``import skipwise`` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PUBLIC = {
    "PoseDataset": "skipwise.data.examples",
    "collate": "skipwise.data.examples",
    "SkipwiseError": "skipwise.errors",
    "sliding_perplexity": "skipwise.evaluation.perplexity",
    "retrieval_accuracy": "skipwise.evaluation.retrieval",
    "coverage": "skipwise.method.coverage",
    "Rope": "skipwise.method.interpolation",
    "frequencies": "skipwise.method.interpolation",
    "rope_parameters": "skipwise.method.interpolation",
    "parse_length": "skipwise.method.lengths",
    "ChunkRules": "skipwise.method.positions",
    "Plans": "skipwise.method.positions",
    "pose": "skipwise.method.positions",
    "Rng": "skipwise.method.rng",
    "load_config": "skipwise.model.config",
    "load_model": "skipwise.model.loading",
    "load_tokenizer": "skipwise.model.loading",
    "probe_connectivity": "skipwise.model.probe",
    "Extension": "skipwise.model.extension",
    "plan_extension": "skipwise.model.extension",
    "Data": "skipwise.recipes.schema",
    "Positions": "skipwise.recipes.schema",
    "Recipe": "skipwise.recipes.schema",
    "load_recipe": "skipwise.recipes.loading",
    "PoseCollator": "skipwise.training.collator",
    "RequirePositions": "skipwise.training.collator",
}

__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:  # for type checkers; a test holds both lists together
    from skipwise.data.examples import PoseDataset as PoseDataset, collate as collate
    from skipwise.errors import SkipwiseError as SkipwiseError
    from skipwise.evaluation.perplexity import sliding_perplexity as sliding_perplexity
    from skipwise.evaluation.retrieval import retrieval_accuracy as retrieval_accuracy
    from skipwise.method.coverage import coverage as coverage
    from skipwise.method.interpolation import (
        Rope as Rope,
        frequencies as frequencies,
        rope_parameters as rope_parameters,
    )
    from skipwise.method.lengths import parse_length as parse_length
    from skipwise.method.positions import ChunkRules as ChunkRules, Plans as Plans, pose as pose
    from skipwise.method.rng import Rng as Rng
    from skipwise.model.config import load_config as load_config
    from skipwise.model.extension import Extension as Extension, plan_extension as plan_extension
    from skipwise.model.loading import load_model as load_model, load_tokenizer as load_tokenizer
    from skipwise.model.probe import probe_connectivity as probe_connectivity
    from skipwise.recipes.loading import load_recipe as load_recipe
    from skipwise.recipes.schema import Data as Data, Positions as Positions, Recipe as Recipe
    from skipwise.training.collator import PoseCollator as PoseCollator, RequirePositions as RequirePositions


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        import_module("skipwise.model")  # holds back bitsandbytes' warnings before any module imports that package
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'skipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Extend the context window of a RoPE language model on short windows with skipped positions (PoSE).

The public names are imported on first use, so ``import skipwise`` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "skipwise.data.examples": ["PoseDataset", "collate"],
    "skipwise.errors": ["SkipwiseError"],
    "skipwise.evaluation.perplexity": ["sliding_perplexity"],
    "skipwise.evaluation.retrieval": ["retrieval_accuracy"],
    "skipwise.method.coverage": ["coverage"],
    "skipwise.method.interpolation": ["Rope", "frequencies", "rope_parameters"],
    "skipwise.method.lengths": ["parse_length"],
    "skipwise.method.positions": ["ChunkRules", "Plans", "pose"],
    "skipwise.method.rng": ["Rng"],
    "skipwise.model.config": ["load_config"],
    "skipwise.model.loading": ["load_model", "load_tokenizer"],
    "skipwise.model.probe": ["probe_connectivity"],
    "skipwise.model.extension": ["Extension", "plan_extension"],
    "skipwise.recipes.schema": ["Data", "Positions", "Recipe"],
    "skipwise.recipes.loading": ["load_recipe"],
    "skipwise.training.collator": ["PoseCollator", "RequirePositions"],
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_MODULES, "__version__"]

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
    if name in _MODULES:
        import_module("skipwise.model")  # holds back bitsandbytes' warnings before any module imports that package
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'skipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

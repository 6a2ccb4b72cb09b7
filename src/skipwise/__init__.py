"""Skipwise extends the context window of a RoPE language model by positional skip-wise training (PoSE).

The public names are imported on first use, so ``import skipwise`` takes no time.
"""

import ast
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if (
    TYPE_CHECKING
):  # The only list of public names. Type checkers follow the imports; ``_public_names`` reads them.
    from skipwise.data.collator import PoseCollator as PoseCollator
    from skipwise.data.examples import PoseDataset as PoseDataset
    from skipwise.data.examples import collate as collate
    from skipwise.errors import SkipwiseError as SkipwiseError
    from skipwise.evaluation.perplexity import sliding_perplexity as sliding_perplexity
    from skipwise.evaluation.retrieval import retrieval_accuracy as retrieval_accuracy
    from skipwise.method.coverage import coverage as coverage
    from skipwise.method.interpolation import Rope as Rope
    from skipwise.method.interpolation import frequencies as frequencies
    from skipwise.method.interpolation import rope_parameters as rope_parameters
    from skipwise.method.lengths import parse_length as parse_length
    from skipwise.method.positions import ChunkRules as ChunkRules
    from skipwise.method.positions import Plans as Plans
    from skipwise.method.positions import pose as pose
    from skipwise.method.rng import Rng as Rng
    from skipwise.model.loading import load_config as load_config
    from skipwise.model.loading import load_model as load_model
    from skipwise.model.loading import load_tokenizer as load_tokenizer
    from skipwise.model.probe import probe_connectivity as probe_connectivity
    from skipwise.model.rope import Extension as Extension
    from skipwise.model.rope import plan_extension as plan_extension
    from skipwise.recipes.schema import Positions as Positions
    from skipwise.recipes.schema import Recipe as Recipe
    from skipwise.recipes.schema import load_recipe as load_recipe


def _public_names() -> dict[str, str]:
    """Return the module of each public name, from the imports above, which do not run."""
    imports = (
        node
        for node in ast.walk(ast.parse(get_data(__name__, "__init__.py") or b""))
        if isinstance(node, ast.ImportFrom)
    )
    return {name.name: str(node.module) for node in imports for name in node.names if name.asname}


_PUBLIC = _public_names()
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'skipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

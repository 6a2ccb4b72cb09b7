"""A model whose far attention is cut on purpose, evaluated beside itself: does the evaluation notice?

    python benchmarks/cut_attention.py MODEL OUT [--base nano] [--data stdlib]

Every layer's attention is cut into blocks of the original length, so that no token sees beyond its block. Two evaluations
are written under OUT, ``whole`` and ``cut``, and their headlines and perplexities are printed.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from skipwise.evaluation.evaluate import evaluate
from skipwise.evaluation.specification import EvaluatedModel, doubled_windows, find_models, specify
from skipwise.model.precision import choose_precision
from skipwise.recipes.schema import Data
from skipwise.report.rows import judge, read_folder, rows_of


def in_blocks(model: Any, block: int) -> Any:
    """Let no token look beyond its own block of ``block`` positions: a model that reads no farther."""
    forward = model.forward

    def cut(*, position_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: object) -> object:
        queries = position_ids[0][:, None]
        keys = torch.arange(attention_mask.shape[1], device=queries.device)[None]
        allowed = (keys <= queries) & (keys // block == queries // block)
        return forward(position_ids=position_ids, attention_mask=allowed[None, None], **inputs)

    model.forward = cut
    return model


def main() -> None:
    """Evaluate both, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--base")
    parser.add_argument("--data", default="stdlib")
    chosen = parser.parse_args()
    found, console = find_models([chosen.model], chosen.base), Console()
    original, target = min(model.original for model in found), max(model.target for model in found)
    specification = specify(
        original,
        target,
        texts=[Data(source=chosen.data)],
        windows=doubled_windows(original, target),
        documents=16,
        tasks=["passkey"],
        num_prompts=100,
        precision=choose_precision("auto"),
    )
    whole = EvaluatedModel.load

    def cut_one(model: EvaluatedModel, precision: str) -> Any:
        loaded = whole(model, precision)
        return in_blocks(loaded, model.original) if model.name == chosen.model else loaded

    for label, load in (("whole", whole), ("cut", cut_one)):
        EvaluatedModel.load = load  # type: ignore[assignment, method-assign]
        evaluate(found, specification, out=chosen.out / label, console=console)
    print("\n| | effective length | perplexity by window | passkeys found | gain by far text, last bucket |")
    print("|---|---|---|---|---|")
    for label in ("whole", "cut"):
        one = judge(rows_of([read_folder(chosen.out / label)]))[0]
        perplexities = ", ".join(f"{w:,}: {p.mean:.2f}" for w, p in one.row.perplexity.items())
        passkeys = ", ".join(f"{n:,}: {hits} of {asked}" for n, (hits, asked) in one.row.found["passkey"].items())
        print(f"| {label} | {one.effective.tokens:,} | {perplexities} | {passkeys} | {one.buckets[-1].gain} |")


if __name__ == "__main__":
    main()

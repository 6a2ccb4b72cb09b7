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

from skipwise.evaluation import evaluate as evaluation
from skipwise.evaluation.models import subjects
from skipwise.model.precision import choose_precision
from skipwise.recipes.schema import Data
from skipwise.report.evaluation import read_evaluation


def cut(model: Any, block: int) -> Any:
    """Let no token look beyond its own block of ``block`` positions."""
    forward = model.forward

    def in_blocks(*, position_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: object) -> object:
        queries = position_ids[0][:, None]
        keys = torch.arange(attention_mask.shape[1], device=queries.device)[None]
        allowed = (keys <= queries) & (keys // block == queries // block)
        return forward(position_ids=position_ids, attention_mask=allowed[None, None], **inputs)

    model.forward = in_blocks
    return model


def main() -> None:
    """Evaluate both, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--base")
    parser.add_argument("--data", default="stdlib")
    chosen = parser.parse_args()
    found = subjects([chosen.model], chosen.base, None)
    whole, console = evaluation.loaded, Console()
    question = evaluation.ask(
        found,
        Data(source=chosen.data),
        lengths=None,
        target=None,
        stride=None,
        documents=16,
        tasks=["passkey"],
        trials=100,
        seed=0,
        precision=choose_precision("auto"),
        console=console,
    )

    def cut_one(name: str, precision: str) -> Any:
        model = whole(name, precision)
        return cut(model, found[0].original) if name == chosen.model else model

    for label, load in (("whole", whole), ("cut", cut_one)):
        evaluation.loaded = load
        evaluation.evaluate(found, question, share=(1, 1), exam=None, out=chosen.out / label, console=console)
    print("\n| | effective length | perplexity by window | passkeys found | gain by far text, last bucket |")
    print("|---|---|---|---|---|")
    for label in ("whole", "cut"):
        model = read_evaluation(chosen.out / label).models[0]
        perplexities = ", ".join(f"{w:,}: {p.mean:.2f}" for w, p in model.perplexity.items())
        passkeys = ", ".join(f"{n:,}: {hits}%" for n, (hits, _) in model.found["passkey"].items())
        print(
            f"| {label} | {model.effective.tokens:,} | {perplexities} | {passkeys} | {model.buckets[-1].gain} |"
        )


if __name__ == "__main__":
    main()

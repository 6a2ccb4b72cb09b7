"""Records of skipwise 0.1 (schema 1) in the words of today's.

Version 0.1 stored sums over documents for perplexity and lists over prompts for passkeys. A sum becomes the record of
one reading, whose document says how many it stands for; a list becomes a record for each prompt.
"""

from collections.abc import Iterator
from typing import Any

SCHEMA = 1


def upgraded(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of today's records that say what a record of schema 1 said; a missing one is a KeyError."""
    match raw.pop("kind"):
        case "perplexity":
            yield _pooled(raw)
        case "perplexity-by-step":
            yield _pooled(raw | {"precision": "", "seconds": 0.0}) | {"step": raw["step"]}
        case "by-position":
            yield from _segments(raw)
        case "passkey":
            yield from _prompts(raw)
        case "reading":
            # The key of 0.1 was the digest of weights and tokens.
            yield {"mode": "sliding", "begin": 0, **raw, "kind": "reading", "digest": raw["key"], "key": None}
        case "trial":
            yield {"depths": "spread", **raw, "kind": "trial", "digest": raw["key"], "key": None}
        case kind:
            yield raw | {"kind": kind}


def _pooled(raw: dict[str, Any]) -> dict[str, Any]:
    """Sliding perplexity summed over documents; which targets were hit was not kept."""
    return {
        "kind": "reading",
        **{name: raw[name] for name in ("arm", "window", "stride", "precision", "seconds")},
        "data": raw.get("data", ""),
        "document": f"{raw['documents']} documents",
        "mode": "sliding",
        "begin": 0,
        "edges": [1, raw["tokens"] + 1],
        "digest": "",
        "nll": [raw["nll"]],
        "hits": [0],
    }


def _segments(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Loss by position: a reading for each segment; where in its document each began was not kept."""
    turns: dict[str, int] = {}
    for document, nll, hits in zip(raw["documents"], raw["nll"], raw["hits"], strict=True):
        turn = turns[document] = turns.get(document, -1) + 1
        yield {
            "kind": "reading",
            **{name: raw[name] for name in ("arm", "data", "edges", "precision")},
            "document": document,
            "mode": "segment",
            "begin": turn * raw["length"],
            "window": raw["length"],
            "stride": raw["length"],
            "digest": "",
            "nll": nll,
            "hits": hits,
            "seconds": raw["seconds"] / len(raw["documents"]),
        }


def _prompts(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Passkeys: a trial for each prompt."""
    answers = raw.get("answers") or [""] * len(raw["hits"])
    columns = zip(raw["depths"], raw["prompt_tokens"], raw["hits"], answers, strict=True)
    for trial, (depth, tokens, hit, answer) in enumerate(columns):
        yield {
            "kind": "trial",
            "arm": raw["arm"],
            "task": "passkey",
            "length": raw["length"],
            "seed": raw["seed"],
            "trial": trial,
            "depths": "random",
            "precision": "",
            "digest": "",
            "depth": depth,
            "prompt_tokens": tokens,
            "hit": hit,
            "answer": answer,
            "seconds": raw["seconds"] / len(raw["hits"]),
        }

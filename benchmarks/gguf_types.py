"""What a GGUF file's type of weights costs: perplexity on held-out text in llama.cpp, against transformers in float32.

    python benchmarks/gguf_types.py MODEL [--documents 16] [--tokens 64]

Of each document the first tokens up to the model's length are read, and the last ``--tokens`` of them are scored. All
types score the same tokens, so the interval of a change is that of paired differences, by document. llama.cpp's server tells no
log-probabilities of a prompt: it is asked for one token after each prefix, and for the likeliest tokens there.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from skipwise.cli.terminal import prepare_process
from skipwise.data.store import tokenise
from skipwise.engines.check import COMPARED, Request, engine_here, model_folder
from skipwise.engines.export import TYPES, write_gguf
from skipwise.engines.read import READERS
from skipwise.evaluation.specification import fair_documents, longest_documents
from skipwise.model.config import load_config, read_origin
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data
from skipwise.results.statistics import Interval, mean_interval

TOLD = 256  # likeliest tokens that are asked for at first

Read = tuple[np.ndarray, np.ndarray]  # log-probabilities [places, vocabulary], and of the actual tokens [places]


def read(engine: str, request: Request, vocabulary: int) -> Read:
    """Ask an engine for log-probabilities after each prefix, in this process: a process for each takes longer.

    The likeliest tokens are asked for first, and all of the vocabulary only where the actual one is not among them.
    """
    table = np.full((len(request.places), vocabulary), np.nan)
    at = np.arange(len(table)), np.array(request.ids)[request.places]  # after n tokens comes the one at index n
    for top in (request.top, vocabulary):
        rows = np.flatnonzero(np.isnan(table[at]))
        if len(rows):
            asked = replace(request, places=[request.places[row] for row in rows], top=top)
            for row, place in zip(rows, READERS[engine](asdict(asked))["places"], strict=True):
                tokens, values = zip(*place, strict=True)
                table[row, list(map(int, tokens))] = values
    return table, table[at]


def change(ours: Sequence[Read], theirs: Sequence[Read]) -> Interval:
    """Their perplexity over ours, with the 95% interval over documents."""
    apart = [float((mine - other).sum()) for (_, mine), (_, other) in zip(ours, theirs, strict=True)]
    names = [str(number) for number in range(len(ours))]
    return mean_interval(apart, [len(mine) for _, mine in ours], names).exp()


def differences(ours: Sequence[Read], theirs: Sequence[Read]) -> tuple[float, float]:
    """Largest and mean difference of log-probabilities, of the reference's likeliest tokens at each place.

    A token that llama.cpp does not tell is at most as likely as the least that it tells.
    """
    found = []
    for (mine, _), (other, _) in zip(ours, theirs, strict=True):
        likeliest = np.argsort(-np.nan_to_num(mine, nan=-np.inf), axis=1)[:, :COMPARED]
        told = np.where(np.isnan(other), np.nanmin(other, axis=1, keepdims=True), other)
        found.append(np.abs(np.take_along_axis(mine - told, likeliest, axis=1)))
    return float(np.max(found)), float(np.mean(found))


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    chosen = parser.parse_args()
    console, model = prepare_process(), model_folder(chosen.model)
    config, origin, text = load_config(model).get_text_config(), read_origin(model), Data(source=chosen.data)
    target = int(config.max_position_embeddings)
    store = tokenise(text, load_tokenizer(model), console)
    fair = fair_documents(store, text, [origin] if origin else [], console)
    documents = longest_documents(store, fair, at_least=target, most=chosen.documents, limit=target)
    places = list(range(target - chosen.tokens, target))
    requests = [Request(model, one.tokens.tolist(), places, target, top=TOLD) for one in documents]
    reference, engine = engine_here("transformers"), engine_here("llama.cpp")
    began = time.perf_counter()
    ours = [read(reference.name, request, config.vocab_size) for request in requests]
    losses = -np.array([actual for _, actual in ours])  # [documents, tokens]
    print(f"\n{chosen.model}, {chosen.data}: {losses.size:,} tokens, the last {chosen.tokens} of {target:,} in each of")
    print(f"{len(documents)} documents ({', '.join(one.document for one in documents[:3])}, ...)\n")
    print("| | perplexity | change | 95% interval | largest difference | mean | MB | s to write | s to read |")
    print("|---|---|---|---|---|---|---|---|---|")
    seconds = f"| | | | | | | {time.perf_counter() - began:.1f} |"
    print(f"| transformers {reference.version}, float32 | {math.exp(losses.mean()):.4f} {seconds}")
    for kind in TYPES:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            began = time.perf_counter()
            write_gguf(Path(model), file, kind, console)
            written = time.perf_counter()
            theirs = [read(engine.name, request.of(file), config.vocab_size) for request in requests]
            ended, size = time.perf_counter(), file.stat().st_size
        found = -np.array([actual for _, actual in theirs])
        ratio, (largest, mean) = change(ours, theirs), differences(ours, theirs)
        print(
            f"| llama.cpp {engine.version}, {kind} | {math.exp(found.mean()):.4f} | {ratio.mean - 1:+.3%} "
            f"| {ratio.low - 1:+.3%} to {ratio.high - 1:+.3%} | {largest:.1e} | {mean:.1e} | {size / 1e6:.1f} "
            f"| {written - began:.1f} | {ended - written:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

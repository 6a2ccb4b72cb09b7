"""Position plans and batches of examples, by the public names of the package and keys of the recipe alone."""

import hashlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import skipwise

Golden = dict[str, Any]

# What a plan is asked for: train length and target, and under which keys.
_LENGTHS = ((64, 256), (101, 1000), (256, 2048), (128, 128))
_SEEDS, _EPOCHS, _INDICES = (0, 11), (0, 3), (*range(32), 1_000_003)
_SHOWN = ((0, 0, 0), (0, 0, 1), (11, 3, 1_000_003))  # seed, epoch, index
_RUNS_SHOWN = 6

# Documents whose n-th word is a number, counted on through all of them: a token id tells which document, and where in it.
_DOCUMENTS = (300, 900, 2100, 2700)
_WORDS = sum(_DOCUMENTS)

_NANO_WINDOW = 256
_BATCHES, _BATCH = 4, 16
VARIANTS: dict[str, dict[str, object]] = {
    "the recipe itself": {},
    "train_chunk_starts": {"data.train_chunk_starts": True},
    "three chunks, aligned, seed 1": {"positions.chunks": 3, "positions.content": "aligned", "seed": 1},
}


def schemes() -> Iterator[dict[str, object]]:
    """The positions section of every scheme and option."""
    contents = ("paper", "even", "zero", "aligned")
    for chunks, content in product((1, 2, 3), contents):
        yield {"scheme": "pose", "chunks": chunks, "content": content}
    for (lengths, skips), content in product(
        (("released", "uniform"), ("paper", "end_anchored"), ("released", "end_anchored")), contents
    ):
        yield {"scheme": "pose", "lengths": lengths, "skips": skips, "content": content}
    for scheme in ("randpos", "cream", "full_length", "no_skip"):
        yield {"scheme": scheme}


def plans(folder: Path) -> Golden:
    """Of every scheme and pair of lengths: hashes of positions and of places in the text, and a few rows to read."""
    tokenizer = _number_tokenizer()
    sources = {}
    for name, least in (("all", 0), ("long", max(target for _, target in _LENGTHS))):
        sources[name] = folder / name
        _write_numbers(sources[name], least)
    found = {}
    for scheme, (train, target) in product(schemes(), _LENGTHS):
        # Full-length examples need documents as long as the target.
        source = sources["long" if scheme["scheme"] == "full_length" else "all"]
        changes = {f"positions.{key}": value for key, value in scheme.items()}
        recipe = skipwise.load_recipe(None, {"method": "pose", **changes})
        title = f"{', '.join(map(str, scheme.values()))}: {train} -> {target}"
        found[title] = _plans(source, tokenizer, recipe.positions, train, target)
    return found


def _plans(source: Path, tokenizer: PreTrainedTokenizerBase, positions: Any, train: int, target: int) -> Golden:
    position_ids, content, shown = [], [], {}
    for seed in _SEEDS:
        data = skipwise.PoseDataset.from_source(
            skipwise.Data(source=str(source), held_out=0),
            tokenizer,
            train_length=train,
            target_length=target,
            positions=positions,
            seed=seed,
            examples=max(_INDICES) + 1,
        )
        for epoch in _EPOCHS:
            data.set_epoch(epoch)
            for index, example in zip(_INDICES, data.__getitems__(_INDICES), strict=True):
                position_ids.append(example["position_ids"])
                content.append(example["input_ids"])
                if (seed, epoch, index) in _SHOWN:
                    shown[f"seed {seed}, epoch {epoch}, example {index}"] = _runs(example)
    hashes = {"positions": _sha256(np.stack(position_ids)), "content": _sha256(np.stack(content))}
    return {**hashes, **shown}


def _runs(example: dict[str, np.ndarray]) -> str:
    """Positions that follow on each other, and the words they are of: ``0..35 of 371..406; 105..132 of ...``."""
    positions, words = example["position_ids"], example["input_ids"]
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(words) != 1)) + 1
    begins, ends = [0, *breaks.tolist()], [*(breaks - 1).tolist(), len(positions) - 1]
    runs = [f"{positions[a]}..{positions[b]} of {words[a]}..{words[b]}" for a, b in zip(begins, ends, strict=True)]
    more = len(runs) - _RUNS_SHOWN
    return "; ".join(runs[:_RUNS_SHOWN]) + (f"; {more} more" if more > 0 else "")


def batches(text: Path) -> Golden:
    """The first batches of the demo's recipe and of its variants in two epochs: a hash of each array."""
    tokenizer = nano_tokenizer()
    return {name: _batches(text, tokenizer, changes) for name, changes in VARIANTS.items()}


def _batches(text: Path, tokenizer: PreTrainedTokenizerBase, changes: dict[str, object]) -> Golden:
    recipe = skipwise.load_recipe("nano", changes)
    data = skipwise.PoseDataset.from_source(
        recipe.data.model_copy(update={"source": str(text)}),
        tokenizer,
        train_length=_NANO_WINDOW,
        target_length=recipe.target,
        positions=recipe.positions,
        seed=recipe.seed,
        examples=recipe.training.max_steps * _BATCH,
    )
    found = {}
    for epoch, number in product((0, 1), range(_BATCHES)):
        data.set_epoch(epoch)
        indices = range(number * _BATCH, (number + 1) * _BATCH)
        batch = skipwise.collate(data.__getitems__(indices))
        arrays = {key: value.numpy() for key, value in sorted(batch.items())}
        found[f"epoch {epoch}, batch {number}"] = {
            **{key: _sha256(array) for key, array in arrays.items()},
            "labels left out": [int((row < 0).sum()) for row in arrays["labels"]],
            "last positions": arrays["position_ids"][:, -1].tolist(),
            "first ids": arrays["input_ids"][:, 0].tolist(),
        }
    return found


def nano_tokenizer() -> PreTrainedTokenizerBase:
    """The embedded model's, wherever in the package it lies."""
    (found,) = Path(skipwise.__file__).parent.rglob("nano/tokenizer.json")
    return AutoTokenizer.from_pretrained(found.parent)


def _number_tokenizer() -> PreTrainedTokenizerBase:
    """Of a vocabulary of numbers: the id of the word 17 is 17."""
    vocabulary = {str(number): number for number in range(_WORDS)} | {"?": _WORDS}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def _write_numbers(folder: Path, least: int) -> None:
    folder.mkdir(parents=True)
    begin = 0
    for number, length in enumerate(_DOCUMENTS):
        words = " ".join(map(str, range(begin, begin + length)))
        if length >= least:
            (folder / f"{number}.txt").write_text(words, encoding="utf-8")
        begin += length


def _sha256(array: np.ndarray) -> str:
    """Of shape and numbers, as int64 of the lower byte first; the first half, which is enough."""
    digest = hashlib.sha256(str(array.shape).encode())
    digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()[:32]

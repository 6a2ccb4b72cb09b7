"""What is measured: the models, the section ``evaluation`` with its defaults resolved, and the texts.

Texts are documents that no model was trained on, the longest first, and segments of documents. Text of other kinds ships with
the package: prose, mathematics and code, in segments inside the original window.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data import ruler
from skipwise.data.prompts import TASKS
from skipwise.data.store import TokenStore, split_by_name, text_encoder, tokenise
from skipwise.data.text import KINDS, Document, other_source, shipped_text
from skipwise.errors import DataError, ModelError, RecipeError, counted, one_of
from skipwise.evaluation.windows import sliding_windows
from skipwise.model.config import (
    Origin,
    load_config,
    original_length,
    promised_length,
    read_origin,
    require_unchanged,
    resolve,
    weights_fingerprint,
)
from skipwise.model.extension import Extension
from skipwise.model.forward import default_device, dtype_of
from skipwise.model.loading import load_model
from skipwise.recipes.names import short_name
from skipwise.recipes.schema import Data, Evaluation, Recipe
from skipwise.results.files import short_digest
from skipwise.results.records import OTHER_TEXT
from skipwise.results.scores import FOUND
from skipwise.results.statistics import (
    FEWEST_SEGMENTS,
    POWER,
    fewest_prompts,
    least_hits,
    prompts_for_difference,
    smallest_difference,
    wilson_interval,
)

RULER = "ruler:"  # prefix of RULER's tasks
_SEGMENTS = 32  # at most, of each document of other text; one record each
_TOKENS = 2**14  # at most, of each document of other text
_FIX = "give more or longer text (--data, or --set evaluation.source=TEXT)"


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to measure; lengths are in tokens."""

    label: str  # in records and tables
    name: str  # a folder, or a name on the model hub
    original: int  # original length
    target: int  # target length, or the length in the config
    base: str = ""  # label of the base; empty for a base, or if the base is unknown
    control: bool = False  # whether it is measured only as the base of others
    weights: str = ""  # fingerprint
    extension: Extension | None = None  # interpolation to set when loading; None: the config's
    four_bits: bool = False  # whether it is measured with weights in 4 bits

    def load(self, precision: str) -> PreTrainedModel:
        """Load the model: on a GPU with weights in ``precision`` or 4 bits, else in float32 under autocast."""
        device, four_bits = default_device(), self.four_bits
        dtype = dtype_of(precision) if device.type == "cuda" else torch.float32
        settings: dict[str, Any] = {"four_bits": four_bits, "merge": not four_bits}  # weights in 4 bits merge nothing
        return load_model(self.name, self.extension, dtype=dtype, device=device, **settings).eval()

    @property
    def digest(self) -> str:
        """16 hex digits of the weights and the interpolation."""
        extension = "" if self.extension is None else repr(self.extension)
        return short_digest(f"{self.weights}{extension}{' in 4 bits' if self.four_bits else ''}".encode())


def find_models(
    names: list[str], base: str | None = None, original: int | None = None, length: int | None = None
) -> list[EvaluatedModel]:
    """Find the models ``names``, followed by the bases that are not among them.

    Base and lengths that are not given come from ``skipwise.json``, or from the config. An empty ``base`` means no base.
    ``length`` in tokens is for a config without a length.
    """
    named = {_place(name): name.rstrip("/") for name in names}
    names, base_of = list(named.values()), dict[str, str]()
    for name in names:
        made_from = (_base_of(name) if base is None else base) or ""
        made_from = named.get(_place(made_from), made_from) if made_from else ""
        base_of[name] = "" if made_from == name else made_from
    bases = [name for name in dict.fromkeys(base_of.values()) if name and name not in names]
    labels = dict(zip(names, _labels(names), strict=True))
    labels |= {name: f"{label} (base)" for name, label in zip(bases, _labels(bases), strict=True)}
    models = []
    for name in (*names, *bases):
        require_unchanged(Path(resolve(name)))
        rope = getattr(load_config(name).get_text_config(), "rope_parameters", None) or {}
        if rope.get("rope_type") == "dynamic":
            raise ModelError(
                f"model {name!r} has rope_type dynamic: answers depend on earlier prompts; set another rope_type, e.g. yarn"
            )
        control, own_base = name in bases, base_of.get(name, "")
        lengths = _lengths(name, own_base, None if control else original, length)
        label, weights = labels.get(own_base, ""), weights_fingerprint(name)
        models.append(EvaluatedModel(labels[name], name, *lengths, label, control, weights))
    return models


def _place(name: str) -> str:
    """Return the real path of a model, which may have several names."""
    return os.path.realpath(resolve(name))


def _base_of(name: str) -> str | None:
    """Return the model that ``skipwise extend`` extended, if it still exists."""
    origin = read_origin(name)
    try:
        return origin.base if origin and origin.base and load_config(origin.base) else None
    except ModelError:
        return None


def _labels(names: list[str]) -> list[str]:
    short = [short_name(name) for name in names]
    return [label if short.count(label) == 1 else name for label, name in zip(short, names, strict=True)]


def _lengths(name: str, base: str, original: int | None, length: int | None) -> tuple[int, int]:
    promised, origin = promised_length(name), read_origin(name)
    target = promised_length(name, original) or length
    if target is None:
        raise ModelError(
            f"the config of {name!r} has no max_position_embeddings; give the lengths by --lengths or --target"
        )
    made_from = origin.original_length if origin else None
    window = original or made_from or (original_length(load_config(name)) if promised else target)
    if base:
        window = min(window, promised_length(base) or window)
    return min(window, target), target


def assumed_length(model: EvaluatedModel) -> str:
    """Return a warning if a linear scaling states no original length, or ""."""
    config = load_config(model.name).get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    stated = rope.get("original_max_position_embeddings") or read_origin(model.name)
    if rope.get("rope_type") != "linear" or stated or model.target != config.max_position_embeddings:
        return ""
    return (
        f"{model.label}: max_position_embeddings, {model.target:,}, counts as the length after the linear scaling by "
        f"{rope['factor']:g}; if it is the original length, give --original {model.target}"
    )


class Specification(Evaluation):
    """The recipe's section ``evaluation`` with defaults resolved; lengths are in tokens."""

    texts: list[Data] = Field([])
    windows: list[int] = Field([])  # ascending
    original: int = 1  # original length
    target: int = 1  # target length
    documents: int = Field(8, ge=0)
    tasks: list[str] = Field([])
    prompt_lengths: list[int] = Field([])
    segment_lengths: list[int] = Field([])  # read once, for loss by position
    segments: int = 32  # at most, of each of these lengths
    seed: int = Field(0, ge=0)  # of the prompts
    depths: Literal["random", "spread"] = "spread"  # of the hidden number: random as in the paper, or over tenths
    precision: str = "float32"
    ruler_data: Path | None = None  # type: ignore[assignment]
    server: str | None = None  # engine that answers the prompts

    def stride_of(self, window: int) -> int:
        """Return the stride: ``stride``, or the default, also for a base's narrower window."""
        if self.stride and (self.stride <= window or window in self.windows):
            return self.stride
        return min(max(self.original // 2, self.target // 16), window // 2)

    def tokens_read(self, longest: int) -> int:
        """Return the tokens that are read of a document, where ``longest`` is the largest window."""
        return self.tokens_per_document or longest

    @property
    def facts(self) -> dict[str, Any]:  # for ``run.json``
        unused = {"texts", "models", "source", "eval_steps", "save_best"}
        texts = [{"source": text.source, **text.reading} for text in self.texts]
        return self.model_dump(mode="json", exclude=unused) | {"texts": texts}

    def warnings(self, targets: Collection[int], texts: Sequence["EvaluationText"]) -> Iterator[str]:
        """Yield what these settings cannot show, and lengths beyond the models' target lengths."""
        trials = self.num_prompts
        if "passkey" in self.tasks and wilson_interval(trials, trials)[0] < FOUND:
            yield (
                f"{counted(trials, 'prompt')} cannot show an effective length ({FOUND:.0%} of the passkeys found); ask for "
                f"{fewest_prompts(FOUND)} or more"
            )
        if "passkey" in self.tasks and texts and len(texts[0].documents) == 1:
            yield (
                f"one document cannot show an effective length; give two or more with {texts[0].windows[-1]:,} tokens"
            )
        longest = max((*self.windows, *self.prompt_lengths, *self.segment_lengths), default=0)
        for target in sorted(targets):
            if longest > target:
                yield f"a model for {target:,} tokens is expected to fail at {longest:,}"

    @property
    def power(self) -> str:
        """What the prompts can show of two models, and of passkeys."""
        prompts, hits = self.num_prompts, least_hits(FOUND, self.num_prompts)
        passkeys = f"; {hits} right passkeys show {FOUND:.0%}" if hits and "passkey" in self.tasks else ""
        return (
            f"{counted(prompts, 'prompt')} a task and length can show {100 * smallest_difference(prompts):.0f} points between two "
            f"models (95% interval, power {POWER:.0%}); 5 points take {prompts_for_difference(0.05):,}{passkeys}"
        )


def is_ruler(task: str) -> bool:
    """Return whether a task is one of RULER's."""
    return task.startswith(RULER)


def read_tasks(names: Sequence[str], ruler_data: Path | None = None) -> list[str]:
    """Return the tasks of names such as ``passkey``, ``ruler``, ``ruler:vt`` and ``vt:hops=2,chains=3``, each once.

    ``ruler`` is all of RULER's tasks that can be made: questions need files in ``ruler_data``.
    """
    tasks: list[str] = []
    for name in filter(None, map(str.strip, re.split(r",(?!\s*\w+\s*=)", ",".join(names)))):
        own = name.removeprefix(RULER)
        if name == RULER.removesuffix(":"):
            files = [None, *ruler.read_ruler_data(ruler_data).question_files]
            tasks += [RULER + task for task, rule in ruler.TASKS.items() if rule.file in files]
        elif is_ruler(name) or own.partition(":")[0] in ruler.TASKS:
            tasks.append(RULER + ruler.canonical(own))
        else:
            tasks.append(one_of("task", name, [*TASKS, RULER.removesuffix(":"), *ruler.TASKS]))
    return list(dict.fromkeys(tasks))


def doubled_windows(original: int, target: int) -> list[int]:
    """Return the original length, doubled up to the target, and the target."""
    return [*(original * 2**k for k in range(32) if original * 2**k < target), target]


def specify(original: int, target: int, **settings: Any) -> Specification:
    """Resolve the defaults of ``settings`` for an original and a target length in tokens."""
    windows = sorted(set(settings.get("windows") or doubled_windows(original, target)))
    asks = settings.get("num_prompts", 50) > 0 and bool(settings.get("tasks"))
    data = settings.get("ruler_data")
    resolved = {
        "windows": windows,
        "tasks": read_tasks(settings["tasks"], Path(data) if data else None) if asks else [],
        "prompt_lengths": (settings.get("prompt_lengths") or windows) if asks else [],
    }
    made = Specification(**{**settings, **resolved, "original": original, "target": target})
    for window in windows:
        sliding_windows(window, window, made.stride_of(window))  # refuses a stride that does not fit
    return made


def specification_of(recipe: Recipe, original: int, target: int, precision: str) -> Specification:
    """Resolve a recipe's section ``evaluation``; a kept window is measured from the training's length on."""
    given = recipe.evaluation.model_dump()
    if original == target:
        given["windows"] = given["windows"] or doubled_windows(recipe.train_length_of(original), target)
        given["models"] = [name for name in given["models"] if name != "untrained"]
    return specify(
        original,
        target,
        **given,
        texts=[other_source(recipe.data, source) for source in recipe.measured_sources],
        seed=recipe.seed,
        depths="random",
        precision=precision,
    )


@dataclass(frozen=True)
class Segment:
    """A document or a part of it: name, first token's index, int [tokens]."""

    document: str
    begin: int
    tokens: np.ndarray

    @property
    def bytes(self) -> bytes:
        return np.asarray(self.tokens, dtype=np.int64).tobytes()


@dataclass(frozen=True)
class EvaluationText:
    """The documents and segments of one text that one model reads."""

    source: str
    documents: list[Segment]  # the longest first, cut to the tokens that are read
    windows: list[int]  # that every document fills, in tokens, ascending
    segments: dict[int, list[Segment]]  # by their length in tokens
    fingerprint: str  # of the token store
    far: list[Segment] = field(default_factory=list)  # of the target length, to compare training steps

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the documents' names and tokens."""
        return hashlib.sha256(b"".join(s.document.encode() + b"\0" + s.bytes for s in self.documents)).hexdigest()


def read_texts(
    specification: Specification,
    tokenizer: PreTrainedTokenizerBase,
    origins: Sequence[Origin],
    console: Console,
    stores: Mapping[str, TokenStore] | None = None,
) -> list[EvaluationText]:
    """Tokenise the texts, and choose the documents that are read of each.

    ``origins`` have the documents that models were trained on; these are not read. ``stores`` are known token stores by source.
    """
    rule, texts = specification, list[EvaluationText]()
    for text in rule.texts if rule.documents else []:
        store = (stores or {}).get(text.source) or tokenise(text, tokenizer, console)
        among = fair_documents(store, text, origins, console)
        windows = filled_windows(store, among, rule.windows, console)
        limit = rule.tokens_read(windows[-1])
        documents = longest_documents(store, among, at_least=windows[-1], most=rule.documents, limit=limit)
        segments = {length: spread_segments(store, among, length, rule.segments) for length in rule.segment_lengths}
        compares = rule.save_best and not texts  # the first text compares training steps
        far = spread_segments(store, among, rule.target, rule.segments) if compares else []
        if compares and not far:
            raise DataError(
                f"evaluation.save_best=true needs documents of the target length, and {text.source} has none of "
                f"{rule.target:,} tokens; give longer text by evaluation.source, or set evaluation.save_best=false"
            )
        texts.append(EvaluationText(text.source, documents, windows, segments, store.fingerprint, far))
        number, first = counted(len(documents), "document"), documents[0]
        about = f"{text.source}: reading {number}, the longest {first.document} ({len(first.tokens):,} tokens read)"
        console.print(about, soft_wrap=True)
    return texts


def fair_documents(store: TokenStore, text: Data, origins: Iterable[Origin], console: Console) -> np.ndarray:
    """Return the documents that no model was trained on: int64 indices into ``store``.

    Training documents are matched by text, and by name in the same source, where a document may have been edited. The embedded
    model was trained on the standard library: of that only the held-out tenth is read.
    """
    fair = np.arange(len(store))
    shares = [Data().held_out] if text.source == "stdlib" else []
    for origin in origins:
        fair = fair[~np.isin(store.digests[fair], origin.documents)]
        trained = origin.data
        ours, theirs = Path(text.source).resolve(), Path(trained.source).resolve()
        same = trained.source == text.source or (ours == theirs and ours.exists())
        if same and trained.split == text.split:
            shares.append(trained.held_out)
    if shares:  # a document held out at a small share is held out at every larger one
        fair = np.intersect1d(fair, split_by_name(store, min(shares))[1])
    if len(fair) < len(store):
        console.print(f"{text.source}: {len(fair):,} of {len(store):,} documents are not for training, and are read")
    return fair


def longest_first(store: TokenStore, candidates: np.ndarray) -> np.ndarray:
    """Sort documents by length, the longest first."""
    return candidates[np.argsort(-store.lengths[candidates], kind="stable")]


def filled_windows(store: TokenStore, candidates: np.ndarray, windows: Sequence[int], console: Console) -> list[int]:
    """Return the windows that the longest candidate fills, ascending; print those left out."""
    if len(candidates) == 0:
        raise DataError(f"all {counted(len(store), 'document')} are for training; {_FIX}, or raise data.held_out")
    first = longest_first(store, candidates)[0]
    longest, name = int(store.lengths[first]), store.names[first]
    filled = sorted({window for window in windows if window <= longest})
    if not filled:
        raise DataError(
            f"the longest document, {name}, has {longest:,} tokens and does not fill a window of {min(windows):,}; {_FIX}, or a "
            "smaller window"
        )
    if missing := sorted(set(windows).difference(filled)):
        shown = ", ".join(f"{window:,}" for window in missing)
        text = f"no perplexity at {shown} tokens: the longest document, {name}, has {longest:,}"
        console.print(text, style="yellow", soft_wrap=True)
    return filled


def longest_documents(
    store: TokenStore, candidates: np.ndarray, *, at_least: int, most: int, limit: int | None
) -> list[Segment]:
    """Take the ``most`` longest of ``candidates`` that have ``at_least`` tokens, each cut to its first ``limit``."""
    if limit is not None and limit < at_least:
        raise RecipeError(
            f"tokens_per_document {limit:,} must be at least the largest window, {at_least:,}; raise it, or lower the windows"
        )
    order = longest_first(store, candidates)
    chosen = order[store.lengths[order] >= at_least][:most]
    return [Segment(store.names[i], 0, np.asarray(store.document(int(i))[:limit])) for i in chosen]


def spread_segments(store: TokenStore, candidates: np.ndarray, length: int, most: int) -> list[Segment]:
    """Cut ``candidates`` into disjoint segments of ``length`` tokens, and take the first ``most``.

    The first segment of every document comes before the second of any: documents differ more than parts of a document.
    """
    places = [
        (begin, rank, int(document))
        for rank, document in enumerate(longest_first(store, candidates))
        for begin in range(0, int(store.lengths[document]) - length + 1, length)
    ]
    return [
        Segment(store.names[d], begin, store.span(d, begin, begin + length)) for begin, _, d in sorted(places)[:most]
    ]


def longest_segment(window: int) -> int:
    """Return the largest length of a segment of other text: inside ``window``, and with enough segments."""
    return min(window, _TOKENS // FEWEST_SEGMENTS)


def most_segments(length: int) -> int:
    """Return the largest number of segments of ``length`` tokens of a document of other text."""
    return min(_SEGMENTS, _TOKENS // length)


def cut_segments(document: str, tokens: np.ndarray, window: int) -> list[Segment]:
    """Cut a document, int64 [tokens], into eight or more segments of one length, at most ``window``."""
    length = min(longest_segment(window), len(tokens) // FEWEST_SEGMENTS)
    number = min(len(tokens) // length, most_segments(length)) if length > 1 else 0
    return [Segment(document, n * length, tokens[n * length : (n + 1) * length]) for n in range(number)]


def other_text(
    tokenizer: PreTrainedTokenizerBase, window: int, origins: Sequence[Origin], console: Console
) -> EvaluationText:
    """Return segments of at most ``window`` tokens of every kind of other text."""
    trained_on = np.concatenate([np.empty(0, dtype="<u8"), *(origin.documents for origin in origins)])
    segments: dict[int, list[Segment]] = {}
    texts = [shipped_text(kind) for kind in KINDS]
    for document, ids in zip(map(Document, KINDS, texts), text_encoder(tokenizer)(texts), strict=True):
        if np.isin(np.frombuffer(document.digest, dtype="<u8"), trained_on):
            text = f"the {document.name} that ships with skipwise is training text, and is not read"
            console.print(text, style="yellow")
            continue
        tokens = np.asarray(ids, dtype=np.int64)
        for segment in cut_segments(document.name, tokens, window):
            if tokens[0] == tokenizer.bos_token_id:
                segment.tokens[0] = tokens[0]
            segments.setdefault(len(segment.tokens), []).append(segment)
    return EvaluationText(OTHER_TEXT, [], [], segments, fingerprint="")

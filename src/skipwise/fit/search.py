"""The search: references first, then three numbers by a trust-region method, then the best that every engine serves.

The three numbers are the pair c from which on the divisor is the whole factor, the power p of the way there, and k of the
attention factor 1 + k ln s (``skipwise.method.interpolation``, ``power``). The objective is ``Fit.total``.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.optimize import minimize

from skipwise.data.store import TokenStore, check_vocabulary, split_by_name, tokenise
from skipwise.errors import DataError, RunError, counted
from skipwise.evaluation.evaluate import measuring_seconds
from skipwise.evaluation.plan import Workload
from skipwise.evaluation.specification import fair_documents, longest_first
from skipwise.fit.result import FILE, PUBLISHED, Candidate, Fit, read_fit
from skipwise.fit.score import Score, Windows, answer_losses, by_place, draw_windows, skipped
from skipwise.method.interpolation import ATTENTION, POWER, POWER_SLOW, RopeSettings, pair_of, turns_of
from skipwise.method.lengths import SHORT_WINDOW, WINDOW, format_length
from skipwise.model.config import Origin, load_config, read_origin, read_rope_origin, weights_fingerprint
from skipwise.model.cost import ForwardCost, Speed, training_seconds
from skipwise.model.extension import Extension, extension_of, plan_extension, set_frequencies
from skipwise.model.forward import choose_precision, default_device, dtype_of
from skipwise.model.loading import load_model, load_tokenizer, save_extended
from skipwise.progress import doing, progress
from skipwise.recipes.names import short_name
from skipwise.recipes.schema import AUTO, FITTED, Data, Recipe
from skipwise.results.files import default_cache, short_digest
from skipwise.training import processes

_DENSE = 4096  # tokens, at least, of the contiguous window, where the target has as many
# Documents, and the window in original lengths; the first pair that fits the time is read.
_AMOUNTS = ((2, math.inf), (1, math.inf), (2, 4.0), (1, 4.0), (2, 2.0), (1, 2.0), (1, 1.5), (1, 1.25))
_TRUSTED = 16  # factor up to which windows of a few original lengths rank settings (docs/method.md)
_HOPELESS = 0.5  # nats per token: a candidate that loses this much more after a skip is not read in one window
_FEWEST = 12  # candidates that the time should hold; else less is read of each
_STEPS = (0.08, 0.5, 0.02)  # first steps of the search: c as a share of the pairs, ln p, k
_LAST = 0.15  # of these steps, the last
_SEARCHED = 20  # candidates of the search, at most
_PLAIN = 5  # candidates after the search, of what every engine serves, with the answers of all
_MOST = _SEARCHED + 9  # with those that are always measured
_SHARE, _LEAST = 0.1, 3.0  # of a run's training time for its fit; minutes


def fit(
    model: str, *, target: int | None, data: Data, out: Path | None, minutes: float, seed: int, console: Console
) -> tuple[Fit, Path]:
    """Measure interpolations of a model, without training, and return the fit and its folder."""
    config, origin, read = load_config(model), read_rope_origin(model), read_origin(model)
    template = plan_extension(
        config,
        target_length=target,
        original_length=origin.original_length if origin else None,
        interpolation="none",
        base_theta=origin.rope_theta if origin else None,
    )
    original, reached = template.rope.original_length, template.target_length
    folder = out or Path("runs") / f"fit-{short_name(model)}-{format_length(reached)}"
    resumed = (folder / FILE).exists()
    if not resumed and folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no fit; give another --out")
    tokenizer = load_tokenizer(model)
    store = tokenise(data, tokenizer, console)
    check_vocabulary(store, config.get_text_config().vocab_size)
    windows = draw_windows(_documents(store, data, read, template, console), tokenizer, original, reached, seed)
    with doing("loading the model", console):
        device = default_device()
        precision = choose_precision("auto", device)
        dtype = dtype_of(precision if device.type == "cuda" else "float32")
        loaded = load_model(model, template, dtype=dtype, device=device).eval()
    cost, speed = ForwardCost.of(loaded), Speed.measured(config, precision, device)
    known_by = weights_fingerprint(model), data.source, store.fingerprint
    result = Fit(model, *known_by, original, reached, seed)
    if resumed:
        result = result.resumed(folder)
        windows = windows.shortened(result.documents, result.dense)
        if result.finished:
            console.print(f"{folder} holds a finished fit; to search again, give another --out", style="yellow")
    else:
        windows = _affordable(windows, partial(_seconds, cost=cost, speed=speed), minutes * 60)
        result.documents, result.dense = len(windows.documents), windows.dense
        with doing("reading the base in its own window", console):
            result.base = by_place(loaded, windows, precision, original)
        folder.mkdir(parents=True, exist_ok=True)
    expected = max(_FEWEST, min(_MOST, int(minutes * 60 / _seconds(windows, cost, speed))))
    with progress("measuring interpolations", expected, console) as work:

        def measure(role: str, extension: Extension) -> float:
            known = next((candidate for candidate in result.candidates if candidate.extension == extension), None)
            if known is None:
                started, best = time.monotonic(), min(result.candidates, key=result.total, default=None)
                set_frequencies(loaded, extension)
                score = Score(skipped(loaded, windows, precision))
                if best is None or score.harm(0) <= best.score.harm(0) + _HOPELESS:
                    score = replace(score, places=by_place(loaded, windows, precision, windows.dense))
                known = Candidate(role, extension, score)
                result.candidates.append(known)
                result.seconds += time.monotonic() - started
                result.write(folder)
            gain = result.total(result.candidates[0]) - min(map(result.total, result.candidates))
            work.reach(min(work.done + 1, expected), status=f"best so far: {gain:.2f} nats below YaRN")
            return result.total(known)

        if not result.finished:
            _search(template, measure, result, minutes * 60)
            for candidate in result.shown():  # for the table alone
                if candidate.score.places and candidate.score.answers is None:
                    set_frequencies(loaded, candidate.extension)
                    score = replace(candidate.score, answers=answer_losses(loaded, windows, precision))
                    result.candidates[result.candidates.index(candidate)] = replace(candidate, score=score)
            result.finished = True
            result.write(folder)
        work.reach(expected)
    return result, folder


def write_model(result: Fit, folder: Path) -> None:
    """Write the model as a stock checkpoint with the recommended settings."""
    if folder.exists():  # by the same command
        return
    extension, config, read = result.best.extension, load_config(result.model), read_origin(result.model)
    loaded = load_model(result.model, extension, dtype=config.dtype or "float32")
    trained = (read.data, read.documents) if read else (Data(source="none", held_out=0), np.empty(0, dtype="<u8"))
    rope = extension.rope
    origin = Origin(
        result.model, rope.original_length, *trained, result.fingerprint, result.target, rope_theta=rope.theta
    )
    save_extended(loaded, load_tokenizer(result.model), extension, folder, origin=origin)


def _documents(
    store: TokenStore, data: Data, origin: Origin | None, template: Extension, console: Console
) -> list[np.ndarray]:
    """Return the middle of the two longest documents, at most the target.

    Documents that are held out stay unread where there are others: they are for measuring what was trained.
    """
    original = template.rope.original_length
    fair = fair_documents(store, data, [origin] if origin else [], console)
    kept = np.intersect1d(fair, split_by_name(store, data.held_out)[0])
    chosen = longest_first(store, kept if len(kept) else fair)
    target, best = template.target_length, min(template.target_length, max(4 * original, _DENSE))
    longest = int(store.lengths[chosen[0]]) if len(chosen) else 0
    least = min(math.ceil(_AMOUNTS[-1][1] * original), target)
    if longest < least:
        raise DataError(
            f"{data.source}: the longest document to read has {longest:,} tokens, and a fit needs {least:,} or more, best {best:,}; "
            "give longer text by --data"
        )
    if longest < best:
        text = f"the longest document has {longest:,} tokens; farther distances are measured by skips alone"
        console.print(f"{text}. Best are documents of {best:,}", style="yellow")
    long = [int(i) for i in chosen[:2] if store.lengths[i] >= least]
    begins = [max(0, int(store.lengths[i]) - target) // 2 for i in long]  # a book begins with titles and contents
    return [store.span(i, begin, begin + target) for i, begin in zip(long, begins, strict=True)]


def _seconds(windows: Windows, cost: ForwardCost, speed: Speed) -> float:
    """Forecast the seconds of a candidate: windows, chunks alone, chunks at each distance."""
    chunks = int(windows.chunks.size * (len(windows.skips) + 0.5))
    parts = [
        Workload("windows", windows.dense, len(windows.documents) * windows.dense),
        Workload("chunks", windows.chunks.shape[1], chunks),
    ]
    return sum(measuring_seconds(parts, cost, speed).values())


def _affordable(windows: Windows, seconds_of: Callable[[Windows], float], seconds: float) -> Windows:
    """Return the largest windows that leave time for enough candidates."""
    for documents, times in _AMOUNTS:
        shorter = windows.shortened(documents, int(min(windows.dense, max(times * windows.original, _DENSE))))
        if (each := seconds_of(shorter)) * (_MOST if times == math.inf else _FEWEST) <= seconds:
            break
    if each > seconds:
        raise RunError(
            f"one candidate takes about {each / 60:.0f} minutes here, and --minutes is {seconds / 60:g}; give at least "
            f"{math.ceil(_FEWEST / 2 * each / 60)}"
        )
    return shorter


def _search(template: Extension, measure: Callable[[str, Extension], float], result: Fit, seconds: float) -> None:
    """Measure references, COBYQA's proposals while time lasts, then YaRN and theta."""
    rope, spread = template.rope, math.log(template.factor)
    pairs = rope.dim // 2

    def by(name: str, **settings: float) -> Extension:
        digits = {key: float(f"{value:.4g}") for key, value in settings.items()}  # more do not change the loss
        return replace(template, interpolation=name, settings=RopeSettings(**digits))  # type: ignore[arg-type]

    roles = {"yarn": PUBLISHED, "power": "power, no search", "ntk": "NTK", "linear": "linear", "none": "none"}
    for name, role in roles.items():
        measure(role, by(name))
    start = np.array([pair_of(rope, POWER_SLOW) / pairs, math.log(POWER), ATTENTION])
    worst = max(total for total in map(result.total, result.candidates) if total < math.inf) + 1

    def objective(x: np.ndarray) -> float:
        if result.seconds * (1 + _PLAIN / len(result.candidates)) > seconds:
            raise StopIteration
        if not x.any():
            return measure("power, no search", by("power"))
        c, p, k = start + x * _STEPS
        slow, power = turns_of(rope, float(np.clip(c * pairs, 1, pairs - 1))), float(np.clip(math.exp(p), 0.5, 12))
        attention = 1 + float(np.clip(k, 0, 0.2)) * spread
        return min(measure("fitted", by("power", beta_slow=slow, power=power, attention_factor=attention)), worst)

    if template.factor <= _TRUSTED or result.dense == result.target:
        with suppress(StopIteration):
            options = {"initial_tr_radius": 1.0, "final_tr_radius": _LAST, "maxfev": _SEARCHED}
            minimize(objective, np.zeros(3), method="COBYQA", options=options)
    powers = [candidate for candidate in result.candidates if candidate.extension.interpolation == "power"]
    best = min(powers, key=result.total).extension.settings
    attention, slow = best.attention_factor or 1 + ATTENTION * spread, best.beta_slow or POWER_SLOW
    for beta_slow in (1.0, 2.0, 4.0) if slow < 2 else (1.0, slow):
        measure("YaRN, fitted", by("yarn", attention_factor=attention, beta_slow=beta_slow))
    measure("theta", by("theta", rope_theta=rope.theta * template.factor ** (rope.dim / pair_of(rope, 1) / 2)))


def fitted_recipe(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> tuple[Recipe, Path | None]:
    """Return the recipe with the settings of its fit, and the fit's file.

    ``fitted`` searches for a tenth of the training's time, and keeps the fit in the user's cache. ``auto`` does so from 8 times
    the window on, and takes YaRN below and where no fit can be made. A path is that of a ``fit.json``. A run that is resumed
    keeps its fit.
    """
    if not recipe.is_fitted or recipe.target == WINDOW:
        return recipe, None
    with processes.together():
        extension, fingerprint = extension_of(load_config(recipe.model), recipe), weights_fingerprint(recipe.model)
    if resume and out is not None and (out / FILE).is_file():
        path = out / FILE
    elif recipe.interpolation == AUTO:
        if extension.interpolation == "yarn":
            return _with(recipe, {"interpolation": "yarn"}), None
        try:
            path = _searched(recipe, extension, fingerprint, console)
        except (DataError, RunError) as error:
            console.print(f"interpolation: yarn, because no fit can be made: {error}", style="yellow", soft_wrap=True)
            return _with(recipe, {"interpolation": "yarn"}), None
    elif recipe.interpolation == FITTED:
        path = _searched(recipe, extension, fingerprint, console)
    else:
        path = Path(recipe.interpolation)
    result, target = read_fit(path), extension.target_length
    if (result.fingerprint, result.target) != (fingerprint, target):
        raise RunError(
            f"{path} is a fit of {result.model} for {result.target:,} tokens, not of {recipe.model} for {target:,}; run skipwise fit "
            f"{recipe.model} --target {target}"
        )
    if not result.finished:
        raise RunError(
            f"{path} is not finished ({counted(len(result.candidates), 'candidate')} measured); run the same skipwise fit again"
        )
    console.print(f"fitted interpolation: {result.best.extension.description}, from {path}", soft_wrap=True)
    return _with(recipe, result.best.recipe), path


def _searched(recipe: Recipe, extension: Extension, fingerprint: str, console: Console) -> Path:
    """Return the cached fit of a recipe; the first process makes it."""
    target, original, training = extension.target_length, extension.rope.original_length, recipe.training
    key = short_digest(f"{fingerprint} {target} {recipe.data.model_dump_json()} {recipe.seed}".encode())
    folder = default_cache() / "fits" / key
    with processes.together(rank_0_first=True):
        if not ((folder / FILE).is_file() and read_fit(folder / FILE).finished):
            device = default_device()
            precision = choose_precision("auto", device)
            tokens = training.max_steps * training.global_batch_size * recipe.train_length_of(original)
            config, window = load_config(recipe.model), min(original, SHORT_WINDOW)
            minutes = max(_SHARE * training_seconds(config, tokens, window, precision, device) / 60, _LEAST)
            fit(
                recipe.model, target=target, data=recipe.data, out=folder, minutes=minutes, seed=recipe.seed, console=console
            )  # fmt: skip
    return folder / FILE


def _with(recipe: Recipe, settings: dict[str, object]) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(exclude_unset=True), **settings})

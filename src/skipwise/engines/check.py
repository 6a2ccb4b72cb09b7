"""``skipwise check`` and the check of an exported file: read, compare, and say what stays unproved."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import snapshot_download
from rich.console import Console
from rich.table import Table

from skipwise.engines.compare import GGUF_TOLERANCES, TOLERANCE, Comparison, compare, plan_request
from skipwise.engines.gguf import write_gguf
from skipwise.engines.request import Engine, Request, engine_here
from skipwise.errors import EngineError, ModelError, RecipeError, pip_install
from skipwise.model.config import load_config, resolve
from skipwise.model.legacy_config import contradictions
from skipwise.model.loading import load_tokenizer
from skipwise.model.lora import base_of
from skipwise.model.origin import promised_length, read_origin
from skipwise.model.rope import original_length
from skipwise.model.sealed import require_unchanged

_SHORTEST = 64  # tokens that are read


def model_folder(name: str) -> str:
    """Return the folder of a model; of a name on the hub its files, downloaded.

    Raises:
        ModelError: there is none, or it is an adapter.
    """
    if name.endswith(".gguf"):
        raise ModelError(
            f"{name} is a GGUF file: skipwise convert FILE.gguf OUT makes a checkpoint of it and checks that; skipwise export "
            "checks the file that it writes"
        )
    folder = resolve(name)
    require_unchanged(Path(folder))
    load_config(folder)  # refuses what is no config
    if not Path(folder).is_dir():
        folder = snapshot_download(folder)
    if base_of(folder):
        raise ModelError(f"{folder} is an adapter, and engines read whole models: extend again with lora.saved=merged")
    single, index = (Path(folder) / name for name in ("model.safetensors", "model.safetensors.index.json"))
    if single.exists() and index.exists():
        raise ModelError(
            f"{folder} holds weights twice, {single.name} and those of {index.name}; delete the stale ones"
        )
    return folder


def check(model: str, engines: Sequence[Engine], console: Console, *, length: int | None = None) -> list[Comparison]:
    """Compare what engines read of a checkpoint with this environment's transformers.

    llama.cpp reads a GGUF file with weights of type f32, made for the check. ``length`` in tokens: read no farther, where
    the target is too long for this machine.
    """
    settings = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    for key in contradictions(settings):
        console.print(
            f"config.json: {key} says otherwise than rope_parameters; transformers 5 reads {key} first, and others the one "
            "or the other. Make both say the same",
            style="yellow",
            soft_wrap=True,
        )
    ours = engine_here("transformers")
    if set(engines) <= {ours}:
        raise EngineError(
            "nothing to compare with: this environment's transformers is the reference, and no other engine was named or found. "
            f"{pip_install('gguf')} for llama.cpp, or give --python PATH of an environment with vLLM or another transformers "
            "(docs/engines.md)"
        )
    request = _request(model, length)
    reading = f"reading {request.max_length:,} tokens with"
    with console.status(f"{reading} transformers {ours.version}"):
        reference = ours.answer(request)
    made = []
    for engine in engines:
        if engine == ours:
            continue
        with console.status(f"{reading} {engine.name} {engine.version}"), TemporaryDirectory() as at:
            if engine.name != "llama.cpp":
                made.append(compare(reference, engine, request, TOLERANCE))
                continue
            file = Path(at) / "model.gguf"
            try:
                write_gguf(Path(model), file, "f32", console)
            except EngineError as error:
                made.append(Comparison(engine, {}, False, TOLERANCE, str(error)))
            else:
                made.append(compare(reference, engine, request.of(file), GGUF_TOLERANCES["f32"]))
                if made[-1].note:
                    console.print(f"llama.cpp's tokenizer: {made[-1].note}", soft_wrap=True)
    return made


def check_gguf(file: Path, model: str, kind: str, console: Console, length: int | None = None) -> Comparison:
    """Compare what llama.cpp reads of a GGUF file with what transformers reads of the checkpoint behind it."""
    engine, request = engine_here("llama.cpp"), _request(model, length)
    with console.status(f"reading {request.max_length:,} tokens with transformers and llama.cpp"):
        reference = engine_here("transformers").answer(request)
        return compare(reference, engine, request.of(file), GGUF_TOLERANCES[kind])


def _request(model: str, length: int | None) -> Request:
    return plan_request(model, load_tokenizer(model), *lengths_of(model, length))


def lengths_of(model: str, length: int | None) -> tuple[int, int]:
    """Return the original length, and how far to read, in tokens; at least 64 are read.

    Raises:
        ModelError: the config has no length, or a shorter one.
        RecipeError: ``length`` is shorter.
    """
    config = load_config(model)
    origin = read_origin(model)
    target = promised_length(model)
    if target is None or target < _SHORTEST:
        raise ModelError(
            f"{model}: max_position_embeddings = {target} in config.json must be at least {_SHORTEST} tokens; correct it"
        )
    original = min((origin.original_length if origin else None) or original_length(config), target)
    if length is None or length >= target:
        return original, target
    if length < _SHORTEST:
        raise RecipeError(f"--length {length} must be at least {_SHORTEST} tokens; raise it")
    return min(original, length), length


def comparison_table(model: str, made: Sequence[Comparison]) -> Table:
    """The differences by engine and depth, the largest above the mean."""
    table = Table(
        title=f"{model} against transformers: next-token log-probabilities after so many tokens, largest and mean "
        "difference in nats",
        title_justify="left",
        show_lines=True,
    )
    depths = list(dict.fromkeys(depth for one in made for depth in one.depths))
    table.add_column("engine")
    for column in (*(f"{depth:,}" for depth in depths), "greedy", "reads"):
        table.add_column(column, justify="right")
    for one in made:
        cells = [f"{one.depths[at][0]:.1e}\n{one.depths[at][1]:.1e}" if at in one.depths else "" for at in depths]
        greedy = "" if not one.depths else "equal" if one.same_greedy else "other"
        far = f"otherwise\n> {one.tolerance:g}"
        verdict = "the same" if one.agrees else "not" if not one.depths else "other\ntokens" if one.problem else far
        table.add_row(f"{one.engine.name}\n{one.engine.version}", *cells, greedy, verdict)
    return table

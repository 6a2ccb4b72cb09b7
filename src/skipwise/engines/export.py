"""``skipwise export``: a GGUF file that llama.cpp has been seen to read right, and its Modelfile."""

import json
import shlex
from functools import partial
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.engines.check import check_gguf, comparison_table, lengths_of, model_folder
from skipwise.engines.gguf import TYPES, modelfile_of, require_converter, write_gguf, write_modelfile
from skipwise.engines.request import engine_here
from skipwise.errors import EngineError, RunError, one_of
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.names import short_name
from skipwise.results.files import keep_for_this_process, write_checksum


def export(
    model: str, *, to: str, kind: str, out: Path | None, checked: bool, length: int | None, console: Console
) -> Path:
    """Write the model as GGUF and return the file.

    Until llama.cpp has read it as transformers reads the checkpoint, tokens and predictions, the file is called
    ``NAME.unchecked``. A file that is there already is not overwritten.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp reads the file otherwise.
        RunError: ``out`` exists, or cannot be a GGUF file.
    """
    one_of("--to", to, ("gguf",))
    one_of("--type", kind, TYPES)
    folder = Path(model_folder(model)).resolve()
    out = out or Path(f"{short_name(str(folder))}-{kind}.gguf")
    unchecked = out.with_name(f"{out.name}.unchecked") if out.name else out
    _require_free(out)
    keep_for_this_process(out)
    lengths_of(str(folder), length)  # refuses what is no length of this model
    require_converter()
    if checked:
        engine_here("llama.cpp")  # before minutes of writing
    prove = partial(_prove, folder=folder, kind="f16", length=length, console=console) if checked else None
    write_gguf(folder, unchecked, kind, console, prove=prove)
    if checked:
        try:
            _prove(unchecked, folder, kind, length, console)
        except EngineError as error:
            raise EngineError(f"{error}. It was left as {unchecked}; do not use it") from None
        except BaseException:
            unchecked.unlink(missing_ok=True)
            raise
    _require_free(out)
    context = lengths_of(str(folder), None)[1]
    tokenizer = load_tokenizer(str(folder))
    modelfile = write_modelfile(out, context, tokenizer)
    checksum = write_checksum(unchecked, out.name)
    unchecked.replace(out)  # last, so that after a kill the same command writes all again
    _say_ends(folder, tokenizer, console)
    file = shlex.quote(str(out)) if not out.name.startswith("-") else shlex.quote(f"./{out}")
    console.print(f"file:   {out} ({out.stat().st_size / 1e6:,.0f} MB; {checksum.name})", soft_wrap=True)
    console.print(f"ollama: ollama create NAME -f {shlex.quote(str(modelfile))}", soft_wrap=True)
    console.print(f"server: llama-server -m {file} -c {context}", soft_wrap=True)
    return out


def _require_free(out: Path) -> None:
    """Require the names that are written to be free, and the folder to be there; it is made if it is missing."""
    if out.suffix != ".gguf":
        raise RunError(f"--out {str(out)!r} must be the name of a file that ends in .gguf")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        modelfile = modelfile_of(out)
        ours = modelfile.is_file() and modelfile.read_text(encoding="utf-8").startswith(f"FROM ./{out.name}\n")
        taken = [file for file in (out, modelfile) if file.exists()]
    except (OSError, ValueError) as error:
        raise RunError(f"{out} cannot be written ({error}); give another --out") from None
    if taken and not (ours and taken == [modelfile]):
        raise RunError(f"{taken[0]} exists and is not overwritten; give another --out")


def _prove(file: Path, folder: Path, kind: str, length: int | None, console: Console) -> None:
    """Require llama.cpp to read a file as transformers reads the checkpoint."""
    compared = check_gguf(file, str(folder), kind, console, length)
    console.print(comparison_table(f"weights of type {kind}", [compared]))
    if compared.note:
        console.print(f"llama.cpp's tokenizer: {compared.note}", soft_wrap=True)
    if not compared.agrees:
        why = compared.problem or "it predicts other tokens than the checkpoint"
        raise EngineError(f"llama.cpp reads the file wrong: {why}")


def _say_ends(folder: Path, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
    """Say which tokens end a text for transformers and not for llama.cpp, whose file names one alone."""
    path = folder / "generation_config.json"
    ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
    others = sorted({*(ends if isinstance(ends, list) else [ends])} - {None, tokenizer.eos_token_id})
    if others:
        console.print(
            f"end of text: transformers stops at tokens {others} too (generation_config.json); the file names "
            f"{tokenizer.eos_token_id} alone, so stop at the others where you serve it",
            style="yellow",
            soft_wrap=True,
        )

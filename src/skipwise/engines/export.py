"""``skipwise export``: a GGUF file that llama.cpp has been seen to read right, and its Modelfile."""

from pathlib import Path

from rich.console import Console

from skipwise.engines.check import check_gguf, comparison_table, model_folder
from skipwise.engines.gguf import TYPES, modelfile_of, require_converter, write_gguf, write_modelfile
from skipwise.engines.request import find_engines
from skipwise.errors import EngineError, RunError, one_of
from skipwise.model.loading import load_config, load_tokenizer


def export(
    model: str, *, to: str, kind: str, out: Path | None, checked: bool, length: int | None, console: Console
) -> Path:
    """Write the model as GGUF and return the file.

    Until llama.cpp has read it as transformers reads the checkpoint, the file is called ``NAME.unchecked``. A file that
    is there already is not overwritten.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp reads the file otherwise.
    """
    one_of("--to", to, ("gguf",))
    one_of("--type", kind, TYPES)
    folder = Path(model_folder(model)).resolve()
    name = folder.parent.name if folder.name == "model" else folder.name
    out = out or Path(f"{name}-{kind}.gguf")
    for file in (out, modelfile_of(out)):
        if file.exists():
            raise RunError(f"{file} exists and is not overwritten; give another --out")
    require_converter()
    if checked:
        find_engines(["llama.cpp"], [])  # before minutes of writing
    unchecked = out.with_name(out.name + ".unchecked")
    write_gguf(folder, unchecked, kind, console)
    if checked:
        compared = check_gguf(unchecked, str(folder), kind, console, length)
        console.print(comparison_table(out.name, [compared]))
        if not compared.agrees:
            why = compared.problem or "it predicts other tokens than the checkpoint"
            raise EngineError(f"llama.cpp reads the file wrong: {why}. It was left as {unchecked}; do not use it")
    unchecked.replace(out)
    config = load_config(str(folder)).get_text_config()
    modelfile = write_modelfile(out, config.max_position_embeddings, load_tokenizer(str(folder)))
    console.print(f"file:   {out} ({out.stat().st_size / 1e6:,.0f} MB)", soft_wrap=True)
    console.print(f"ollama: ollama create NAME -f {modelfile}", soft_wrap=True)
    console.print(f"server: llama-server -m {out} -c {config.max_position_embeddings}", soft_wrap=True)
    return out

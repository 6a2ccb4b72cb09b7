"""A GGUF file -> a stock checkpoint with its tokenizer: ``skipwise convert FILE.gguf OUT``.

llama.cpp, where it is installed, reads the same file and has to predict the same.
"""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from safetensors import SafetensorError

from skipwise.engines.compare import compare, plan_request
from skipwise.engines.quantise import writer_like
from skipwise.engines.request import Engine, engine_here, find_engines, missing
from skipwise.errors import EngineError, RunError, reason
from skipwise.model.config import load_config
from skipwise.model.gguf import GGUFFile, write_checkpoint
from skipwise.model.gguf_tokenizer import SPLITS
from skipwise.model.loading import load_tokenizer
from skipwise.model.rope import original_length
from skipwise.results.files import new_folder, require_checksum, require_free

_TOLERANCE = 5e-3  # of the mean at each depth, in nats; both sides compute in float32 from the same numbers
_READ = 2048  # tokens that the check reads at most


def convert_gguf(file: Path, out: Path, console: Console, *, checked: bool = True) -> Path:
    """Write the model of a GGUF file to ``out`` as a stock checkpoint with its tokenizer, and return ``out``.

    The weights have the types that ``write_checkpoint`` gives them. Memory holds the model once.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp reads the file otherwise.
        ModelError: the file is damaged, lacks a tokenizer, or is one that transformers cannot read.
        RunError: ``out`` exists or cannot be written.
    """
    require_free(out)
    source = GGUFFile(file)
    require_checksum(file)
    console.print(
        f"{source.architecture} with weights of type {source.types} -> {str(source.dtype)[6:]}", soft_wrap=True
    )
    unchecked = out.with_name(f"{out.name}.unchecked")
    require_free(unchecked)
    try:
        with new_folder(out) as partial:
            write_checkpoint(source, partial)
            if checked and (engine := next((one for one in find_engines([], []) if one.name == "llama.cpp"), None)):
                try:
                    _check(source, partial, engine, console)
                except EngineError as error:
                    os.replace(partial, unchecked)
                    raise EngineError(f"{error}. The checkpoint was left as {unchecked}; do not use it") from error
            else:
                _say_unchecked(source, checked, console)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{out} cannot be written ({reason(error)}); make room, or give another folder") from error
    if source.quantised:
        console.print(
            f"The weights come from {source.types}. What quantisation cost cannot be won back.", soft_wrap=True
        )
    return out


def _say_unchecked(source: GGUFFile, asked: bool, console: Console) -> None:
    why = missing("llama.cpp") if asked else "--no-check"
    console.print(f"unchecked: whether it predicts what llama.cpp does was not tried ({why})", soft_wrap=True)
    if source.pre_tokenizer not in SPLITS:
        kind = source.pre_tokenizer or source.get("tokenizer.ggml.model")
        what = f"whether a tokenizer of kind {kind} gives llama.cpp's tokens was not tried; they may be others"
        console.print(f"tokenizer: {what}", style="yellow", soft_wrap=True)


def _check(source: GGUFFile, folder: Path, llama_cpp: Engine, console: Console) -> None:
    """Compare tokens and predictions with llama.cpp's on the same file.

    Raises:
        EngineError: the predictions differ, or llama.cpp cannot read the file.
    """
    tokenizer, config = load_tokenizer(str(folder)), load_config(str(folder))
    window = min(config.max_position_embeddings, _READ)
    request = plan_request(folder, tokenizer, min(original_length(config), window), window)
    with TemporaryDirectory(dir=folder.parent) as at, console.status("reading the file with llama.cpp"):
        reference = engine_here("transformers").answer(request)
        compared = compare(reference, llama_cpp, request.of(_in_float32(source, Path(at))), _TOLERANCE)
    largest = max((mean for _, mean in compared.depths.values()), default=math.nan)
    if not compared.agrees:
        why = compared.problem or f"they are {largest:.1e} nats apart in the mean, more than {_TOLERANCE:g}"
        raise EngineError(f"transformers does not predict what llama.cpp does from {source.path}: {why}")
    console.print(
        f"checked: next-token log-probabilities are {largest:.1e} nats from llama.cpp's in the mean", soft_wrap=True
    )
    if compared.note:
        console.print(f"tokenizer: {compared.note} from llama.cpp's", style="yellow", soft_wrap=True)


def _in_float32(source: GGUFFile, folder: Path) -> Path:
    """Write the file again with float32 weights: of quantised ones llama.cpp rounds the activations too.

    Matrices are rounded to the checkpoint's type first, so both sides compute with the same numbers.
    """
    from gguf.quants import dequantize

    writer = writer_like(source.reader, folder / "model.gguf")
    for tensor in source.reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, torch.zeros(0).numpy().dtype, 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in source.reader.tensors:
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if len(tensor.shape) > 1:
            values = values.to(source.dtype)
        writer.write_tensor_data(values.float().numpy())
    writer.close()
    return folder / "model.gguf"

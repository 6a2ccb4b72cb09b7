"""Convert a GGUF file to a checkpoint (``skipwise convert FILE.gguf OUT``)."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console

from skipwise.engines.check import compare, engine_here, find_engines, plan_request, print_comparisons
from skipwise.engines.export import rewrite
from skipwise.errors import EngineError, pip_install
from skipwise.model.config import load_config, original_length
from skipwise.model.gguf import GGUFFile, write_checkpoint
from skipwise.model.loading import load_tokenizer
from skipwise.results.files import new_folder

_TOLERANCE = 5e-3  # of the mean difference at each depth, in nats; both sides compute in float32 from the same numbers
_LONGEST = 2048  # tokens that are compared


def convert_gguf(file: Path, out: Path, console: Console, *, checked: bool = True) -> Path:
    """Write the model of a GGUF file as a stock checkpoint.

    It is compared with llama.cpp if that is installed.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp predicts other tokens.
        ModelError: transformers cannot read the file.
        RunError: ``out`` exists.
    """
    with new_folder(out) as folder:
        source = GGUFFile(file)
        console.print(f"{source.architecture}, {source.types} -> {str(source.dtype)[6:]}", soft_wrap=True)
        write_checkpoint(source, folder)
        if not checked or "llama.cpp" not in {engine.name for engine in find_engines()}:
            why = pip_install("gguf") if checked else "--no-check"
            console.print(f"tokens and predictions were not compared with llama.cpp ({why})", soft_wrap=True)
            return out
        config = load_config(folder)
        window = min(config.max_position_embeddings, _LONGEST)
        request = plan_request(folder, load_tokenizer(str(folder)), min(original_length(config), window), window)
        with TemporaryDirectory(dir=out.parent) as work, console.status("comparing with llama.cpp"):
            float32 = Path(work) / "model.gguf"
            _write_float32(source, float32)
            reference = engine_here("transformers").answer(request)
            compared = compare(reference, engine_here("llama.cpp"), request.of(float32), _TOLERANCE)
        print_comparisons([compared], console)
        if not compared.agrees:
            raise EngineError(
                f"transformers does not read {file} as llama.cpp does ({compared.problem or 'see above'}). "
                "Use the model's own checkpoint"
            )
    return out


def _write_float32(source: GGUFFile, out: Path) -> None:
    """Write a GGUF file again with float32 weights.

    With quantised weights llama.cpp rounds the activations too. Matrices are rounded to the checkpoint's type first, so both sides compute with the same numbers.
    """
    import gguf

    def data(tensor: Any) -> tuple[np.ndarray, None]:
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        return values.to(source.dtype if len(tensor.shape) > 1 else torch.float32).float().numpy(), None

    rewrite(source.reader, out, data, gguf.LlamaFileType.ALL_F32)

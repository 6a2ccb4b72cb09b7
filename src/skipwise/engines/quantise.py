"""A GGUF file with weights in types that the converter has none of, quantised by llama.cpp itself.

The package ``xllamacpp`` has no call for it, but its library exports ``ggml_quantize_chunk``, which llama.cpp's own
program uses.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

# Type: llama.cpp's name of the whole file, and the type of the embeddings and the output layer, which are kept finer.
QUANTISED = {"q6_k": ("MOSTLY_Q6_K", "q6_k"), "q5_k": ("MOSTLY_Q5_K_S", "q6_k"), "q4_k": ("MOSTLY_Q4_K_S", "q6_k")}
_FINER = ("token_embd.weight", "output.weight")


def quantise(source: Path, out: Path, kind: str) -> None:
    """Write the GGUF file ``source``, of float16 or float32 weights, as ``out`` with matrices of type ``kind``.

    Matrices whose rows the type's blocks do not divide (256 numbers for q4_k to q6_k) stay as they are.
    """
    import gguf
    from gguf.quants import dequantize

    read = gguf.GGUFReader(source)
    writer = writer_like(read, out)
    file_type, finer = QUANTISED[kind]
    writer.add_file_type(gguf.LlamaFileType[file_type])
    engine = _engine()
    for tensor in read.tensors:
        wanted = gguf.GGMLQuantizationType[(finer if tensor.name in _FINER else kind).upper()]
        numbers, size = gguf.GGML_QUANT_SIZES[wanted]
        shape = [int(length) for length in reversed(tensor.shape)]
        if len(shape) != 2 or shape[1] % numbers or not tensor.name.endswith(".weight"):
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
            continue
        exact = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
        packed = np.empty((shape[0], shape[1] // numbers * size), np.uint8)
        engine(int(wanted), exact.ctypes.data, packed.ctypes.data, 0, *shape, None)
        writer.add_tensor(tensor.name, packed, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def writer_like(source: Any, out: Path) -> Any:
    """Return a writer of the file ``out`` with the settings of a reader, but for the type of its weights."""
    import gguf

    writer = gguf.GGUFWriter(out, source.fields["general.architecture"].contents())
    for field in source.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], of)
    return writer


def _engine() -> Any:
    """llama.cpp's ``ggml_quantize_chunk(type, numbers, packed, start, rows, numbers a row, importance)``."""
    import xllamacpp

    function = ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    counts = [ctypes.c_int64] * 3
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *counts, ctypes.c_void_p]
    return function

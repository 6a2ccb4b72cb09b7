"""Convert a SentencePiece model whose tokenizer class is remote code to a ``tokenizer.json`` with the same tokens.

Stock Llama tokenizers always put a space before a text. Baichuan 2 does not ("Baichuan 2: Open Large-scale Language
Models", 2023, section 2.2), so its first token would differ. The model's ``normalizer_spec`` holds the rule.
"""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, normalizers
from transformers import AutoTokenizer

from skipwise.errors import ModelError, pip_install

_SPACE = "\u2581"  # the lower block that SentencePiece writes for a space


def require_readable(folder: Path) -> None:
    """Require the packages that read ``folder/tokenizer.model``."""
    if any(find_spec(package) is None for package in ("sentencepiece", "google.protobuf")):
        raise ModelError(
            f"{folder / 'tokenizer.model'} is a SentencePiece model, and reading it needs the packages sentencepiece and "
            f"protobuf: {pip_install('sentencepiece')}"
        )


def write_stock_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` from a folder's ``tokenizer.model``, and name a stock class in ``tokenizer_config.json``."""
    schema: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    model = schema.ModelProto()
    path, settings = folder / "tokenizer.model", folder / "tokenizer_config.json"
    about = json.loads(settings.read_text(encoding="utf-8"))
    about.pop("auto_map", None)  # names remote code
    try:
        model.ParseFromString(path.read_bytes())
        # transformers reads the vocabulary and the merges as Llama's.
        settings.write_text(json.dumps(about | {"tokenizer_class": "LlamaTokenizer"}), encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # protobuf, tokenizers and transformers raise types of their own
        raise ModelError(f"{path} cannot be read as a SentencePiece model ({error}); fetch it again") from error
    if model.trainer_spec.model_type != schema.TrainerSpec.BPE:
        raise ModelError(f"{path} is not a byte-pair model; only those are converted. Put a stock tokenizer there")
    rule, backend = model.normalizer_spec, tokenizer.backend_tokenizer
    steps: list[normalizers.Normalizer] = []
    if rule.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rule.precompiled_charsmap))
    if rule.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if rule.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    backend.pre_tokenizer = None
    undone = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*undone, *[decoders.Strip(" ", 1, 0)] * rule.add_dummy_prefix])
    backend.save(str(folder / "tokenizer.json"))
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

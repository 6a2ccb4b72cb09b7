"""Payloads: files that make a folder, the canary, if any program runs what they hold, and names that would write."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet

Plant = Callable[[Path, Path], Any]  # puts a payload into a folder; the second is the canary


@dataclass(frozen=True)
class Bomb:
    """Makes the canary where it is unpickled."""

    canary: Path

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return os.mkdir, (str(self.canary),)


def code(canary: Path) -> str:
    """Python that makes the canary where it is imported; then it serves as any class or function that is looked for."""
    return f"import os\nos.makedirs({str(canary)!r}, exist_ok=True)\n__getattr__ = lambda name: dict\n"


def template(canary: Path) -> str:
    """A chat template that leaves Jinja, in the ways that are known."""
    make = f"os.makedirs({str(canary)!r}, exist_ok=True)"
    return (
        f"{{{{ cycler.__init__.__globals__.{make} }}}}{{{{ lipsum.__globals__.{make} }}}}"
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ self._TemplateReference__context }}"
    )


def yaml_texts(canary: Path) -> dict[str, str]:
    """YAML values whose tags would run something, by a name of the way."""
    make = f"[{str(canary)!r}]"
    return {
        "apply": f"!!python/object/apply:os.mkdir {make}",
        "apply with keywords": f"!!python/object/apply:os.mkdir {{args: {make}}}",
        "new": f"!!python/object/new:os.mkdir {make}",
        "name": "!!python/name:os.mkdir",
        "module": "!!python/module:os",
        "object": "!!python/object:pathlib.Path {}",
        "merged": f"{{<<: !!python/object/apply:os.mkdir {make}}}",
        "aliased": f"[&make !!python/object/apply:os.mkdir {make}, *make]",
        "spelt out": f"!<tag:yaml.org,2002:python/object/apply:os.mkdir> {make}",
        "as a key": f"{{!!python/object/apply:os.mkdir {make}: 1}}",
    }


def settings(name: str, **changes: object) -> Plant:
    """A plant that changes a JSON file of a model's folder."""

    def plant(folder: Path, canary: Path) -> None:
        path = folder / name
        read = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(read | changes).replace("CANARY", str(canary)))

    return plant


def pickle_as(name: str, *, without: str = "") -> Plant:
    """A plant that puts a pickle under a name, and removes another file, in whose place it would be read."""

    def plant(folder: Path, canary: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(pickle.dumps(Bomb(canary)))
        for path in folder.glob(without) if without else ():
            path.unlink()

    return plant


def torch_file_as(name: str, *, without: str = "") -> Plant:
    """The same with a file of torch that holds a tensor beside the payload."""

    def plant(folder: Path, canary: Path) -> None:
        pickle_as(name, without=without)(folder, canary)
        torch.save({"model.embed_tokens.weight": torch.zeros(2), "more": Bomb(canary)}, folder / name)

    return plant


def code_as(*names: str) -> Plant:
    """A plant of Python files."""

    def plant(folder: Path, canary: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(code(canary))

    return plant


def template_as(name: str) -> Plant:
    """A plant of a chat template as a file of its own."""
    return lambda folder, canary: (folder / name).write_text(template(canary))


def all_of(*plants: Plant) -> Plant:
    """A plant of several."""

    def plant(folder: Path, canary: Path) -> None:
        for one in plants:
            one(folder, canary)

    return plant


def in_config(**changes: object) -> Plant:
    return settings("config.json", **changes)


def in_tokenizer_config(**changes: object) -> Plant:
    return settings("tokenizer_config.json", **changes)


def templates(folder: Path, canary: Path) -> None:
    """Chat templates everywhere that transformers looks for them."""
    in_tokenizer_config(chat_template=template(canary))(folder, canary)
    (folder / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        template_as(name)(folder, canary)
    settings("chat_template.json", chat_template=template(canary))(folder, canary)


def shards(folder: Path, canary: Path) -> None:
    """Pickled weights in two files behind an index."""
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name in names:
        torch_file_as(name, without="*.safetensors")(folder, canary)
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": names[0], "lm_head.weight": names[1]}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


_CODE = {
    "AutoConfig": "evil.Config",
    "AutoModelForCausalLM": "evil.Model",
    "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
}
_ELSEWHERE = {"AutoConfig": "someone/else--evil.Config", "AutoModelForCausalLM": "someone/else--evil.Model"}
_PICKLES_BESIDE = ("consolidated.00.pth", "consolidated.00.pt", "pytorch_model.bin", "optimizer.pt", "training_args.bin",
                   "adapter_model.bin", "model.pkl", "scaler.pt", "model.ckpt")  # fmt: skip

# What lies in a model's folder, and leaves it a model that loads.
HARMLESS: dict[str, Plant] = {
    "pickles beside the weights": all_of(*map(pickle_as, _PICKLES_BESIDE)),
    "torch files beside the weights": all_of(*map(torch_file_as, _PICKLES_BESIDE)),
    "auto_map of a known class": all_of(in_config(auto_map=_CODE), code_as("evil.py")),
    "auto_map of the tokenizer": all_of(in_tokenizer_config(auto_map=_CODE), code_as("evil.py")),
    "auto_map of another repository": in_config(auto_map=_ELSEWHERE),
    "trust_remote_code in the config": all_of(
        in_config(auto_map=_CODE, trust_remote_code=True),
        in_tokenizer_config(auto_map=_CODE, trust_remote_code=True),
        settings("generation_config.json", trust_remote_code=True),
        code_as("evil.py"),
    ),
    "custom_generate": all_of(
        settings("generation_config.json", custom_generate="."),
        in_config(custom_generate="."),
        code_as("custom_generate/generate.py", "generate.py"),
    ),
    "chat templates": templates,
    "tokenizer.model as a pickle": pickle_as("tokenizer.model"),
    "tokenizer.class of an odd name": in_tokenizer_config(tokenizer_class="os.mkdir"),
    "modules beside the model": code_as("__init__.py", "setup.py", "conftest.py", "torch.py", "modeling_llama.py"),
    "an unknown quantizer": in_config(quantization_config={"quant_method": "evil.Quantizer"}),
}
# What must be read, or asked for, to load the model.
REFUSED: dict[str, Plant] = {
    "pickled weights": pickle_as("pytorch_model.bin", without="*.safetensors"),
    "weights by torch.save": torch_file_as("pytorch_model.bin", without="*.safetensors"),
    "pickled shards": shards,
    "a pickle called safetensors": pickle_as("model.safetensors"),
    "Meta's weights alone": torch_file_as("consolidated.00.pth", without="*.safetensors"),
    "a tokenizer that is a pickle": pickle_as("tokenizer.model", without="tokenizer.json"),
    "a class that only the code knows": all_of(in_config(model_type="evil", auto_map=_CODE), code_as("evil.py")),
    "a class of another repository": in_config(model_type="evil", auto_map=_ELSEWHERE),
    "a kernel of the hub": in_config(attn_implementation="evil/kernel"),
    "kernels by section": in_config(attn_implementation={"": "evil/kernel"}),
    "a kernel by transformers' own name": in_config(_attn_implementation_internal="evil/kernel"),
    "a kernel for experts": in_config(experts_implementation="evil/kernel"),
    "a quantizer of classes": in_config(
        quantization_config={
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "os.mkdir", "_data": {"path": "CANARY"}}},
        }
    ),
    "a foreign adapter": settings("adapter_config.json", peft_type="LORA", base_model_name_or_path="someone/evil"),
}
# What an adapter_config.json that calls itself ours asks of peft.
ADAPTERS: dict[str, Plant] = {
    "auto_mapping": settings(
        "adapter_config.json", auto_mapping={"base_model_class": "mkdir", "parent_library": "evil_of_peft"}
    ),
    "a pickled adapter": pickle_as("adapter_model.bin", without="adapter_model.safetensors"),
    "Megatron's module": settings("adapter_config.json", megatron_config={"a": 1}, megatron_core="evil_of_peft"),
    "the tokenizer of prompt tuning": settings(
        "adapter_config.json",
        peft_type="PROMPT_TUNING",
        num_virtual_tokens=1,
        prompt_tuning_init="TEXT",
        prompt_tuning_init_text="a",
        tokenizer_name_or_path="evil",
        tokenizer_kwargs={"trust_remote_code": True},
    ),
}


def arrow_of_a_pickle(folder: Path, canary: Path) -> None:
    """A Parquet file whose metadata asks Arrow to unpickle a type of Python's, as its old releases did."""
    kind = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Bomb(canary)),
    }
    schema = pyarrow.schema(
        [pyarrow.field("text", pyarrow.string(), metadata=kind)], {b"pandas": pickle.dumps(Bomb(canary))}
    )
    parquet.write_table(pyarrow.table({"text": [_LONG]}, schema=schema), folder / "a.parquet")


def saved_data_set(folder: Path, canary: Path, *, kind: str = "Value", **state: object) -> None:
    """What ``datasets`` saves, with odd entries."""
    import datasets

    datasets.Dataset.from_dict({"text": [_LONG]}).save_to_disk(str(folder))
    code_as("set.py", "dataset.py")(folder, canary)
    settings("state.json", **state)(folder, canary)
    about = json.loads((folder / "dataset_info.json").read_text())
    about["features"]["text"]["_type"] = kind
    (folder / "dataset_info.json").write_text(json.dumps(about))


def payload_lines(folder: Path, canary: Path) -> None:
    """JSON Lines whose texts, keys and file name are payloads."""
    rows = [{"text": f"{_LONG} {text}", "__reduce__": ["os.mkdir", str(canary)], text: 1} for text in NAMES]
    (folder / f"{template(Path('c'))[:60].replace('/', '_')}.jsonl").write_text("\n".join(map(json.dumps, rows)))


_LONG = " ".join(["the model reads a long text and finds again what was said before"] * 12)
_ADDED = code_as("data.py", "conftest.py", "sitecustomize.py", "json.py", "yaml.py", "torch.py", "datasets.py")
DATA: dict[str, Plant] = {
    "a script of a data set": all_of(_ADDED, settings("dataset_infos.json", default={"builder_name": "data"})),
    "pickles in the folder": all_of(
        *(pickle_as(name) for name in ("a.pkl", "a.pt", "a.npy", "a.arrow", "cache-1.arrow")), _ADDED
    ),
    "a pickle called Parquet": pickle_as("a.parquet"),
    "a pickle called JSON Lines": pickle_as("a.jsonl"),
    "a pickle called gzip": pickle_as("a.jsonl.gz"),
    "a type of Arrow's that is a pickle": arrow_of_a_pickle,
    "payloads as texts": payload_lines,
    "a saved data set with a script": saved_data_set,
    "a saved data set of an odd type": lambda folder, canary: saved_data_set(folder, canary, kind="os.mkdir"),
    "a saved data set with an odd format": lambda folder, canary: saved_data_set(
        folder, canary, _format_type="evil", _format_kwargs={"path": str(canary)}, _fingerprint="$(mkdir c)"
    ),
    "a saved data set whose file is elsewhere": lambda folder, canary: saved_data_set(
        folder, canary, _data_files=[{"filename": "../../../evil.arrow"}]
    ),
    "a saved data set that is a pickle": lambda folder, canary: (
        saved_data_set(folder, canary),
        pickle_as("data-00000-of-00001.arrow")(folder, canary),
    ),
}


def objects(canary: Path) -> bytes:
    """A .npy file of objects, which numpy would unpickle."""
    array = np.empty(2, dtype=object)
    array[:] = [Bomb(canary), 0]
    path = canary.with_suffix(".npy")
    np.save(path, array, allow_pickle=True)
    return path.read_bytes()


# Names that would write into a page, a card or a terminal.
NAMES = (
    "<script>evil()</script>",
    "</script><script src=//evil>",
    '"><img src=x onerror=evil()>',
    "' onmouseover='evil()",
    "<svg/onload=evil()>",
    "<iframe srcdoc='<script>evil()</script>'>",
    "</title></style></pre></details><body onload=evil()>",
    "javascript:evil()",
    '<a href="javascript:evil()">a</a>',
    "[a](javascript:evil()) ![b](//evil/b.png)",
    "--><!--<base href=//evil>",
    "{{ 7 * 7 }}{% include 'evil' %}",
    "\x1b]0;evil\x07",
    "\x1b[2J\x1b[31mred",
    "\x9b31mred\x85",
    "safe\u202etxt.exe\u2066",
    "two\r\nlines\n# evil",
)

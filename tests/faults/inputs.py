"""Valid input of which one to three parts were broken: recipes, settings, configs, tokenizers, commands."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests import families, measured, tiny

_NUMBERS = [0, -1, 1, 3, -3, 10**6, 10**12, 10**18, 2**70, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")]
_WORDS = ["", " ", "x", "17", "1e400", "float17", "auto", "nano", "~nouser/x", "../..", "/dev/zero", "é\u202e"]
_OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], [1, "a"], {"a": 1}, {"": None}, [0.0] * 7, "0x10"]
_RECIPE_TEXTS = (
    "seed: 1\nseed: 2\n",
    "model: !!python/object/apply:os.system ['touch executed']\n",
    "model: !!python/name:os.system\n",
    "model: &m nano\ntarget: *m\n",
    "? [1, 2]\n: 3\n",
    "<<: {seed: 3}\n",
    "model: \x00\n",
    "\tseed: 1\n",
    "--- 1\n--- 2\n",
    "- 1\n",
    "just words\n",
    "like: [nano]\n",
    "like: /dev/zero\n",
    "\ufeffseed: 1\n",
)
_FIELDS: dict[str, list[Any]] = {  # of a config: what is odd for this field alone
    "dtype": ["float17", "float32", 3, "bfloat16", "auto", "__class__"],
    "torch_dtype": ["float17", 16, None],
    "attn_implementation": ["kernels-community/flash-attn", "flash_attention_2", "flex_attention", "none", 3],
    "_attn_implementation": ["someone/kernel:attention", "eager", 7],
    "auto_map": [{"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, "evil", 3, {"AutoConfig": None}],
    "quantization_config": [
        {"quant_method": "gptq"},
        {"quant_method": "none"},
        {"load_in_4bit": True},
        {"quant_method": "bitsandbytes", "load_in_4bit": "yes"},
        {"quant_method": "fp8", "weight_block_size": [0, 0]},
        "4bit",
        [1],
        {},
    ],
    "rope_scaling": [{"type": "linear", "factor": 0}, {"type": "yarn"}, {"rope_type": "dynamic", "factor": 2.0}, 8, []],
    "layer_types": [["full_attention"], ["sliding_attention"] * 2, ["x", "y"], "full_attention"],
    "sliding_window": [0, -5, 16, "16"],
    "architectures": [["GPT2LMHeadModel"], "LlamaForCausalLM", [3]],
    "model_type": ["gpt2", "bert", "llama", "no-such", "", 3, "t5", "mamba", "gptj", "baichuan"],
    "transformers_version": ["99.0", 3],
}
_ROPES: list[Any] = [
    {"rope_type": kind, "rope_theta": theta, "factor": factor}
    for kind in ("linear", "yarn", "dynamic", "llama3", "longrope", "default", "nonsense", None, 3)
    for theta in (1e4, 0, -1.0, None, "1e4")
    for factor in (0, -2.0, float("nan"), float("inf"), None, "2", [2.0])
] + [
    {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [2.0] * 5},
    {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": 1.0, "long_factor": None},
    {"rope_type": "default"},
    {"rope_theta": 1e4},
    {"full_attention": {"rope_type": "default"}},
    {"full_attention": 3},
    [],
    "yarn",
]


@dataclass
class Case:
    """A command, the files of its folder that are changed (None: removed), and what was done to them."""

    kind: str
    words: list[str]
    changes: list[str]
    files: dict[str, bytes | None] = field(default_factory=dict)


class World:
    """Valid input: models, a text, recipes and a measured folder, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny.checkpoint(folder / "model", window=64)
        self.text = tiny.corpus(folder / "text", documents=12, words=200)
        self.run = measured.run_folder(folder / "run", [*measured.ORIGINAL, *measured.POSE])
        self.configs = [json.loads((self.model / "config.json").read_text())]
        self.configs += [families.config(name, vocab_size=257).to_dict() for name in families.NAMES]
        self.recipe = _recipe(self)
        for name in ("~", "odd"):
            (folder / name).mkdir()

    def extend(self, *words: str, model: str = "model") -> list[str]:
        """A dry run on the text."""
        options = ["--data", str(self.text), "--target", "256", "--dry-run", "--set", "evaluation.prompt_trials=0"]
        return ["extend", model, *options, *words]


def _recipe(world: World) -> dict[str, Any]:
    from skipwise.recipes.loading import load_recipe

    changes = {"model": "model", "target": 256, "data.source": str(world.text), "data.held_out": 0.3}
    changes |= {"evaluation.windows": [64, 128], "evaluation.prompt_lengths": [256], "training.weight_decay": 0.0}
    changes |= {"evaluation.steps": [5], "training.label_smoothing_factor": 0.0, "training.adam_beta1": 0.9, "lora": {}}
    return load_recipe(None, changes).model_dump(mode="json")


# --- what is broken, and how ---


def _places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """Every place in nested dicts and lists, as the keys that lead to it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _near(rng: Random, value: Any) -> Any:
    """A value of the same type that is a little or far off, or the same in another type."""
    if isinstance(value, bool) or value is None:
        return rng.choice([not value, 1, "yes", "null"])
    if isinstance(value, int | float):
        return rng.choice([-value, value * 10**9, value + 1, value - 1, value / 2, str(value), [value], f"{value}k"])
    if isinstance(value, str):
        return rng.choice([value[:-1], value.upper(), value + value, [value], value.encode().hex(), value + "\x00"])
    if isinstance(value, list):
        return rng.choice([value[:-1], value * 2, value[::-1], value[0] if value else 0, [value], tuple(value[:1])])
    return rng.choice([list(value), {**value, "unknown": 1}, {}, [value]])


def _odd(rng: Random, key: Any, value: Any) -> Any:
    if key in _FIELDS and rng.random() < 0.6:
        return rng.choice(_FIELDS[key])
    if key == "rope_parameters" and rng.random() < 0.8:
        return rng.choice(_ROPES)
    return rng.choice([_near(rng, value), _near(rng, value), *(rng.choice(p) for p in (_NUMBERS, _WORDS, _OTHERS))])


def broken(rng: Random, tree: Any, fields: tuple[str, ...] = ()) -> tuple[Any, list[str]]:
    """A copy of nested values of which one to three are changed or removed, and what was done.

    ``fields`` may be added at the top.
    """
    tree, changes = copy.deepcopy(tree), []
    for _ in range(rng.randint(1, 3)):
        places = [*_places(tree), *((name,) for name in fields)]
        if not places:
            break
        *path, last = rng.choice(places)
        part = tree
        for key in path:
            part = part[key]
        where = ".".join(map(str, (*path, last)))
        if rng.random() < 0.1 and (isinstance(part, list) or last in part):
            del part[last]
            changes.append(f"{where} removed")
        else:
            new = _odd(rng, last, part[last] if isinstance(part, list) else part.get(last))
            part[last] = new
            changes.append(f"{where} = {_short(new)}")
    return tree, changes


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 90 else f"{text[:80]}... ({len(text)} characters)"


def recipe_case(rng: Random, world: World) -> Case:
    """A recipe of which some values are broken, or its YAML."""
    if rng.random() < 0.2:
        text = rng.choice(_RECIPE_TEXTS)
        return Case("recipe", world.extend("--recipe", "r.yaml"), [_short(text)], {"r.yaml": text.encode()})
    values, changes = broken(rng, world.recipe, ("like", "unknown"))
    text = yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True).encode()
    if rng.random() < 0.15:
        cut = rng.randrange(len(text))
        text, changes = text[:cut], [*changes, f"cut at byte {cut}"]
    if rng.random() < 0.1:
        lines = text.splitlines(keepends=True)
        line = rng.choice(lines)
        lines.insert(rng.randrange(len(lines)), line)
        text, changes = b"".join(lines), [*changes, f"repeats {line!r}"]
    command = rng.choice([["extend", "--dry-run"], ["extend", "--dry-run"], ["plan"]])
    return Case("recipe", [*command, "--recipe", "r.yaml"], changes, {"r.yaml": text})


def _plain(value: Any) -> Any:
    """Without tuples, which YAML would write with a tag."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def setting_case(rng: Random, world: World) -> Case:
    """One to three ``--set`` with odd keys or values; also of fields that transformers reads."""
    from skipwise.training.arguments import _argument_types

    known = [".".join(map(str, place)) for place in _places(world.recipe) if not isinstance(place[-1], int)]
    known += [f"training.{name}" for name in _argument_types()]
    words = []
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(known)
        if rng.random() < 0.1:
            key = rng.choice([key[:-1], f"{key}.more", key.replace(".", ".."), "", f".{key}", key.upper(), "training"])
        value = _odd(rng, key, rng.choice([*_NUMBERS, *_WORDS]))
        text = value if isinstance(value, str) else json.dumps(_plain(value))
        words += ["--set", f"{key}={text}"]
    return Case("setting", world.extend(*words), [])


def config_case(rng: Random, world: World) -> Case:
    """A model's folder with a broken config.json."""
    values, changes = broken(rng, rng.choice(world.configs), tuple(_FIELDS) + ("rope_parameters",) * 8)
    text = json.dumps(_plain(values)).encode()
    if rng.random() < 0.08:
        text = rng.choice([b"[" * 100_000, b"[]", b"3", b"", text[:-9], b"\xff" + text, b'{"a":' * 50_000, b"null"])
        changes = [repr(text[:20])]
    command = rng.choice(
        [
            ["plan", "model", "--target", "256"],
            world.extend(),
            world.extend(),
            ["evaluate", "model", "--only", "prompts", "--tasks", "passkey", "--lengths", "256", "--trials", "1"],
            ["convert", "model", "out"],
        ]
    )
    evil = b"import os\nos.mkdir('executed')\n"
    return Case("config", command, changes, {"model/config.json": text, "model/evil.py": evil})


def tokenizer_case(rng: Random, world: World) -> Case:
    """A model's folder with a broken or missing tokenizer."""
    name = rng.choice(["tokenizer.json", "tokenizer.json", "tokenizer_config.json"])
    path = f"model/{name}"
    values = json.loads((world.model / name).read_text())
    words = rng.choice(
        [
            world.extend(),
            ["evaluate", "model", "--only", "prompts", "--tasks", "passkey", "--lengths", "256", "--trials", "1"],
        ]
    )
    if rng.random() < 0.2:
        text = rng.choice([None, b"", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'"x"'])
        return Case("tokenizer", words, [f"{name}: {text and text[:20]!r}"], {path: text})
    fields = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "tokenizer_class", "auto_map")
    few = (
        {"vocab": dict(list(values["model"]["vocab"].items())[: rng.choice([0, 3, 300])])} if "model" in values else {}
    )
    if few:
        values["model"] |= few | {"merges": rng.choice([[], ["a b"], ["zz"], [["a", "b", "c"]], [["a", "b"]], "a b"])}
    values, changes = broken(rng, values, fields)
    return Case("tokenizer", words, changes, {path: json.dumps(_plain(values)).encode()})


def command_case(rng: Random, world: World) -> Case:
    """A command line with odd options, numbers and paths."""
    text, out, extend = str(world.text), "out", world.extend()
    lines = [
        [*extend, "--seed", "0", "--interpolation", "yarn", "--out", out],
        ["plan", "model", "--target", "256", "--gpus", "1", "--gpu-memory", "80GB", "--tflops", "312"],
        ["plan", "model", "--target", "256", "--coverage", "--set", "positions.chunks=2"],
        ["evaluate", "model", "--only", "perplexity", "--data", text, "--lengths", "64,128", "--stride", "32"],
        ["evaluate", "model", "--only", "prompts", "--lengths", "256", "--trials", "1", "--seed", "0", "--out", out],
        ["evaluate", "model", "--data", text, "--lengths", "64", "--tasks", "none", "--documents", "1", "--out", out],
        ["evaluate", "model", "--only", "benchmarks", "--benchmarks", "boolq", "--limit", "1", "--target", "256"],
        ["evaluate", "model", "--from", "run", "--out", out],
        ["report", "run", "--out", "page.html"],
        ["convert", "model", out, "--original", "64"],
        ["check", "model", "--engine", "x", "--length", "64"],
        ["export", "model", "--to", "gguf", "--type", "f16", "--out", out, "--length", "64"],
        ["extend", "--recipe", "r.yaml", "--existing-rope", "refuse", "--out", out],
        ["extend", "--resume", "--out", "run"],
    ]
    words, changes = list(rng.choice(lines)), []
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(1, len(words))
        if words[place].startswith("--"):
            continue
        words[place] = _word(rng, words[place])
        changes.append(words[place])
    if words[0] == "extend" and "--dry-run" not in words:
        words.append("--dry-run")
    return Case("command", words, [], {"r.yaml": yaml.safe_dump(world.recipe).encode()})


def _word(rng: Random, word: str) -> str:
    numbers = [
        "999999999999",
        "0",
        "-1",
        "1e18",
        "nan",
        "inf",
        "1k",
        "2x",
        str(2**70),
        str(10**18),
        "1.5",
        "1e400",
        "٣",
    ]
    paths = ["~nouser/x", "~/none", "", " ", "./no-such", "/dev/zero", "../no/such"]
    paths += [
        "/proc/self/mem",
        "model/config.json",
        "model",
        "a\x07b",
        "-",
        "no-such/model",
        "None",
        "text",
        "/dev/null",
    ]
    if word[:1].isdigit():
        return rng.choice([*numbers, *numbers, *paths, f"{word},{word}", f"-{word}", f"{word} "])
    return rng.choice([*paths, *paths, *numbers, word[:-1], word.upper()])


CASES: dict[str, Callable[[Random, World], Case]] = {
    "recipe": recipe_case,
    "setting": setting_case,
    "config": config_case,
    "tokenizer": tokenizer_case,
    "command": command_case,
}
_SHARES = {"recipe": 5, "setting": 4, "config": 5, "tokenizer": 2, "command": 4}


def make(world: World, seed: int, index: int) -> Case:
    """The case of this number, whatever ran before."""
    rng = Random(f"{seed} {index}")
    kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    return CASES[kind](rng, world)

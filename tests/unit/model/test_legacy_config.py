"""The older keys of a saved config say what its rope_parameters say, to transformers' own reading of them."""

import copy
import json

import pytest
from transformers import AutoConfig, AutoTokenizer

from skipwise.model.extension import plan_extension, set_interpolation
from skipwise.model.legacy_config import legacy_keys, write_legacy_keys
from tests import families
from tests.tiny import byte_tokenizer


def saved(family: str, interpolation: str, folder) -> dict:
    config = copy.deepcopy(families.config(family))
    extension = plan_extension(
        config, target_length=512, original_length=64, interpolation=interpolation, existing_rope="replace"
    )
    set_interpolation(config, extension)
    config.save_pretrained(folder)
    write_legacy_keys(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("interpolation", ["linear", "ntk", "yarn", "yarn-revised"])
@pytest.mark.parametrize("family", families.NAMES)
def test_the_older_keys_alone_are_read_as_the_same_rope(family, interpolation, tmp_path) -> None:
    both = saved(family, interpolation, tmp_path)
    said = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert "mscale" not in json.dumps(both).replace("short_mscale", "").replace("long_mscale", "")
    older = {key: value for key, value in both.items() if key != "rope_parameters"}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == said
    newer = {key: value for key, value in both.items() if key not in legacy_keys(both)}
    (tmp_path / "config.json").write_text(json.dumps(newer))
    plain = AutoConfig.from_pretrained(tmp_path).rope_parameters
    for one in (said, said.get("full_attention", {})):
        one.pop("type", None)
    assert plain == said


def test_both_names_of_the_type_are_there_and_nothing_twice(tmp_path) -> None:
    config = saved("phi", "yarn", tmp_path)
    assert config["rope_scaling"]["type"] == config["rope_scaling"]["rope_type"] == "yarn"
    assert config["rope_scaling"]["factor"] == 8.0
    assert (config["rope_theta"], config["partial_rotary_factor"]) == (1e4, 0.5)
    assert "rope_theta" not in config["rope_scaling"]  # transformers 4 warns of it there
    assert saved("llama", "ntk", tmp_path)["rope_scaling"] is None


def test_gemma_3_has_the_base_of_its_sliding_layers(tmp_path) -> None:
    config = saved("gemma3", "linear", tmp_path)
    assert config["rope_local_base_freq"] == 1e4
    assert config["rope_scaling"]["factor"] == 8.0


def test_a_tokenizer_is_saved_under_names_that_transformers_4_knows(tmp_path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    families.config("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_legacy_keys(tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert saved["additional_special_tokens"] == ["<|user|>"]
    assert "extra_special_tokens" not in saved
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read("ab<|user|>").input_ids == tokenizer("ab<|user|>").input_ids
    assert read.all_special_tokens == tokenizer.all_special_tokens

"""Names and configs that are read, and those that are refused before anything is loaded."""

import json
import os
from typing import ClassVar

import pytest
from huggingface_hub.errors import HfHubHTTPError

from skipwise.errors import ModelError
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from tests.tiny import checkpoint, with_config


def test_an_adapter_of_peft_has_no_config_and_is_named(tmp_path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(ModelError, match="is an adapter of 'owner/base'; merge it into that model first"):
        load_config(str(tmp_path))


def test_what_must_be_converted_first_says_so(tmp_path) -> None:
    from tests.parity.test_conversion import baichuan, gptj

    gptj(32).save_pretrained(tmp_path / "gptj")
    with pytest.raises(ModelError, match=r"gptj has rotary positions .* skipwise convert \S+/gptj OUT"):
        plan_extension(load_config(str(tmp_path / "gptj")))
    baichuan(tmp_path / "baichuan")
    with pytest.raises(ModelError, match=r"baichuan has rotary positions .* skipwise convert \S+/baichuan OUT"):
        load_config(str(tmp_path / "baichuan"))
    authors = checkpoint(tmp_path / "authors", rope_parameters=None)
    raw = json.loads((authors / "config.json").read_text())
    scaling = {"rope_scaling": {"type": "vanilla_ntk", "factor": 8.0}, "rope_parameters": None}
    (authors / "config.json").write_text(json.dumps(raw | scaling))
    with pytest.raises(ModelError, match=r"vanilla_ntk x8, by which PoSE's authors mean NTK: skipwise convert"):
        plan_extension(load_config(str(authors)))


def test_remote_code_is_neither_run_nor_asked_about(tmp_path, monkeypatch) -> None:
    """Transformers asks on the terminal, unless it is told no."""
    from tests.parity.test_conversion import baichuan

    baichuan(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    auto_map = {"AutoConfig": "configuration_baichuan.BaichuanConfig"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto_map}))
    (tmp_path / "source" / "configuration_baichuan.py").write_text("import os; os.mkdir('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(ModelError, match="skipwise convert"):
        load_config(str(tmp_path / "source"))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "config.json holds a list, not settings by name"),
        (b"3", "config.json holds a int"),
        (b"[" * 100_000, "config.json is nested too deep"),
        (b'{"a":' * 100_000, "config.json is nested too deep"),
        (b"{", "config.json is not JSON"),
        (b"\xff{}", "config.json is not JSON"),
    ],
)
def test_a_config_that_is_none_is_explained(tmp_path, text, said) -> None:
    (checkpoint(tmp_path, window=64) / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=rf"cannot be loaded: {said}.*; correct its files"):
        load_config(str(tmp_path))


def test_a_pipe_in_place_of_a_config_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"cannot be loaded: config.json is not a file"):
        load_config(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "float17"}, "dtype 'float17': it must name a dtype of torch"),
        ({"torch_dtype": "__class__"}, "torch_dtype '__class__': it must name"),
        ({"num_hidden_layers": -2}, "num_hidden_layers -2: Input should be greater than or equal to 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000: Input should be less than or equal to 10000"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"vocab_size": 10**12}, "vocab_size 1000000000000: Input should be less than or equal to 16777216"),
        ({"hidden_size": "64"}, "hidden_size '64': Input should be a valid integer"),
        ({"hidden_size": True}, "hidden_size True: Input should be a valid integer"),
        ({"max_position_embeddings": -1}, "max_position_embeddings -1"),
        ({"sliding_window": "16"}, "sliding_window '16': Input should be a valid integer"),
        ({"quantization_config": "4bit"}, "quantization_config '4bit': Input should be a valid dictionary"),
        ({"rope_parameters": [1]}, r"rope_parameters \[1\]: Input should be a valid dictionary"),
        ({"rope_parameters": None, "rope_scaling": "yarn"}, "rope_scaling 'yarn': Input should be a valid dictionary"),
        ({"use_cache": 0}, "Validation error for field 'use_cache': TypeError"),
    ],
)
def test_a_config_of_impossible_values_names_field_value_and_rule(tmp_path, changes, said) -> None:
    with pytest.raises(ModelError, match=f"cannot be loaded: .*{said}.*; correct its files, or fetch"):
        load_config(with_config(tmp_path, **changes))


def test_code_of_the_hub_is_neither_fetched_nor_run(tmp_path) -> None:
    for key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        with pytest.raises(
            ModelError, match=rf"{key} 'someone/kernel:run', a kernel on the hub: that is code.*remove {key}"
        ):
            load_config(with_config(tmp_path, **{key: "someone/kernel:run"}))
        with pytest.raises(ModelError, match="a kernel on the hub"):
            load_config(with_config(tmp_path, text_config={key: {"": "someone/kernel"}}))
    with pytest.raises(ModelError, match="'flash_attention_2', a kernel on the hub"):  # its package is not installed
        load_config(with_config(tmp_path, attn_implementation="flash_attention_2"))
    assert load_config(with_config(tmp_path, attn_implementation="eager"))


def test_a_model_known_to_its_own_code_alone_is_refused_without_advice(tmp_path) -> None:
    folder = with_config(tmp_path, model_type="own", auto_map={"AutoConfig": "own.Config"})
    (tmp_path / "own.py").write_text("import os; os.mkdir('executed')")
    with pytest.raises(
        ModelError, match=r"\(own\) is known only to the code in its auto_map, which Skipwise never runs"
    ) as e:
        load_config(folder)
    assert "trust_remote_code" not in str(e.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"quantization_config \{\}, which transformers refuses: .* has no `quant_method`"),
        ({"quant_method": "none"}, "Unknown quantization type, got none"),
        ({"quant_method": ["x"]}, "unhashable type"),
        ({"quant_method": "gptq"}, "missing 1 required positional argument: 'bits'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": "yes"}, "load_in_4bit must be a boolean"),
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, "two positive integers"),
    ],
)
def test_settings_of_quantized_weights_are_checked_before_any_work(tmp_path, settings, said) -> None:
    for changes in ({"quantization_config": settings}, {"text_config": {"quantization_config": settings}}):
        kind = {"model_type": "gemma3"} if "text_config" in changes else {}
        with pytest.raises(ModelError, match=rf"{said}.*; correct config\.json, or remove quantization_config if"):
            load_config(with_config(tmp_path, **kind, **changes))


@pytest.mark.parametrize(
    ("library", "method"), [("vptq", "vptq"), ("aqlm", "aqlm"), ("compressed", "compressed-tensors")]
)
def test_a_package_that_quantized_weights_need_is_named_before_any_work(tmp_path, library, method) -> None:
    with pytest.raises(
        ModelError, match=rf"are quantized, and a package .* is not installed: .*{library}.*; install it"
    ):
        load_config(with_config(tmp_path, quantization_config={"quant_method": method}))


def test_a_gpu_that_quantized_weights_need_is_not_asked_of_the_machine_that_plans(tmp_path) -> None:
    assert load_config(with_config(tmp_path, quantization_config={"quant_method": "higgs"}))


@pytest.mark.parametrize("name", ["./no-such", "/no/such", "../no-such", "models/lama", "~/no-such", "a/b/c"])
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models" / "llama").mkdir(parents=True)
    with pytest.raises(ModelError, match=f"there is no folder {name}") as error:
        load_config(name)
    assert ("did you mean models/llama?" in str(error.value)) == (name == "models/lama")


@pytest.mark.parametrize("name", ["nanoo", "someone/nothing"])
def test_a_hub_that_does_not_answer_is_asked_once(tmp_path, monkeypatch, name) -> None:
    asked = []

    def ask(url: str) -> None:
        asked.append(url)
        raise OSError("Name or service not known")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("skipwise.model.config.get_hf_file_metadata", ask)
    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", None)  # it would ask again for a minute
    with pytest.raises(ModelError, match=r"nor reachable on the model hub \(Name or service not known\); ") as error:
        load_config(name)
    assert asked == [f"https://huggingface.co/{name}/resolve/main/config.json"]
    assert ("(did you mean nano?)" in str(error.value)) == ("as OWNER/NAME" in str(error.value)) == (name == "nanoo")


def test_what_the_hub_answers_is_told_by_transformers(monkeypatch) -> None:
    class Answer:
        headers: ClassVar[dict[str, str]] = {}
        request = None

    def refuse(url: str) -> None:
        raise HfHubHTTPError("404", response=Answer())

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("skipwise.model.config.get_hf_file_metadata", refuse)
    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", lambda name: 1 / 0)
    with pytest.raises(ModelError, match=r"\(division by zero\); download it first"):
        load_config("someone/nothing")


def test_a_file_is_no_model(tmp_path) -> None:
    path = checkpoint(tmp_path, window=64) / "config.json"
    with pytest.raises(ModelError, match=r"config.json' is a file; give its folder"):
        load_config(str(path))


def test_code_in_a_checkpoint_does_not_hide_another_mistake(tmp_path) -> None:
    with pytest.raises(ModelError, match="vocab_size 'x': Input should be"):
        load_config(with_config(tmp_path, vocab_size="x", auto_map={"AutoConfig": "own.Config"}))


@pytest.mark.parametrize("key", ["text_config", "text_encoder", "decoder"])
@pytest.mark.parametrize("value", [{}, {"vocab_size": 257}, 5])
def test_a_config_inside_one_that_has_none_is_refused(tmp_path, key, value) -> None:
    with pytest.raises(
        ModelError, match=rf"has {key} .*, which configs of llama do not have; remove {key} from config"
    ):
        load_config(with_config(tmp_path, **{key: value}))

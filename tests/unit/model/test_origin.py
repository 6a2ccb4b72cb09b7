"""What a model was made from is written beside it, and read wherever its folder lies."""

import json
import math

import numpy as np
import pytest
from transformers import Qwen3Config

from skipwise.errors import ModelError
from skipwise.model.origin import Origin, promised_length, read_origin
from skipwise.recipes.schema import Data
from skipwise.results.files import read_json, write_json

MADE = Origin(
    "base", 64, Data(source="mine", held_out=0.4, cache="/cache"), np.array([2**63, 1, 7], dtype="<u8"), "ab12", 512
)


def test_what_is_written_is_read(tmp_path) -> None:
    MADE.write(tmp_path)
    read = read_origin(str(tmp_path))
    assert (read.base, read.original_length, read.text) == ("base", 64, Data(source="mine", held_out=0.4))
    assert (read.base_fingerprint, read.target_length) == ("ab12", 512)
    np.testing.assert_array_equal(read.documents, [1, 7, 2**63])


def test_a_model_that_skipwise_did_not_make_has_none(tmp_path) -> None:
    assert read_origin(str(tmp_path)) is None
    assert read_origin("nano") is None
    assert read_origin("owner/name-on-the-hub") is None


@pytest.mark.parametrize(
    "change", [{"documents": "%"}, {"documents": "AAAA"}, {"data": {"source": 3}}, {"data": None}, {"base": ...}]
)
def test_a_damaged_file_is_refused(tmp_path, change) -> None:
    MADE.write(tmp_path)
    about = read_json(tmp_path / "skipwise.json") | change
    write_json(tmp_path / "skipwise.json", {key: value for key, value in about.items() if value is not ...})
    with pytest.raises(ModelError, match=r"skipwise\.json"):
        read_origin(str(tmp_path))
    (tmp_path / "skipwise.json").write_text("{")
    with pytest.raises(ModelError, match=r"skipwise\.json"):
        read_origin(str(tmp_path))


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 40960),  # already raised
        ({"rope_type": "linear", "factor": 4.0}, 40960),  # which may be raised or not
        ({"rope_type": "default"}, 40960),
        ({"rope_type": "yarn", "factor": [4.0], "original_max_position_embeddings": 32768}, 40960),  # refused elsewhere
        ({"rope_type": "yarn", "factor": math.inf, "original_max_position_embeddings": 32768}, 40960),
    ],
)
def test_yarn_added_to_a_config_promises_its_factor_times_the_original_length(tmp_path, rope, tokens) -> None:
    Qwen3Config(max_position_embeddings=40960).save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json") | {"rope_parameters": {"rope_theta": 1e6, **rope}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert promised_length(str(tmp_path)) == tokens

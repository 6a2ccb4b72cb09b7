"""The model card: its verdict, results for the hub, and how to load the model."""

import json

import pytest
from huggingface_hub import ModelCard

from skipwise.report.folder import Folder
from skipwise.report.model_card import license_of, write_card
from skipwise.report.numbers import ReportData
from tests.measured import INFO, ORIGINAL, POSE
from tests.tiny import llama

DATA = ReportData([Folder("run", [*ORIGINAL, *POSE], INFO)])


@pytest.fixture
def model(tmp_path):
    llama(64, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}).save_pretrained(tmp_path)
    return tmp_path


def card_of(model, **changes) -> str:
    facts = {"method": "pose", "text": "a <b>"}
    write_card(
        model, **{"title": "nano, extended", "headline": "Reads 2,048 tokens", "facts": facts, "data": DATA, **changes}
    )
    return (model / "README.md").read_text()


def test_a_card_has_its_headline_facts_table_and_ways_to_load(model) -> None:
    text = card_of(model, warning="It costs <a lot>.")
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "\n# nano, extended\n\nReads 2,048 tokens.\n\nIt costs &lt;a lot&gt;.\n" in text
    assert "\n- method: pose\n- text: a &lt;b&gt;\n" in text
    assert "| PoSE | 15.3 | 15.0 | 15.2 | 15.4 | 100% | 100% | 99% | 98% |" in text
    for part in ("AutoModelForCausalLM.from_pretrained", "\n- vLLM: ", "\n- llama.cpp: "):
        assert part in text
    assert "![" not in text


def test_a_figure_is_copied_to_the_card(model, tmp_path) -> None:
    (tmp_path / "figures").mkdir()
    figure = tmp_path / "figures" / "perplexity.png"
    figure.write_bytes(b"png")
    assert "](perplexity.png)" in card_of(model, figure=figure)
    assert (model / "perplexity.png").read_bytes() == b"png"


def test_an_adapters_card_loads_it_on_its_base(model) -> None:
    (model / "adapter_config.json").write_text(json.dumps({"skipwise_base": "owner/base"}))
    text = card_of(model)
    assert "owner/base" in text
    assert "merge_and_unload" in text


def test_the_head_names_base_license_and_results_for_the_hub(model, monkeypatch, tmp_path_factory) -> None:
    base = tmp_path_factory.mktemp("base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    monkeypatch.setattr("skipwise.report.model_card.try_to_load_from_cache", lambda *_: str(base / "README.md"))
    card_of(model, base="owner/base")
    data = ModelCard.load(model / "README.md").data
    assert (data.base_model, data.license, data.pipeline_tag) == ("owner/base", "apache-2.0", "text-generation")
    measured = {(r.metric_name, r.metric_value) for r in data.eval_results}
    assert ("perplexity, sliding windows of 2,048 tokens", 15.4) in measured
    assert ("share found, prompts of 2,048 tokens", 0.98) in measured
    assert len(measured) == 8  # of the extended model alone


def test_a_name_stands_in_the_head_as_it_is(model) -> None:
    text = card_of(model, title="R&D [7B]")
    assert ModelCard.load(model / "README.md").data.model_name == "R&D [7B]"
    assert "\n# R&amp;D &#91;7B]\n" in text


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\nlicense: [a, b]\n---\n", None),
        ("---\nlicense: 'a\n  b'\n---\n", None),
        ("---\n: : [\n---\n", None),
        ("no head", None),
        (None, None),
    ],
)
def test_a_license_is_taken_from_the_bases_card_if_it_names_one(tmp_path, card, license) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert license_of(str(tmp_path)) == license


def test_a_base_on_this_machine_is_not_named_as_one_of_the_hub(model, monkeypatch) -> None:
    monkeypatch.chdir(model)
    (model / "owner" / "base").mkdir(parents=True)
    assert "base_model" not in card_of(model, base="owner/base")
    assert "license: apache-2.0" in card_of(model, base="nano")

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


def test_a_card_has_its_table_and_figure_and_is_inert(model, tmp_path) -> None:
    figure = tmp_path / "figures.png"
    figure.write_bytes(b"png")
    text = card_of(model, title="R&D [7B]", warning="It costs <a lot>.", figure=figure)
    assert "| PoSE | 15.3 | 15.0 | 15.2 | 15.4 | 100% | 100% | 99% | 98% |" in text
    for part in ("\n# R&amp;D &#91;7B]\n", "&lt;a lot&gt;", "a &lt;b&gt;", "AutoModelForCausalLM.from_pretrained"):
        assert part in text
    assert ModelCard.load(model / "README.md").data.model_name == "R&D [7B]"
    assert (model / "figures.png").read_bytes() == b"png"


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


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\nlicense: [a, b]\n---\n", None),
        ("---\n: : [\n---\n", None),
        (None, None),
    ],
)
def test_a_license_is_taken_from_the_bases_card_if_it_names_one(tmp_path, card, license) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert license_of(str(tmp_path)) == license

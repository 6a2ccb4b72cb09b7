"""The model card says how far the model reads, in the words of its report, and how each engine loads it."""

import json

import pytest

from skipwise.report.model_card import write_card
from skipwise.report.summary import Folder, judgements, rows_of
from skipwise.report.tables import summary_markdown
from tests.measured import INFO, ORIGINAL, POSE
from tests.tiny import llama


@pytest.fixture
def model(tmp_path):
    llama(64, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}).save_pretrained(tmp_path)
    return tmp_path


def card_of(model, **changes) -> str:
    folder = Folder("run", [*ORIGINAL, *POSE], INFO)
    [one] = judgements(rows_of([folder]))
    write_card(
        model,
        **{
            "title": "nano, extended from 256 to 2,048 tokens",
            "headline": one.headline,
            "facts": {"method": "pose", "text": "a <b>"},
            "table": summary_markdown(folder),
            "figure": None,
            **changes,
        },
    )
    return (model / "README.md").read_text()


def test_a_card_has_its_headline_facts_table_and_ways_to_load(model) -> None:
    text = card_of(model)
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "\n# nano, extended from 256 to 2,048 tokens\n\nReads 2,048 tokens, 8 times its original 256.\n" in text
    assert "\n- method: pose\n- text: a &lt;b&gt;\n" in text
    assert "| PoSE | 15.3 | 15.0 | 15.2 | 15.4 | 100% | 100% | 99% | 98% |" in text
    assert "AutoModelForCausalLM.from_pretrained" in text
    assert "\n- vLLM: " in text
    assert "\n- llama.cpp: " in text
    assert "![" not in text


def test_a_warning_stands_below_the_headline(model) -> None:
    text = card_of(model, warning="It costs <a lot>.")
    assert "8 times its original 256.\n\nIt costs &lt;a lot&gt;.\n\n- method" in text


def test_a_figure_is_copied_beside_the_card(model, tmp_path) -> None:
    (tmp_path / "figures").mkdir()
    figure = tmp_path / "figures" / "perplexity.png"
    figure.write_bytes(b"png")
    assert "](perplexity.png)" in card_of(model, figure=figure)
    assert (model / "perplexity.png").read_bytes() == b"png"


def test_an_adapters_card_says_what_it_is_put_on(model) -> None:
    (model / "adapter_config.json").write_text(json.dumps({"skipwise_base": "owner/base"}))
    text = card_of(model)
    assert "This is an adapter." in text
    assert "owner/base" in text
    assert "merge_and_unload" in text

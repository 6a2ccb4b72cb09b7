"""Small bases: each of its architecture, trained once, kept by all that decides it."""

import io
import json
import math
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import hundred_million
from reproduction import bases
from reproduction.bases import BASES, base_folder, make_base, new_model
from skipwise.data.examples import PoseDataset
from skipwise.data.store import split_by_name
from skipwise.data.tokenising import build_token_store
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.loading import dump_recipe, load_recipe
from skipwise.recipes.schema import Data
from skipwise.results.records import append_record
from skipwise.results.run_folder import RunFolder
from tests.reproduced import sliding
from tests.tiny import corpus


@pytest.mark.parametrize("name", sorted(BASES))
def test_a_base_can_be_extended_from_its_window(name: str) -> None:
    base = BASES[name]
    model = new_model(base, 512)
    extension = plan_extension(model.config, interpolation="yarn")
    assert extension.rope.original_length == base.window
    assert model.config.model_type == base.model_type
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == base.differs["tie_word_embeddings"]


def test_gptj_turns_a_quarter_of_each_head() -> None:
    assert plan_extension(new_model(BASES["GPT-J"], 512).config).rope.dim == 16


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Data:
    """Text of a few documents, and bases of two steps."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(bases, "_TOKENS", 1024)
    for name, base in BASES.items():
        monkeypatch.setitem(BASES, name, replace(base, steps=2))
    return Data(source=str(corpus(tmp_path / "text", documents=12, words=700)))


def test_a_base_is_trained_once_and_kept(tiny: Data) -> None:
    console = Console(file=io.StringIO())
    folder = make_base("GPT-J", tiny, console)
    assert folder == base_folder("GPT-J", tiny) / "model"
    AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("a").input_ids
    assert load_config(str(folder)).model_type == "phi"
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_base("GPT-J", tiny, console) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights


def test_the_base_of_a_hundred_million_parameters_is_trained_on_nothing_that_is_held_out(
    tiny: Data, tmp_path, monkeypatch
) -> None:
    seen: list[PoseDataset] = []
    monkeypatch.setattr(bases, "train", lambda model, dataset, *_, **__: seen.append(dataset))
    sizes = {"window": 128, "width": 64, "layers": 1, "steps": 2, "tokens": 256}
    hundred_million.make_base(tmp_path / "base", Namespace(text=tiny.source, **sizes))
    [dataset] = seen
    _, held_out = split_by_name(dataset.store, 0.1)
    assert len(held_out)
    assert not set(held_out) & set(dataset.documents)


@pytest.mark.parametrize(("held_out", "max_tokens"), [(0, None), (0.5, None), (0, 9000)])
def test_a_base_is_trained_on_the_text_that_names_its_folder(tiny: Data, monkeypatch, held_out, max_tokens) -> None:
    seen: list[PoseDataset] = []
    monkeypatch.setattr(bases, "train", lambda model, dataset, *_, **__: seen.append(dataset))
    asked = tiny.model_copy(update={"held_out": held_out, "max_tokens": max_tokens, "retrieval": 0.5, "min_context": 9})
    bases.train_base(BASES["LLaMA2"], bases._settings(BASES["LLaMA2"]), asked, base_folder("LLaMA2", asked))
    [dataset] = seen
    store = build_token_store(asked, load_tokenizer("nano"))
    assert dataset.store.fingerprint == store.fingerprint
    assert len(dataset.documents) == len(split_by_name(store, held_out)[0])
    assert (dataset.data.passkey, dataset.data.retrieval, dataset.data.min_context) == (0.1, 0, 0)


def test_the_table_takes_the_loss_at_the_largest_window_of_each_arm_and_seed(tmp_path) -> None:
    for scheme, seed, perplexity in (("full", 1, 10.0), ("pose", 1, 11.0), ("pose", 2, 12.0)):
        run = RunFolder(tmp_path / "arms" / f"{scheme}-{seed}")
        run.path.mkdir(parents=True)
        arm = {"positions.scheme": scheme, "evaluation.arms": ["trained"], "seed": seed, "training.batch_size": 4}
        dump_recipe(load_recipe(None, arm), run.recipe)
        run.record(model={"train_length": 256, "target_length": 2048})
        append_record(run.results, sliding(99.0, window=256), sliding(perplexity, window=2048))
    found = hundred_million.far_losses(tmp_path)
    assert {key: {seed: round(math.exp(nats)) for seed, nats in seeds.items()} for key, seeds in found.items()} == {
        ("full", 4 * 2048, "x"): {1: 10},
        ("pose", 4 * 256, "x"): {1: 11, 2: 12},
    }


def test_a_base_reads_the_field_that_the_recipe_names(tiny: Data, tmp_path) -> None:
    texts = [path.read_text() for path in sorted(Path(tiny.source).iterdir())]
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps({"text": "", "body": text}) + "\n" for text in texts))
    data = tiny.model_copy(update={"source": str(records), "text_field": "body"})
    assert make_base("GPT-J", data, Console(file=io.StringIO())).exists()


def test_what_decides_a_base_decides_its_folder(tiny: Data, tmp_path, monkeypatch) -> None:
    before = base_folder("LLaMA2", tiny)
    assert base_folder("Baichuan2", tiny) != before
    other = corpus(tmp_path / "other", documents=13, words=700)
    assert base_folder("LLaMA2", tiny.model_copy(update={"source": str(other)})) != before
    assert base_folder("LLaMA2", tiny.model_copy(update={"held_out": 0.2})) != before
    copied = shutil.copytree(tiny.source, tmp_path / "copied")
    assert base_folder("LLaMA2", tiny.model_copy(update={"source": str(copied)})) == before
    monkeypatch.setitem(BASES, "LLaMA2", replace(BASES["LLaMA2"], steps=7))
    assert base_folder("LLaMA2", tiny) != before


def test_a_base_keeps_its_published_name(monkeypatch) -> None:
    fingerprint = "388ce93178a0d0f0b1b9e3cd7c1fc082100d5ca061b7821abfcf4ab495e284a0"
    monkeypatch.setattr("reproduction.bases._fingerprint", lambda source, **reading: fingerprint)
    assert base_folder("LLaMA2", Data(source="train", held_out=0)).name == "LLaMA2-7cf141edc96f"


def test_sizes_are_as_they_are_called() -> None:
    for name in ("2.6M on 2M tokens", "2.6M on 8M tokens", "12M on 8M tokens"):
        size, tokens = (float(part.rstrip("M")) for part in name.removesuffix(" tokens").split(" on "))
        assert new_model(BASES[name], 4096).num_parameters() / 1e6 == pytest.approx(size, rel=0.03)
        assert BASES[name].steps * 8192 / 1e6 == pytest.approx(tokens, rel=0.03)

"""Publishing shows everything first, uploads it when told to, and reports a refusal of the hub."""

import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, ModelCard
from rich.console import Console

from skipwise.errors import ModelError, RunError
from skipwise.model import lora
from skipwise.model.config import Origin, load_config, read_origin, require_unchanged, weights_fingerprint
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model
from skipwise.recipes.schema import Data, Lora
from skipwise.report import sharing as publishing
from skipwise.report.numbers import ReportData
from skipwise.report.rows import Folder
from skipwise.report.sharing import write_card
from tests.measured import INFO, ORIGINAL, POSE
from tests.tiny import checkpoint, llama

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors", "skipwise.json"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "model"
    llama(64).save_pretrained(folder)
    Origin("nano", 64, Data()).write(folder)
    write_card(folder, ReportData([]), "tiny", {}, "nano")
    (folder / ".hidden").write_text("a secret")
    (folder.parent / "recipe.yaml").write_text("")
    return folder.parent


class Hub:
    """Records what would be sent to the hub."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.made: list[tuple[str, bool | None]] = []
        self.sent: dict[str, bytes] = {}
        self.public = False

    def repo_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=not self.public)

    def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> str:
        if self.error:
            raise self.error
        self.made.append((name, private))
        return f"https://hub/{name}"

    def create_commit(self, name: str, operations: list[CommitOperationAdd], *, commit_message: str) -> None:
        for operation in operations:
            with operation.as_file() as file:
                self.sent[operation.path_in_repo] = file.read()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(publishing, "HfApi", lambda: made)
    return made


def publish(run: Path, name: str = "owner/tiny-64k", **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    publishing.publish(run, name, console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("private", [False, True])
def test_files_and_card_are_uploaded_when_asked(run: Path, hub: Hub, private: bool) -> None:
    before = (run / "model" / "README.md").read_bytes()
    assert all(name in publish(run, base="owner/base") for name in FILES)
    assert not hub.made
    publish(run / "model", upload=True, private=private, base="owner/base", license="mit")
    assert hub.made == [("owner/tiny-64k", private or None)]
    assert set(hub.sent) == FILES
    assert (run / "model" / "README.md").read_bytes() == before
    card = hub.sent["README.md"].decode()
    assert (ModelCard(card).data.base_model, ModelCard(card).data.license) == ("owner/base", "mit")
    assert 'from_pretrained("owner/tiny-64k"' in card
    assert "path/to/this/folder" not in card
    assert hub.sent["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base, folder = checkpoint(tmp_path / "base"), tmp_path / "adapted" / "model"
    model = lora.adapt(load_model(str(base), plan_extension(load_config(str(base)), target_length=64)), Lora(r=2))
    folder.mkdir(parents=True)
    lora.save_adapter(model, folder, str(base), None)
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base))).write(folder)
    write_card(folder, ReportData([]), "tiny", {})
    return folder


def test_an_adapter_is_published_on_a_base_on_the_hub(adapter: Path, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunError):
        publish(adapter, upload=True, license="mit")
    before = {path.name: path.read_bytes() for path in adapter.iterdir()}
    shutil.rmtree(tmp_path / "base")
    publish(adapter, upload=True, base="owner/base", license="mit")
    assert not [name for name, content in hub.sent.items() if str(tmp_path).encode() in content]
    assert 'from_pretrained("owner/base", config=config)' in hub.sent["README.md"].decode()
    assert {path.name: path.read_bytes() for path in adapter.iterdir()} == before
    published = tmp_path / "published"
    published.mkdir()
    for name, content in hub.sent.items():
        (published / name).write_bytes(content)
    require_unchanged(published)
    assert lora.base_of(str(published)) == "owner/base"
    origin = read_origin(str(published))
    assert (origin.base, origin.base_fingerprint, origin.original_length) == ("owner/base", None, 32)


def test_refusals_send_nothing(run: Path, hub: Hub, tmp_path: Path) -> None:
    hub.public = True
    with pytest.raises(RunError):
        publish(run, upload=True, private=True)
    hub.error = OSError("no route")
    with pytest.raises(RunError):
        publish(run, upload=True)
    (tmp_path / "begun").mkdir()
    with pytest.raises(ModelError):
        publish(tmp_path / "begun")
    (run / "model" / "config.json").write_text("{}")
    with pytest.raises(RunError):
        publish(run, upload=True, license="mit")
    assert not hub.sent


DATA = ReportData([Folder("run", [*ORIGINAL, *POSE], INFO)])


@pytest.fixture
def model(tmp_path):
    llama(64, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}).save_pretrained(tmp_path)
    return tmp_path


def test_a_card_has_its_table_and_figure_and_is_inert(model, tmp_path) -> None:
    figure = tmp_path / "figures.png"
    figure.write_bytes(b"png")
    write_card(model, DATA, "R&D [7B]", {"text": "a <b>"}, figure=figure)
    text = (model / "README.md").read_text()
    assert "| PoSE | 15.3 | 15.0 | 15.2 | 15.4 | 100% | 100% | 99% | 98% |" in text
    for part in (
        "\n# R&amp;D &#91;7B]\n",
        "\nReads 2,048 tokens",
        "a &lt;b&gt;",
        "AutoModelForCausalLM.from_pretrained",
    ):
        assert part in text
    assert ModelCard.load(model / "README.md").data.model_name == "R&D [7B]"
    assert (model / "figures.png").read_bytes() == b"png"


def test_the_head_names_base_license_and_results_for_the_hub(model, monkeypatch, tmp_path_factory) -> None:
    base = tmp_path_factory.mktemp("base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    monkeypatch.setattr("skipwise.report.sharing.try_to_load_from_cache", lambda *_: str(base / "README.md"))
    write_card(model, DATA, "nano, extended", {}, "owner/base")
    data = ModelCard.load(model / "README.md").data
    assert (data.base_model, data.license, data.pipeline_tag) == ("owner/base", "apache-2.0", "text-generation")
    measured = {(r.metric_name, r.metric_value) for r in data.eval_results}
    assert ("perplexity, sliding windows of 2,048 tokens", 15.4) in measured
    assert ("share found, prompts of 2,048 tokens", 0.98) in measured
    assert len(measured) == 8  # of the extended model alone

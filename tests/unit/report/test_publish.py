"""Publishing shows everything first, uploads it when told to, and reports a refusal of the hub."""

import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from rich.console import Console

from skipwise.errors import ModelError, RunError
from skipwise.model import lora
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model
from skipwise.model.origin import Origin, read_origin, require_unchanged, weights_fingerprint
from skipwise.recipes.schema import Data, Lora
from skipwise.report import model_card
from skipwise.report.model_card import write_card
from tests.tiny import checkpoint, llama

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors", "skipwise.json"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "model"
    llama(64).save_pretrained(folder)
    Origin("nano", 64, Data()).write(folder)
    write_card(folder, title="tiny", headline="Reads", facts={}, base="nano")
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

    def upload_folder(self, *, repo_id: str, folder_path: Path, ignore_patterns: list[str]) -> None:
        names = filter_repo_objects([path.name for path in folder_path.iterdir()], ignore_patterns=ignore_patterns)
        self.sent |= {name: (folder_path / name).read_bytes() for name in names}

    def upload_file(self, *, repo_id: str, path_or_fileobj: bytes, path_in_repo: str) -> None:
        self.sent[path_in_repo] = path_or_fileobj


def refuse_unknown(card: ModelCard) -> None:
    if card.data.license == "nosuch":
        raise ValueError('Invalid metadata in README.md.\n- "license" must be one of [apache-2.0, mit]')


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(model_card, "HfApi", lambda: made)
    monkeypatch.setattr(ModelCard, "validate", refuse_unknown)
    return made


def publish(run: Path, name: str = "owner/tiny-64k", **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    model_card.publish(run, name, console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("part", ["", "model"])
def test_without_upload_files_and_card_are_shown_only(run: Path, hub: Hub, part: str) -> None:
    before = (run / "model" / "README.md").read_bytes()
    text = publish(run / part, base="owner/base")
    assert all(name in text for name in FILES)
    assert ".hidden" not in text
    assert "base_model: owner/base" in text
    assert not hub.made
    assert (run / "model" / "README.md").read_bytes() == before


@pytest.mark.parametrize("private", [False, True])
def test_the_shown_files_and_card_are_uploaded(run: Path, hub: Hub, private: bool) -> None:
    publish(run, upload=True, private=private, base="owner/base", license="mit")
    assert hub.made == [("owner/tiny-64k", private or None)]
    assert set(hub.sent) == FILES
    card = hub.sent["README.md"].decode()
    assert (ModelCard(card).data.base_model, ModelCard(card).data.license) == ("owner/base", "mit")
    assert 'from_pretrained("owner/tiny-64k"' in card
    assert "path/to/this/folder" not in card
    assert hub.sent["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base, folder = checkpoint(tmp_path / "base"), tmp_path / "adapted" / "model"
    model = lora.adapt(load_model(str(base), plan_extension(load_config(str(base)), target_length=64)), Lora(rank=2))
    folder.mkdir(parents=True)
    lora.save_adapter(model, folder, str(base), None)
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base))).write(folder)
    write_card(folder, title="tiny", headline="Reads", facts={})
    return folder


def test_an_adapter_is_published_on_a_base_on_the_hub(adapter: Path, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--base"):
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
    for options in ({"name": "tiny"}, {"base": "nano"}, {"license": "nosuch", "upload": True}):
        with pytest.raises(RunError):
            publish(run, **options)
    hub.public = True
    with pytest.raises(RunError, match="public"):
        publish(run, upload=True, private=True)
    write_card(run / "model", title="tiny", headline="Reads", facts={})
    with pytest.raises(RunError, match="license"):
        publish(run, upload=True)
    (tmp_path / "begun").mkdir()
    with pytest.raises(ModelError):
        publish(tmp_path / "begun")
    (run / "model" / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"config.json"):
        publish(run, upload=True, license="mit")
    assert not hub.sent


def test_a_refusal_of_the_hub_has_its_cause(run: Path, hub: Hub) -> None:
    hub.error = OSError("no route")
    with pytest.raises(RunError, match="no route"):
        publish(run, upload=True)

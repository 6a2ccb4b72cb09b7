"""Publishing shows everything first, uploads what was shown when asked, and explains what the hub refuses."""

import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
from rich.console import Console

from skipwise.errors import ModelError, RunError
from skipwise.model import lora
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model
from skipwise.model.origin import Origin, read_origin, require_unchanged, weights_fingerprint
from skipwise.recipes.schema import Data, Lora
from skipwise.report import publish as publishing
from skipwise.report.model_card import write_card
from tests.tiny import checkpoint, llama

FILES = ["README.md", "config.json", "generation_config.json", "model.safetensors", "skipwise.json"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "model"
    llama(64).save_pretrained(folder)
    Origin("nano", 64, Data()).write(folder)
    write_card(folder, title="tiny", headline="Reads", facts={}, table="", figure=None, base="nano")
    (folder / ".hidden").write_text("a secret")
    (folder.parent / "recipe.yaml").write_text("")
    (folder.parent / "results.jsonl").write_text("")
    return folder.parent


class UnreachableError(Exception):
    """As the HTTP client's error: neither an OSError nor one of huggingface_hub's."""


class Hub:
    """What would have gone to the hub."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.made, self.sent, self.public = error, [], [], False

    def repo_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=not self.public)

    def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        if self.error:
            raise self.error
        self.made.append((name, private))

    def create_commit(self, repo_id: str, operations: list[CommitOperationAdd], *, commit_message: str) -> str:
        sent = {}
        for added in operations:
            with added.as_file() as file:
                sent[added.path_in_repo] = file.read()
        self.sent.append((repo_id, sent))
        return "https://hub/commit/1"


def refuse_unknown(card: ModelCard) -> None:
    """As the hub judges a card."""
    if card.data.license == "nosuch":
        raise ValueError('Invalid metadata in README.md.\n- "license" must be one of [apache-2.0, mit]')


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(publishing, "HfApi", lambda: made)
    monkeypatch.setattr(ModelCard, "validate", refuse_unknown)
    return made


def said(run: Path, name: str = "owner/tiny-64k", **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    publishing.publish(run, name, console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("of", ["", "model"])
def test_nothing_is_published_until_asked_and_everything_is_shown(run: Path, hub: Hub, of: str) -> None:
    before = (run / "model" / "README.md").read_bytes()
    text = said(run / of, base="owner/base")
    assert all(name in text for name in FILES)
    assert ".hidden" not in text
    assert f"{(run / 'model' / 'model.safetensors').stat().st_size:,}" in text
    assert "base_model: owner/base" in text
    assert "Nothing was published. To publish 5 files as owner/tiny-64k, add --upload." in text
    assert not hub.made
    assert not hub.sent
    assert (run / "model" / "README.md").read_bytes() == before


def test_a_published_card_loads_the_model_from_its_repository(run: Path, hub: Hub) -> None:
    said(run, upload=True, base="owner/base", license="mit")
    [(_, sent)] = hub.sent
    assert 'from_pretrained("owner/tiny-64k"' in sent["README.md"].decode()
    assert b"path/to/this/folder" not in sent["README.md"]
    said(run, "owner/other", upload=True, base="owner/base", license="mit")  # the card on the disk names neither
    assert 'from_pretrained("owner/other"' in hub.sent[1][1]["README.md"].decode()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base, folder = checkpoint(tmp_path / "base"), tmp_path / "adapted" / "model"
    model = lora.adapt(load_model(str(base), plan_extension(load_config(str(base)), target_length=64)), Lora(rank=2))
    folder.mkdir(parents=True)
    lora.save_adapter(model, folder, str(base), None)
    Origin(str(base), 32, Data(), base_fingerprint=weights_fingerprint(str(base))).write(folder)
    write_card(folder, title="tiny", headline="Reads", facts={}, table="", figure=None)
    return folder


def test_an_adapter_is_published_on_its_base_on_the_hub(adapter: Path, hub: Hub, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in adapter.iterdir()}
    shutil.rmtree(tmp_path / "base")  # it is not needed
    shown = said(adapter, upload=True, base="owner/base", license="mit")
    assert f"{adapter} -> owner/tiny-64k" in " ".join(shown.split())
    [(_, sent)] = hub.sent
    assert not [name for name, content in sent.items() if str(tmp_path).encode() in content]
    assert 'from_pretrained("owner/base", config=config)' in sent["README.md"].decode()
    assert {path.name: path.read_bytes() for path in adapter.iterdir()} == before
    published = tmp_path / "published"
    published.mkdir()
    for name, content in sent.items():
        (published / name).write_bytes(content)
    require_unchanged(published)
    assert lora.base_of(str(published)) == "owner/base"
    origin = read_origin(str(published))
    assert (origin.base, origin.base_fingerprint, origin.original_length) == ("owner/base", None, 32)


def test_an_adapter_on_a_folder_is_not_published_without_a_base(adapter: Path, hub: Hub) -> None:
    with pytest.raises(RunError, match=r"is an adapter of .*, which is no name on the hub; give .* --base OWNER/NAME"):
        said(adapter, upload=True, license="mit")
    assert not hub.sent


def test_a_public_repository_that_is_there_gets_no_private_model(run: Path, hub: Hub) -> None:
    hub.public = True
    with pytest.raises(RunError, match="owner/tiny-64k is there already, and public"):
        said(run, upload=True, private=True, base="owner/base")
    assert not hub.sent


@pytest.mark.parametrize("private", [False, True])
def test_what_was_shown_is_uploaded(run: Path, hub: Hub, private: bool) -> None:
    text = said(run, upload=True, private=private, base="owner/base", license="mit")
    assert hub.made == [("owner/tiny-64k", private or None)]
    [(name, sent)] = hub.sent
    assert name == "owner/tiny-64k"
    assert sorted(sent) == FILES
    data = ModelCard(sent["README.md"].decode()).data
    assert (data.base_model, data.license) == ("owner/base", "mit")
    assert sent["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert "published: https://hub/commit/1" in text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalTokenNotFoundError("no token"), "none is here; log in with `hf auth login`"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (
            UnreachableError("[Errno 111] Connection refused"),
            r"\(UnreachableError: \[Errno 111\] Connection refused\); .* the network",
        ),
        (OSError("no route"), r"the hub does not take owner/tiny-64k \(OSError: no route\); check the name"),
    ],
)
def test_a_hub_that_refuses_is_explained(run: Path, hub: Hub, error: Exception, message: str) -> None:
    hub.error = error
    with pytest.raises(RunError, match=message):
        said(run, upload=True)


def test_a_card_without_a_license_is_not_published(run: Path, hub: Hub) -> None:
    write_card(run / "model", title="tiny", headline="Reads", facts={}, table="", figure=None)
    with pytest.raises(RunError, match=r"names no license; give that of the base, for example --license apache-2\.0"):
        said(run, upload=True)
    assert not hub.made


@pytest.mark.parametrize(("license", "meant"), [("nosuch", ""), ("apache2.0", r" \(did you mean apache-2\.0\?\)")])
def test_a_license_that_the_hub_may_not_know_is_refused_before_an_upload_is_advised(
    run: Path, hub: Hub, license: str, meant: str
) -> None:
    rule = rf"license '{license}' is not among the \d+ identifiers that the hub is known to accept{meant}; the hub refuses a card"
    way = r"Give --license one of those on https://huggingface.co/docs/hub/repositories-licenses, or other"
    with pytest.raises(RunError, match=rf"{rule}.*{way}\. If the hub has added it since, --upload asks the hub before"):
        said(run, license=license)
    assert not hub.made


def test_a_license_that_the_hub_has_added_since_is_doubted_and_published(run: Path, hub: Hub) -> None:
    assert re.search(r"license 'new-1\.0' is not among the", said(run, license="new-1.0", upload=True))
    assert hub.made


@pytest.mark.parametrize("license", ["mit", "llama3.1", "other"])
def test_a_license_that_the_hub_knows_is_not_doubted(run: Path, hub: Hub, license: str) -> None:
    assert "is not among" not in said(run, license=license)


def test_a_card_that_the_hub_refuses_makes_no_repository(run: Path, hub: Hub) -> None:
    before = (run / "model" / "README.md").read_bytes()
    with pytest.raises(
        RunError, match=r"license is 'nosuch' \(.*\"license\" must be one of .*\); give another --license"
    ):
        said(run, upload=True, license="nosuch")
    assert not hub.made
    assert (run / "model" / "README.md").read_bytes() == before


def test_what_is_no_finished_model_is_refused(run: Path, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"'tiny' is no name of a repository; give OWNER/NAME"):
        said(run, "tiny")
    with pytest.raises(RunError, match=r"--base 'nano' is no name of a model on the hub"):
        said(run, base="nano")
    with pytest.raises(ModelError, match="there is no folder"):
        said(tmp_path / "nothing")
    (tmp_path / "begun").mkdir()
    with pytest.raises(ModelError, match="begun holds no finished model"):
        said(tmp_path / "begun")
    (run / "model" / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"config.json"):
        said(run, upload=True)
    assert not hub.made

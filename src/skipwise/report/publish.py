"""Publish a finished model as a repository of the model hub: its files, and the card with its name there."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, ModelCard
from rich.console import Console

from skipwise.errors import ModelError, RunError, reason
from skipwise.model import lora
from skipwise.model.origin import FILE, read_seal, require_unchanged, write_seal
from skipwise.recipes.names import model_name
from skipwise.report.model_card import HERE, is_hub_name

_CARD = "README.md"
_LEFT_OUT = [".*", _CARD]  # hidden files may have secrets; the card is sent as it was shown


def publish(
    model: Path,
    name: str,
    console: Console,
    *,
    upload: bool = False,
    private: bool = False,
    base: str | None = None,
    license: str | None = None,
) -> None:
    """Show a model's files and card; with ``upload`` publish them as OWNER/NAME.

    ``base`` (a hub name) and ``license`` (an identifier of the hub) replace those of the card.

    Raises:
        ModelError: there is no finished model.
        RunError: a name is not OWNER/NAME, the card has no license, or the hub refuses.
    """
    folder = Path(model_name(str(model)))
    if not (folder / "config.json").exists() or not (folder / _CARD).exists():
        raise ModelError(f"{folder} has no finished model; finish the run with --resume, or give another folder")
    require_unchanged(folder)
    for given in filter(None, (name, base)):
        if not is_hub_name(given):
            raise RunError(f"{given!r} is not a name on the hub; give OWNER/NAME")
    with _with_hub_base(folder, base) as published:
        card = ModelCard.load(published / _CARD)
        card.text = card.text.replace(HERE, name)
        card.data.base_model = base or card.data.base_model
        card.data.license = license or card.data.license
        if not card.data.license:
            raise RunError(f"{folder / _CARD} has no license; give the base's, for example --license apache-2.0")
        files = [path for path in sorted(published.iterdir()) if path.is_file() and not path.name.startswith(".")]
        for path in files:
            console.print(f"{path.stat().st_size:>16,}  {path.name}", markup=False, highlight=False)
        console.print(f"\n{card}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{FILE} has the names of the base and of the training text.", style="yellow")
        if not upload:
            console.print(f"Nothing was published. To publish these files as {name}, add --upload.")
            return
        api = HfApi()
        try:
            card.validate()  # by the hub, before a repository is made
            url = api.create_repo(name, private=private or None, exist_ok=True)
            public = private and not api.repo_info(name).private
            if not public:
                api.upload_folder(repo_id=name, folder_path=published, ignore_patterns=_LEFT_OUT)
                api.upload_file(repo_id=name, path_or_fileobj=str(card).encode(), path_in_repo=_CARD)
        except Exception as error:  # of the hub's HTTP client
            text = reason(ValueError(" ".join(str(error).split())))
            raise RunError(
                f"the hub refuses {name} ({type(error).__name__}: {text}); log in with `hf auth login`, unset "
                "HF_HUB_OFFLINE, check name, license and network, and run the command again"
            ) from error
        if public:
            raise RunError(f"{name} exists and is public; make it private on the hub, or give another name")
        console.print(f"published: {url}")


@contextmanager
def _with_hub_base(folder: Path, base: str | None) -> Iterator[Path]:
    """Yield the folder, or a copy of a local-base adapter with ``base``."""
    own = lora.base_of(str(folder))
    if own is None or is_hub_name(own):
        yield folder
        return
    if base is None:
        raise RunError(f"{folder} is an adapter of {own}, which is not a name on the hub; give --base OWNER/NAME")
    with TemporaryDirectory() as place:
        copied = Path(shutil.copytree(folder, Path(place) / folder.name))
        lora.name_base(copied, base)
        text = (copied / _CARD).read_text(encoding="utf-8")
        text = re.sub(r'(?<=from_pretrained\()".*?"(?=, config=config\))', lambda _: json.dumps(base), text)
        (copied / _CARD).write_text(text, encoding="utf-8")
        facts = {key: value for key, value in (read_seal(folder) or {}).items() if key != "files"}
        write_seal(copied, facts | {"base": base, "base_fingerprint": None})  # on the hub a commit is the fingerprint
        yield copied

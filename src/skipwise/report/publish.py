"""A finished model -> a repository on the model hub: its files as they lie in the run, and the card.

huggingface_hub uploads, and finds the user's token itself.
"""

from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
from rich.console import Console

from skipwise.errors import ModelError, RunError, counted, reason
from skipwise.model.sealed import FILE, require_unchanged
from skipwise.report.model_card import is_hub_name
from skipwise.report.tables import Table, rich_table

_CARD = "README.md"


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
    """Show what would be published of a run or a model's folder; with ``upload``, do it.

    Args:
        model: a run folder, or the folder of a model that Skipwise saved.
        name: of the repository, OWNER/NAME; it is created if it is not there.
        upload: publish; without it nothing leaves this machine.
        private: create the repository for its owner alone.
        base: the base's name on the hub, where the card names none.
        license: the model's license, as "apache-2.0", where the card names none.

    Raises:
        ModelError: there is no finished model, or it is not what was saved.
        RunError: the name is none, the card lacks a license, or the hub refuses.
    """
    folder = _folder(model)
    if not is_hub_name(name):
        raise RunError(f"{name!r} is no name of a repository; give OWNER/NAME, as on https://huggingface.co")
    card = _card(folder, base, license)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    sizes = [[path.name, f"{path.stat().st_size:,}"] for path in files]
    console.print(rich_table(Table(f"{folder} -> {name}", "bytes", ["file", "bytes"], sizes)))
    console.print(f"the card, {_CARD}:\n\n{card}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{FILE} names the base, and the training text as its recipe does.", style="yellow")
    if not card.data.get("license"):
        raise RunError(f"{folder / _CARD} names no license; give that of the base, for example --license apache-2.0")
    if not upload:
        console.print(f"Nothing was published. To publish {counted(len(files), 'file')} as {name}, add --upload.")
        return
    card.save(folder / _CARD)
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=[path.name for path in files],
            commit_message="Add the model",
        )
    except LocalTokenNotFoundError as error:
        raise RunError("the hub knows you by a token, and none is here; log in with `hf auth login`") from error
    except OfflineModeIsEnabled as error:
        raise RunError("HF_HUB_OFFLINE is set, so the hub is not asked; unset it to publish") from error
    except Exception as error:  # of the HTTP client, which differs between releases of huggingface_hub
        raise RunError(
            f"the hub does not take {name} ({type(error).__name__}: {reason(error)}); check the name, that your token may "
            "write there, and the network. Run the command again: files that are there are not sent twice"
        ) from error
    console.print(f"published: {commit}")


def _folder(model: Path) -> Path:
    folder = model / "model" if (model / "recipe.yaml").exists() or (model / "run.json").exists() else model
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} holds no finished model; finish the run with --resume, or give another folder")
    require_unchanged(folder)
    if not (folder / _CARD).exists():
        raise ModelError(f"{folder} has no card ({_CARD}); skipwise extend --resume on its run writes it")
    return folder


def _card(folder: Path, base: str | None, license: str | None) -> ModelCard:
    card = ModelCard.load(folder / _CARD)
    if base is not None:
        if not is_hub_name(base):
            raise RunError(f"--base {base!r} is no name of a model on the hub; give OWNER/NAME")
        card.data.base_model = base
    if license is not None:
        card.data.license = license
    return card

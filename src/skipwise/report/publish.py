"""A finished model -> a repository on the model hub: its files as they lie in the run, and the card.

huggingface_hub uploads, and finds the user's token itself. The hub judges the card before a repository is made.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
from rich.console import Console

from skipwise.errors import ModelError, RunError, counted, nearest, reason
from skipwise.model import lora
from skipwise.model.origin import FILE, read_seal, require_unchanged, write_seal
from skipwise.recipes.names import model_name
from skipwise.report.model_card import HERE, is_hub_name
from skipwise.report.tables import Table, rich_table

_CARD = "README.md"
_IDENTIFIERS = "https://huggingface.co/docs/hub/repositories-licenses"
# The hub's identifiers of licenses in 2026. It adds new ones, so an upload with another asks the hub, which refuses it or not.
_LICENSES = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl
lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 pddl postgresql unknown unlicense wtfpl zlib other
"""


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
        base: the base's name on the hub, where the card names none; an adapter on a folder is published on this base.
        license: the hub's identifier of the model's license, as "apache-2.0", where the card names none.

    Raises:
        ModelError: there is no finished model, or it is not what was saved.
        RunError: a name is none, an adapter's base has none on the hub, the card lacks a license that the hub is known to
            accept, or the hub refuses it or the files.
    """
    folder = _folder(model)
    if not is_hub_name(name):
        raise RunError(f"{name!r} is no name of a repository; give OWNER/NAME, as on https://huggingface.co")
    if base is not None and not is_hub_name(base):
        raise RunError(f"--base {base!r} is no name of a model on the hub; give OWNER/NAME")
    with _on_the_hub(folder, base) as published:
        card = _card(published, name, base, license)
        files: dict[str, Path | bytes] = {
            path.name: path for path in sorted(published.iterdir()) if path.is_file() and not path.name.startswith(".")
        }
        files[_CARD] = str(card).encode()
        sizes = [
            [file, f"{len(held) if isinstance(held, bytes) else held.stat().st_size:,}"] for file, held in files.items()
        ]
        console.print(rich_table(Table(f"{folder} -> {name}", "bytes", ["file", "bytes"], sizes)))
        console.print(f"the card, {_CARD}:\n\n{card}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{FILE} names the base, and the training text as its recipe does.", style="yellow")
        _require_license(card, folder, upload, console)
        if not upload:
            console.print(f"Nothing was published. To publish {counted(len(files), 'file')} as {name}, add --upload.")
            return
        console.print(f"published: {_upload(card, folder, files, name, private)}")


@contextmanager
def _on_the_hub(folder: Path, base: str | None) -> Iterator[Path]:
    """The folder to publish: of an adapter whose base has no name on the hub, a copy that names ``base``."""
    own = lora.base_of(str(folder))
    if own is None or is_hub_name(own):
        yield folder
        return
    if base is None:
        raise RunError(
            f"{folder} is an adapter of {own}, which is no name on the hub; give the base's: --base OWNER/NAME"
        )
    with TemporaryDirectory() as place:
        copied = Path(shutil.copytree(folder, Path(place) / folder.name))
        lora.name_base(copied, base)
        card = ModelCard.load(copied / _CARD)
        card.text = re.sub(r'(?<=from_pretrained\()".*?"(?=, config=config\))', lambda _: json.dumps(base), card.text)
        card.save(copied / _CARD)
        about = {key: value for key, value in (read_seal(folder) or {}).items() if key != "files"}
        # The fingerprint of a model on the hub is its commit.
        write_seal(copied, about | {"base": base, "base_fingerprint": None})
        yield copied


def _require_license(card: ModelCard, folder: Path, upload: bool, console: Console) -> None:
    """Require a license; of one that the hub may not know, an upload asks the hub."""
    if not card.data.get("license"):
        raise RunError(f"{folder / _CARD} names no license; give that of the base, for example --license apache-2.0")
    if doubt := _doubt(card.data["license"]):
        if not upload:
            raise RunError(f"{doubt}. If the hub has added it since, --upload asks the hub before a repository is made")
        console.print(doubt, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _doubt(license: str | list[str]) -> str | None:
    """What to say of a license that the hub may not know."""
    named, known = [license] if isinstance(license, str) else license, _LICENSES.split()
    unknown = [name for name in named if name not in known]
    if not unknown:
        return None
    return (
        f"license {unknown[0]!r} is not among the {len(known)} identifiers that the hub is known to accept"
        f"{nearest(unknown[0], known)}; the hub refuses a card with a license that it does not know. Give --license one of "
        f"those on {_IDENTIFIERS}, or other"
    )


def _upload(card: ModelCard, folder: Path, files: dict[str, Path | bytes], name: str, private: bool) -> str:
    """Publish ``files``, with the card among them, as the repository ``name``, and return the commit's address."""
    api = HfApi()
    try:
        _require_accepted(card, folder)
        # None leaves it to the hub: an organisation's repositories may be private by default.
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise RunError(f"{name} is there already, and public; make it private on the hub, or give another name")
        added = [
            CommitOperationAdd(file, str(held) if isinstance(held, Path) else held) for file, held in files.items()
        ]
        return str(api.create_commit(name, added, commit_message="Add the model"))
    except RunError:
        raise
    except LocalTokenNotFoundError as error:
        raise RunError("the hub knows you by a token, and none is here; log in with `hf auth login`") from error
    except OfflineModeIsEnabled as error:
        raise RunError("HF_HUB_OFFLINE is set, so the hub is not asked; unset it to publish") from error
    except Exception as error:  # of the HTTP client, which differs between releases of huggingface_hub
        raise RunError(
            f"the hub does not take {name} ({type(error).__name__}: {reason(error)}); check the name, that your token may "
            "write there, and the network. Run the command again: files that are there are not sent twice"
        ) from error


def _require_accepted(card: ModelCard, folder: Path) -> None:
    """Ask the hub about the card; refused only with the files, it would leave an empty repository."""
    license = card.data["license"]
    try:
        card.validate()
    except ValueError as error:
        said = reason(ValueError(" ".join(str(error).split())))  # its first line alone names no field
        raise RunError(
            f"the hub refuses the card, whose license is {license!r} ({said}); give another --license, or correct "
            f"the head of {folder / _CARD}. Identifiers of licenses: {_IDENTIFIERS}"
        ) from error


def _folder(model: Path) -> Path:
    folder = Path(model_name(str(model)))
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} holds no finished model; finish the run with --resume, or give another folder")
    require_unchanged(folder)
    if not (folder / _CARD).exists():
        raise ModelError(f"{folder} has no card ({_CARD}); skipwise extend --resume on its run writes it")
    return folder


def _card(folder: Path, name: str, base: str | None, license: str | None) -> ModelCard:
    card = ModelCard.load(folder / _CARD)
    card.text = card.text.replace(HERE, name)
    if base is not None:
        card.data.base_model = base
    if license is not None:
        card.data.license = license
    return card

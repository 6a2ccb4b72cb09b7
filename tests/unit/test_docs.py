"""Documents, Dockerfile and package say the same: links, files, settings, names, versions."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import skipwise
from skipwise.recipes.loading import shipped_recipes
from skipwise.recipes.schema import Data, Evaluation, Lora, Positions, Recipe, Training

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not [name for name in re.findall(r"`(tests/[\w/]+\.py)`", text) if not (ROOT / name).exists()]


def test_architecture_has_a_line_for_every_file() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "skipwise"
    files = [path.relative_to(source) for path in source.rglob("*.py")]
    inner = [path.as_posix() for path in files if len(path.parts) == 1 or path.name != "__init__.py"]
    assert not [name for name in inner if name not in text]
    named = re.findall(r"^  ([\w/]+\.py) ", text, flags=re.MULTILINE)
    assert not [name for name in named if not (source / name).exists()]


def test_recipes_page_has_every_setting_and_every_recipe() -> None:
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    sections = {"positions", "data", "training", "lora", "evaluation"}
    keys = {key for part in (Recipe, Positions, Data, Training, Lora, Evaluation) for key in part.model_fields}
    assert not [key for key in keys - sections if f"| `{key}` |" not in text]
    assert not [name for name in shipped_recipes() if f"`{name}`" not in text]


def test_the_release_has_one_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d\S*)\]", changes, flags=re.MULTILINE)[0] == skipwise.__version__
    assert f"skipwise-{skipwise.__version__}-py3-none-any.whl" in (DOCS / "quickstart.md").read_text(encoding="utf-8")


def test_messages_name_extras_that_exist_and_no_index_that_lacks_the_package() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*SOURCES, *PAGES) if path.name != "CHANGELOG.md"]
    named = {name for text in texts for name in re.findall(r"pip_install\('(\w+)'\)", text)}
    assert named
    assert named <= set(PROJECT["optional-dependencies"])
    assert not [text for text in texts if "skipwise[" in text]


def test_the_image_has_a_version_of_every_dependency_that_the_project_allows() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    [install] = [words for line in lines if line.startswith("RUN") and "--constraint" in (words := shlex.split(line))]
    extras = [
        need for extra in ("qlora", "sentencepiece", "server") for need in PROJECT["optional-dependencies"][extra]
    ]
    needed = {canonicalize_name(r.name): r for r in map(Requirement, [*PROJECT["dependencies"], *extras])}
    pinned = dict(word.split("==") for word in install if "==" in word)
    pinned |= dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    assert versions.keys() == needed.keys()
    assert not [name for name, version in versions.items() if not needed[name].specifier.contains(version)]
    assert "USER skipwise" in lines
    sources = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    let_through = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{source}" for source in sources} == {word for word in let_through if word.startswith("!")}

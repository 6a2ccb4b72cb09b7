"""The documents name what exists: links, files, tests, settings and recipes."""

import re
from pathlib import Path

import pytest

from skipwise import __version__
from skipwise.recipes.loading import shipped_recipes
from skipwise.recipes.schema import Data, Evaluation, Lora, Positions, Recipe, Training

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_a_benchmark_that_imports_from_the_checkout_is_run_as_a_module() -> None:
    """Of a script, its own folder is on Python's path, and not the checkout."""
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in (*scripts, *PAGES)]
    imports = re.compile(r"^from (benchmarks|reproduction)\b", flags=re.MULTILINE)
    modules = [script.name for script in scripts if imports.search(script.read_text(encoding="utf-8"))]
    assert modules
    for name in modules:
        assert not [text for text in texts if f"python benchmarks/{name}" in text], name


def test_architecture_has_a_line_for_every_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "skipwise"
    files = [path.relative_to(source) for path in source.rglob("*.py")]
    inner = [path.as_posix() for path in files if len(path.parts) == 1 or path.name != "__init__.py"]
    assert not [name for name in inner if name not in text]
    named = re.findall(r"^  ([\w/]+\.py) ", text, flags=re.MULTILINE)
    assert not [name for name in named if not (source / name).exists()]


def test_recipes_page_has_every_setting_and_every_recipe() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = {"positions", "data", "training", "lora", "evaluation"}
    keys = {key for part in (Recipe, Positions, Data, Training, Lora, Evaluation) for key in part.model_fields}
    assert not [key for key in keys - sections if f"| `{key}` |" not in text]
    assert not [name for name in shipped_recipes() if f"`{name}`" not in text]


def test_no_package_index_is_configured() -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert "index-url" not in text


def test_the_release_has_one_version_and_one_date() -> None:
    """The changelog's newest release is the package's version, of the citation's date; each heading stands once."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes.count("\n## [Unreleased]\n") == 1
    version, date = re.findall(r"^## \[(\d\S*)\] - (\d{4}-\d\d-\d\d)$", changes, flags=re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert version == __version__
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert f"skipwise-{version}-py3-none-any.whl" in (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for release in changes.split("\n## [")[1:]:
        headings = re.findall(r"^### (\w+)$", release, flags=re.MULTILINE)
        assert headings == [name for name in ("Added", "Changed", "Removed", "Fixed") if name in headings]

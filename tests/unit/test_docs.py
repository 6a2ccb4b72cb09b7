"""The documents name what exists: links, files, tests, settings and recipes."""

import re
from pathlib import Path

import pytest

from skipwise.recipes.schema import Data, Evaluation, Lora, Positions, Recipe, Teacher, Training, shipped_recipes

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


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
    sections = {"positions", "data", "training", "lora", "teacher", "evaluation"}
    keys = {key for part in (Recipe, Positions, Data, Training, Lora, Teacher, Evaluation) for key in part.model_fields}
    assert not [key for key in keys - sections if f"| `{key}` |" not in text]
    assert not [name for name in shipped_recipes() if f"`{name}`" not in text]


def test_no_package_index_is_configured() -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert "index-url" not in text

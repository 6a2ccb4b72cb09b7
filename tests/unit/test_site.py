"""The site's reference has every public name, and its navigation every page."""

import re
from pathlib import Path

import yaml

import skipwise

ROOT = Path(__file__).parents[2]


def test_the_reference_has_every_public_name() -> None:
    entries = re.findall(
        r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert sorted(entries) == sorted(f"{module}.{name}" for name, module in skipwise._PUBLIC.items())


def test_the_navigation_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r": (\S+\.md)$", str(yaml.safe_dump(site["nav"])), flags=re.MULTILINE))
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in [*docs.glob("*.md"), *docs.glob("tutorials/*.md")]}
    assert not pages - named - {line.removeprefix("/") for line in site["not_in_nav"].split()}
    assert named - pages == {"index.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "reproduction/better.md"}

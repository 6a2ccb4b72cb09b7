"""What must be installed besides is named by commands that work: no package index has Skipwise."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from skipwise import errors
from skipwise.errors import pip_install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_the_packages_of_an_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        "torch>=2.9",
        "more; python_version >= '3'",
        "peft>=0.18; extra == 'qlora'",
        "bitsandbytes<2,>=0.46.1; sys_platform != 'none' and extra == 'qlora'",
        "absent; sys_platform == 'none' and extra == 'qlora'",
        "lm-eval; extra == 'benchmarks'",
    ]
    monkeypatch.setattr(errors, "requires", lambda name: needs)
    assert pip_install("qlora") == "pip install 'peft>=0.18' 'bitsandbytes<2,>=0.46.1'"
    assert pip_install("qlora", "benchmarks").endswith(" 'lm-eval'")


def test_where_nothing_is_installed_the_checkout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(errors, "requires", absent)
    assert pip_install("lora") == "pip install -e '.[lora]'"


def test_messages_name_extras_that_exist() -> None:
    named = {name for path in SOURCES for name in re.findall(r"pip_install\('(\w+)'\)", path.read_text())}
    assert named == {"lora", "qlora", "benchmarks", "deepspeed", "smollm2", "gguf", "sentencepiece", "ruler"}
    assert named <= set(EXTRAS)


@pytest.mark.parametrize(
    "path", [*SOURCES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_nothing_is_installed_from_an_index_that_lacks_it(path: Path) -> None:
    assert "skipwise[" not in path.read_text(encoding="utf-8")

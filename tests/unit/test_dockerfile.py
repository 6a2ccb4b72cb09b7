"""The Dockerfile agrees with the project. No engine builds it here, so this is what can be checked without one."""

import re
import shlex
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = ("qlora", "sentencepiece")


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its argument, with continued lines joined."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    pairs = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, argument) for name, argument in pairs]


def of(name: str) -> list[str]:
    return [argument for instruction, argument in instructions() if instruction == name]


def test_it_installs_a_version_of_every_dependency_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for extra in EXTRAS for need in project["optional-dependencies"][extra]]
    needed = {canonicalize_name(r.name): r for r in map(Requirement, [*project["dependencies"], *extras])}
    [install] = [words for line in of("RUN") if "--constraint" in (words := shlex.split(line))]
    pinned = dict(word.split("==") for word in install if "==" in word)
    pinned |= dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    assert versions.keys() == needed.keys()
    assert not [name for name, version in versions.items() if not needed[name].specifier.contains(version)]
    assert "torch" in install


def test_its_image_is_pinned_and_its_user_is_not_root() -> None:
    [image] = of("FROM")
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-\S+", image)
    assert of("USER") == ["skipwise"]
    assert of("ENTRYPOINT") == ['["skipwise"]']
    assert [name for name, _ in instructions()][-2:] == ["USER", "ENTRYPOINT"]


def test_what_it_copies_is_there_and_is_not_ignored() -> None:
    sources = {word for line in of("COPY") for word in line.split()[:-1]}
    let_through = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{source}" for source in sources} == {word for word in let_through if word.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)

"""``import skipwise`` is cheap, and every public name is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import skipwise


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, skipwise; assert not {'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_method_needs_numpy_alone() -> None:
    script = (
        "import sys; from skipwise import Rng, pose, coverage, frequencies, rope_parameters, parse_length; "
        "assert not {'torch', 'transformers', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", skipwise.__all__)
def test_public_names_exist_and_say_what_they_are(name: str) -> None:
    assert getattr(skipwise, name)
    assert name in dir(skipwise)
    if name != "__version__":
        assert getattr(skipwise, name).__doc__


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    source = Path(skipwise.__file__).read_text(encoding="utf-8")
    imports = {name: module for module, name in re.findall(r"from (\S+) import (\w+) as \2", source)}
    assert imports == skipwise._PUBLIC


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'pos'"):
        skipwise.pos  # noqa: B018

"""``import skipwise`` is cheap, and every public name is there."""

import subprocess
import sys

import pytest

import skipwise


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, skipwise; assert not {'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules)"
    )
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


def test_the_list_is_read_from_the_imports_for_type_checkers() -> None:
    assert {"PoseDataset", "PoseCollator", "plan_extension", "Recipe"} <= set(skipwise.__all__)
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(skipwise.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'pos'"):
        skipwise.pos  # noqa: B018

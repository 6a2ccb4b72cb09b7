"""``import skipwise`` is cheap, and every public name is there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skipwise


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        ("import skipwise.cli", "torch numpy transformers pydantic rich.progress"),
        ("from skipwise import Rng, pose, coverage, frequencies, rope_parameters", "torch transformers pydantic yaml"),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(imported: str, heavy: str) -> None:
    script = f"import sys; {imported}; assert not set({heavy.split()}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names_exist_and_say_what_they_are() -> None:
    for name in skipwise.__all__:
        assert name in dir(skipwise)
        assert name == "__version__" or getattr(skipwise, name).__doc__
    tree = ast.parse(Path(skipwise.__file__).read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imports = {name.name: node.module for node in froms for name in node.names if name.asname == name.name}
    assert imports == skipwise._MODULES  # which type checkers see
    with pytest.raises(AttributeError):
        skipwise.pos  # noqa: B018

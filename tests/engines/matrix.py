"""All families and interpolations, read by every reader. ``python -m tests.engines.matrix OUT.md`` writes the table."""

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from skipwise.engines.check import TOLERANCE, Comparison, compare
from skipwise.errors import EngineError
from tests.engines import reading
from tests.engines.cells import CELLS
from tests.engines.models import extended
from tests.engines.reading import READERS, compare_gguf, engine_of, read_many, request


class Matrix:
    """Checkpoints of ``cells`` in a folder, and what each reader makes of them; each is read once."""

    def __init__(self, folder: Path, cells: list[tuple[str, str]]) -> None:
        self._folder, self._cells = folder, cells
        self.rows = cache(self._rows)

    @cache  # noqa: B019 (lives as long as the tests)
    def reference(self) -> reading.Read:
        return read_many(reading.reference(), list(self.folders().values()), self._folder)

    @cache  # noqa: B019
    def folders(self) -> dict[tuple[str, str], Path]:
        return {cell: extended(self._folder, *cell) for cell in self._cells}

    def _rows(self, reader: str) -> dict[tuple[str, str], Comparison]:
        reference = self.reference()
        if reader == "llama.cpp":
            return {cell: compare_gguf(reference, at, self._folder) for cell, at in self.folders().items()}
        read = read_many(engine_of(reader), list(self.folders().values()), self._folder)
        made = {}
        for cell, at in self.folders().items():
            asked = request().of(at)
            try:
                made[cell] = compare(reference.answer(asked), read, asked, TOLERANCE)
            except EngineError as error:
                made[cell] = Comparison(read, {}, TOLERANCE, str(error))
        return made


def largest(made: Comparison) -> float:
    """The largest difference at any depth, in nats."""
    return max(largest for largest, _ in made.depths.values())


def table(matrix: Matrix) -> str:
    """The matrix in Markdown: the largest differences in nats."""
    rows = {reader: matrix.rows(reader) for reader in READERS}
    heads = [f"{engine_of(reader).name} {engine_of(reader).version}" for reader in READERS]
    lines = ["| family | interpolation | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for cell in CELLS:
        made = [rows[reader][cell] for reader in READERS]
        cells = ["refused" if one.problem else f"{largest(one):.1e}" for one in made]
        lines.append("| " + " | ".join([*cell, *cells]) + " |")
    reasons = {
        (head, " ".join(one.problem.replace(str(matrix.folders()[cell]), "MODEL").split())[:200])
        for head, reader in zip(heads, READERS, strict=True)
        for cell, one in rows[reader].items()
        if one.problem
    }
    return "\n".join([*lines, "", *(f"- {head}: {reason}" for head, reason in sorted(reasons))]) + "\n"


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(table(Matrix(Path(folder), CELLS)), encoding="utf-8")

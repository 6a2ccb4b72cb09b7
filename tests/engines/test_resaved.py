"""A checkpoint that another version of transformers loaded and saved again."""

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from skipwise.engines.check import TOLERANCE, Comparison, compare
from skipwise.model.loading import load_tokenizer
from tests.engines import reading
from tests.engines.cells import BOUND
from tests.engines.matrix import largest
from tests.engines.models import INTERPOLATIONS, extended
from tests.engines.reading import engine_of, read_many, request
from tests.engines.resave_many import TEXT

pytestmark = pytest.mark.timeout(900)
NEWEST = "transformers 5, newest"
SAVERS = ("transformers 4.45", "transformers 4.57", "transformers 5, oldest", NEWEST)
FAMILIES = ("llama", "gpt_neox")
CELLS = [(family, interpolation) for family in FAMILIES for interpolation in INTERPOLATIONS[:4]]


class Resaved:
    """Checkpoints saved again by each version, and read by others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = {cell: extended(folder, *cell) for cell in CELLS}
        self._reference = read_many(reading.reference(), list(self._sources.values()), folder)
        self.tokens, self.read = cache(self._tokens), cache(self._read)

    def _at(self, saver: str, cell: tuple[str, str]) -> Path:
        return self._folder / saver / ".".join(cell)

    def _tokens(self, saver: str) -> list[list[int]]:
        """Save all again; the tokens of a text by each."""
        python = reading.reference().python if saver == NEWEST else engine_of(saver).python
        work = self._folder / saver
        work.mkdir()
        (work / "jobs.json").write_text(
            json.dumps([[str(self._sources[cell]), str(self._at(saver, cell))] for cell in CELLS])
        )
        script = Path(__file__).with_name("resave_many.py")
        words = [python, script, work / "jobs.json", work / "tokens.json"]
        ended = subprocess.run(words, capture_output=True, text=True)
        assert not ended.returncode, ended.stderr[-2000:]
        return json.loads((work / "tokens.json").read_text())

    def _read(self, saver: str, reader: str) -> dict[tuple[str, str], Comparison]:
        self.tokens(saver)
        engine = reading.reference() if reader == NEWEST else engine_of(reader)
        answers = read_many(engine, [self._at(saver, cell) for cell in CELLS], self._folder)
        made = {}
        for cell in CELLS:
            theirs, ours = request().of(self._at(saver, cell)), request().of(self._sources[cell])
            made[cell] = compare(self._reference.answer(ours), answers, theirs, TOLERANCE)
        return made


@pytest.fixture(scope="session")
def resaved(tmp_path_factory: pytest.TempPathFactory) -> Resaved:
    return Resaved(tmp_path_factory.mktemp("resaved"))


@pytest.mark.parametrize("cell", CELLS, ids=".".join)
@pytest.mark.parametrize("saver", SAVERS)
def test_transformers_5_reads_it_right(saver: str, cell: tuple[str, str], resaved: Resaved) -> None:
    assert largest(resaved.read(saver, NEWEST)[cell]) <= BOUND


@pytest.mark.parametrize("cell", CELLS, ids=".".join)
@pytest.mark.parametrize("saver", SAVERS)
def test_transformers_4_reads_it_right_unless_5_saved_it(saver: str, cell: tuple[str, str], resaved: Resaved) -> None:
    """transformers 5 saves ``rope_parameters`` only, over which transformers 4 passes; no file can hold it."""
    made = resaved.read(saver, "transformers 4.57")[cell]
    if saver.startswith("transformers 5"):
        assert max(mean for _, mean in made.depths.values()) > 0.05
    else:
        assert largest(made) <= BOUND


@pytest.mark.parametrize("saver", SAVERS)
def test_every_version_reads_the_same_tokens(saver: str, resaved: Resaved) -> None:
    expected = load_tokenizer("nano")(TEXT).input_ids
    assert resaved.tokens(saver) == [expected] * len(CELLS)
    again: Callable = load_tokenizer(str(resaved._at(saver, CELLS[0])))
    assert again(TEXT).input_ids == expected

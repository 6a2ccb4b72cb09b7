"""Interpolation x engine x family: the same log-probabilities at 2,048 tokens, or a refusal by name."""

import pytest

from tests.engines.cells import TESTED, WRONG, expected
from tests.engines.matrix import Matrix, largest
from tests.engines.reading import READERS

pytestmark = pytest.mark.timeout(1800)  # the first test of a reader reads all checkpoints

# With the RoPE wrong the mean difference is 0.08 at the least; the largest that is allowed is 0.002.
_FAR = 0.05


@pytest.mark.parametrize(("family", "interpolation"), TESTED)
@pytest.mark.parametrize("reader", READERS)
def test_a_checkpoint_is_read_right_or_refused(reader: str, family: str, interpolation: str, matrix: Matrix) -> None:
    made, wanted = matrix.rows(reader)[family, interpolation], expected(reader, family, interpolation)
    if wanted == WRONG:
        assert not made.problem
        assert not made.agrees
        assert max(mean for _, mean in made.depths.values()) > _FAR
    elif isinstance(wanted, str):
        assert wanted in made.problem
    else:
        assert not made.problem
        assert list(made.depths) == [128, 1152, 2047]
        assert largest(made) <= wanted

"""Which text the examples of every scheme are cut from."""

import numpy as np
import pytest

from skipwise.data.cutting import ExampleRules
from skipwise.method.positions import SCHEMES
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions


@pytest.mark.parametrize("target", [256, 2048])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_reads_all_parts_of_a_document_as_often(scheme: str, target: int) -> None:
    train, document, examples = 32, 1280, 10_000  # near its ends a document is read more rarely by all
    if scheme == "full_length" and target > document:
        pytest.skip("the document does not hold one example")

    def shares(scheme: str, content: str) -> np.ndarray:
        rules = ExampleRules(train, target, Positions(scheme=scheme, content=content))
        places = rules.plan(Rng.of(0, 0, np.arange(examples)), np.full(examples, document)).content_indices()
        return np.histogram(places, bins=10, range=(0, document))[0] / places.size

    even = shares("no_skip", "even")
    assert (np.abs(even[1:-1] - 0.1) < 0.01).all()
    if scheme != "full_length":  # long examples reach the ends of the document more rarely
        np.testing.assert_allclose(shares(scheme, "even"), even, atol=0.01)
    if scheme == "pose":
        np.testing.assert_allclose(shares(scheme, "zero"), even, atol=0.01)
        np.testing.assert_allclose(shares(scheme, "aligned"), even, atol=0.01)
        assert shares(scheme, "paper")[0] > 1.5 * even[0]

"""Cut an example from a document: plan its chunks, and choose its loss tokens."""

from dataclasses import dataclass

import numpy as np

from skipwise.data.answer_windows import aim
from skipwise.data.spans import IGNORED
from skipwise.errors import DataError
from skipwise.method.positions import SCHEMES, Plans
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions


@dataclass(frozen=True)
class ExampleRules:
    """Rules of examples: the plan of chunks, and the loss tokens.

    The first label of a chunk is predicted from a token that does not precede it in the document; ``train_chunk_starts``
    trains it.
    """

    train_length: int
    target_length: int
    positions: Positions
    train_chunk_starts: bool = False

    def __post_init__(self) -> None:
        self.plan(Rng.of(0, 0, 0), np.array([self.target_length]))  # refuses rules that do not fit the lengths
        train, chunks = self.train_length, self.positions.chunks
        if train < 4 * chunks:
            raise DataError(
                f"train length {train:,} is too short for {chunks} chunks; choose at least {4 * chunks:,} tokens, so that "
                "there is something to predict inside a chunk"
            )

    def plan(self, rng: Rng, lengths: np.ndarray, aims: np.ndarray | None = None) -> Plans:
        """Draw the plan of each example, from documents of ``lengths`` tokens, int64 [examples].

        ``aims`` int64 [examples] are places that the examples of long documents must hold (``answer_windows.aim``).
        """
        scheme = SCHEMES[self.positions.scheme]
        plans = scheme(rng, self.train_length, self.target_length, lengths, self.positions.rules)
        return plans if aims is None else aim(rng, plans, aims, lengths)

    def trained(self, places: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return ``labels`` [examples, tokens] with ``IGNORED`` where they are not trained.

        ``places`` int64 [examples, tokens] are the tokens' places in their documents.
        """
        if self.train_chunk_starts:
            return labels.copy()
        jumps = np.zeros(places.shape, dtype=bool)
        jumps[:, 1:] = np.diff(places, axis=1) != 1
        return np.where(jumps, IGNORED, labels)

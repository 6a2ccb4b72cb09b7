"""Cut an example from a document: plan its chunks, and choose its loss tokens."""

from dataclasses import dataclass

import numpy as np

from skipwise.data.answer_windows import aim
from skipwise.data.spans import IGNORED
from skipwise.errors import DataError, RecipeError
from skipwise.method.positions import SCHEMES, Plans
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions


@dataclass(frozen=True)
class ExampleRules:
    """Rules of examples: the plan of chunks, and the loss tokens.

    The first label of a chunk is predicted from a token that does not precede it in the document; ``train_jumps``
    trains it all the same. A label is trained only if at least ``min_context`` tokens directly before it in the
    document also stand directly before it in the example; above 0, that leaves out the first labels of each chunk.
    """

    train_length: int
    target_length: int
    positions: Positions
    train_jumps: bool = False
    min_context: int = 0

    def __post_init__(self) -> None:
        if margin := self.positions.margin:
            raise RecipeError(
                f"positions.margin = {margin:g} is for plan_extension(..., margin={margin:g}); give its reach as the target_length "
                "here, and leave the margin out"
            )
        self.plan(Rng.of(0, 0, 0), np.array([self.target_length]))  # refuses rules that do not fit the lengths
        train, chunks = self.train_length, self.positions.chunks
        if train < 4 * chunks:
            raise DataError(
                f"train length {train:,} is too short for {chunks} chunks; choose at least {4 * chunks:,} tokens, so that "
                "there is something to predict inside a chunk"
            )
        if self.min_context * chunks >= train:  # the longest chunk has at least train_length / chunks tokens
            raise DataError(
                f"min_context {self.min_context:,} may leave no label of {train:,} tokens in {chunks} chunks; choose a "
                f"value below {train / chunks:g}"
            )

    @property
    def context(self) -> int:
        """Minimum context before a loss token; a window's first token has no prediction."""
        return max(self.min_context, 1)

    def plan(self, rng: Rng, lengths: np.ndarray, aims: np.ndarray | None = None) -> Plans:
        """Draw the plan of each example, from documents of ``lengths`` tokens, int64 [examples].

        ``aims`` int64 [examples] are places that the examples of long documents must hold (``answer_windows.aim``).
        """
        scheme = SCHEMES[self.positions.scheme]
        plans = scheme(rng, self.train_length, self.target_length, lengths, self.positions.rules)
        return plans if aims is None else aim(rng, plans, aims, self.context, lengths)

    def trained(self, places: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return ``labels`` [examples, tokens] with ``IGNORED`` where they are not trained.

        ``places`` int64 [examples, tokens] are the tokens' places in their documents.
        """
        begins = np.ones(places.shape, dtype=bool)
        begins[:, 1:] = np.diff(places, axis=1) != 1
        column = np.arange(places.shape[1])
        context = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
        left_out = context < self.min_context
        if not self.train_jumps:
            left_out[:, 1:] |= begins[:, 1:]
        return np.where(left_out, IGNORED, labels)

"""One training example as arrays, and a batch of them as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import default_collate

from skipwise.data.packing import apart

Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class Window:
    """One training example; every array is [tokens], int64 by default.

    Attributes:
        input_ids: the tokens.
        positions: their position indices.
        labels: the tokens that are trained, ``IGNORED`` for the others.
        places: of each token in its own text, from 0 on; at these positions a teacher reads it.
        texts: the number of each token's text, from 1 on; attention stays inside a text.
        teacher_weights: float, weight of the teacher's term after each token.
        label_weights: float32, weight of each label; None: 1.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    places: np.ndarray
    texts: np.ndarray
    teacher_weights: np.ndarray
    label_weights: np.ndarray | None = None

    def example(self, *, weighted: bool, taught: bool) -> Example:
        """Return the model's inputs, with label weights and the teacher's columns if required."""
        example = {
            "input_ids": self.input_ids,
            "position_ids": self.positions,
            "labels": self.labels,
            "attention_mask": self.texts,
        }
        if weighted:
            ones = np.ones(len(self.labels), dtype=np.float32)
            example["label_weights"] = ones if self.label_weights is None else self.label_weights
        if taught:
            example["teacher_weights"] = self.teacher_weights.astype(np.float32)
            example["teacher_positions"] = self.places
        return example


def one_text(
    ids: np.ndarray,
    positions: np.ndarray,
    labels: np.ndarray,
    teacher_weights: np.ndarray,
    *,
    places: np.ndarray | None = None,
    label_weights: np.ndarray | None = None,
) -> Window:
    """Return a window in which every token sees all before it."""
    own = np.arange(len(ids)) if places is None else places
    return Window(ids, positions, labels, own, np.ones_like(labels), teacher_weights, label_weights)


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Stack examples of one length into a batch of tensors [examples, tokens]: int64, weights float32.

    If an example is of several texts, ``attention_mask`` is that of ``packing.apart``, bool [examples, 1, tokens, tokens].
    """
    batch: dict[str, torch.Tensor] = default_collate(list(examples))
    if "attention_mask" in batch and (batch["attention_mask"] > 1).any():
        batch["attention_mask"] = apart(batch["attention_mask"])
    return batch

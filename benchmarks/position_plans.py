"""Position plans a second on one core, against drawing them one by one as published scripts do.

    python benchmarks/position_plans.py

Checked: both sides draw chunk lengths and skips of the same distribution (means within 5 standard errors).
"""

import os
import random
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from skipwise.method.positions import pose
from skipwise.method.rng import Rng

TRAIN, TARGET, DOCUMENT = 2048, 16384, 50_000


def one_by_one(examples: int) -> np.ndarray:
    """Draw (l_0, u_1) of each example with Python's generator and build nothing else."""
    generator = random.Random(0)
    return np.array([(generator.randint(1, TRAIN - 1), generator.randint(0, TARGET - TRAIN)) for _ in range(examples)])


def main() -> None:
    """Run and print a short table."""
    examples = 400_000
    began = time.perf_counter()
    plans = pose(Rng.of(0, 0, np.arange(examples)), TRAIN, TARGET, np.full(examples, DOCUMENT))
    ours = examples / (time.perf_counter() - began)
    began = time.perf_counter()
    reference = one_by_one(examples)
    theirs = examples / (time.perf_counter() - began)
    drawn = np.stack([plans.lengths[:, 0], plans.skips[:, 1]], axis=1)
    error = np.sqrt((drawn.var(axis=0) + reference.var(axis=0)) / examples)
    assert (np.abs(drawn.mean(axis=0) - reference.mean(axis=0)) < 5 * error).all()
    print(f"vectorised   {ours:12,.0f} plans/s (N = 2, L_c = {TRAIN:,}, content offsets included)")
    print(f"one by one   {theirs:12,.0f} plans/s (lengths and skips alone)")
    print(f"ratio        {ours / theirs:12.1f}")


if __name__ == "__main__":
    main()

"""How often a 95% interval over few documents contains the true mean: Student's t, as measured here, and the bootstrap.

    python benchmarks/interval_coverage.py

Losses of documents are normal draws; lengths are equal, or lognormal with sigma 0.5.
"""

import numpy as np

from skipwise.results.statistics import mean_interval

SIMULATIONS, BOOTSTRAPPED, RESAMPLES = 20_000, 2_000, 1_000


def bootstrap(losses: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap of the weighted mean, over documents."""
    drawn = rng.integers(0, len(sizes), (RESAMPLES, len(sizes)))
    low, high = np.quantile((losses * sizes)[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    """Print a line for each number of documents."""
    rng = np.random.default_rng(0)
    for sigma in (0.0, 0.5):
        for documents in range(2, 17):
            names = [str(i) for i in range(documents)]
            sizes = np.exp(rng.normal(0, sigma, (SIMULATIONS, documents)))
            losses = rng.normal(0, 1, sizes.shape)
            pairs = list(zip(losses, sizes, strict=True))
            ours = [mean_interval(loss * size, size, names) for loss, size in pairs]
            theirs = [bootstrap(loss, size, rng) for loss, size in pairs[:BOOTSTRAPPED]]
            held = np.mean([one.low <= 0 <= one.high for one in ours])
            resampled = np.mean([low <= 0 <= high for low, high in theirs])
            print(f"lengths, sigma {sigma}; {documents} documents: t {held:.1%}, bootstrap {resampled:.1%}", flush=True)


if __name__ == "__main__":
    main()

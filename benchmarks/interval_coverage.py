"""How often a 95% interval contains the true value: of losses over few documents, and of the difference of two models' scores.

    python benchmarks/interval_coverage.py documents
    python benchmarks/interval_coverage.py prompts

Losses of documents are normal draws; lengths are equal, or lognormal with sigma 0.5. Student's t, as measured here, beside the
bootstrap. Prompts come in groups of ten, as RULER's tasks, whose chance of an answer is a Beta(0.5, 0.5) draw for one model and 0.85
times that for the other; a prompt has one or four answers. Newcombe's interval, as measured here, beside Student's t.
"""

import sys

import numpy as np

from skipwise.results.statistics import mean_interval, share_difference

SIMULATIONS, BOOTSTRAPPED, RESAMPLES = 20_000, 2_000, 1_000


def bootstrap(losses: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap of the weighted mean, over documents."""
    drawn = rng.integers(0, len(sizes), (RESAMPLES, len(sizes)))
    low, high = np.quantile((losses * sizes)[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    return float(low), float(high)


def prompts() -> None:
    """Print a line for each number of prompts, and of answers to each."""
    rng = np.random.default_rng(0)
    for asked in (10, 30, 60, 220):
        for answers in (1, 4):
            held, widths = np.zeros(2), np.zeros(2)
            for _ in range(BOOTSTRAPPED):
                chance = np.repeat(rng.beta(0.5, 0.5, asked // 10), 10)
                ours, theirs = (rng.binomial(answers, share) / answers for share in (chance, 0.85 * chance))
                true, apart = 0.15 * chance.mean(), list(ours - theirs)
                newcombe = share_difference(dict(enumerate(ours)), dict(enumerate(theirs)))
                assert newcombe is not None
                each = (newcombe, mean_interval(apart, [1] * asked, [str(i) for i in range(asked)]))
                held += [one.low <= true <= one.high for one in each]
                widths += [one.high - one.low for one in each]
            told = [f"{h:.1%}, width {w:.2f}" for h, w in zip(held / BOOTSTRAPPED, widths / BOOTSTRAPPED, strict=True)]
            print(f"{asked} prompts, {answers} answers: Newcombe {told[0]}; t {told[1]}", flush=True)


def documents() -> None:
    """Print a line for each number of documents."""
    rng = np.random.default_rng(0)
    for sigma in (0.0, 0.5):
        for number in range(2, 17):
            names = [str(i) for i in range(number)]
            sizes = np.exp(rng.normal(0, sigma, (SIMULATIONS, number)))
            losses = rng.normal(0, 1, sizes.shape)
            pairs = list(zip(losses, sizes, strict=True))
            ours = [mean_interval(loss * size, size, names) for loss, size in pairs]
            theirs = [bootstrap(loss, size, rng) for loss, size in pairs[:BOOTSTRAPPED]]
            held = np.mean([one.low <= 0 <= one.high for one in ours])
            resampled = np.mean([low <= 0 <= high for low, high in theirs])
            print(f"lengths, sigma {sigma}; {number} documents: t {held:.1%}, bootstrap {resampled:.1%}", flush=True)


if __name__ == "__main__":
    {"documents": documents, "prompts": prompts}[sys.argv[1]]()

"""Whether a step of PoSE costs the same at every target: seconds and peak memory at one window, targets in turn.

    python -m benchmarks.target_cost smollm2 --window 1k --targets 16k,32k,128k [--rounds 10]

A step is two windows, one in memory at a time, in stock model and optimizer; what the reproduction's efficiency table
measures on its base. Peak memory is that of a process for each target.
"""

import argparse
import logging
import statistics

import numpy as np

from reproduction.costs import by_round, in_own_process, peak_bytes, step_seconds
from skipwise.method.lengths import format_length, parse_length
from skipwise.recipes.loading import load_recipe


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--window", default="1k")
    parser.add_argument("--targets", default="16k,32k,128k")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    window, targets = parse_length(options.window), [parse_length(target) for target in options.targets.split(",")]
    recipe = load_recipe("nano", {"train_length": None, "model": options.model, "target": targets[0]})
    seconds = in_own_process(step_seconds, recipe, "pose", targets, window, options.rounds)
    peaks = [in_own_process(peak_bytes, recipe, "pose", target, window)[1] for target in targets]
    print("| target | seconds a step | of the mean of its round, 95% interval | peak memory, MiB |\n|---|---|---|---|")
    for target, times, shares, peak in zip(targets, seconds, by_round(seconds), peaks, strict=True):
        low, high = _interval(shares)
        print(
            f"| {format_length(target)} | {statistics.median(times):.2f} | {np.median(shares):.3f} [{low:.3f}, {high:.3f}] "
            f"| {peak / 2**20:,.0f} |"
        )


def _interval(shares: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the median of ``shares`` [rounds], by 10,000 draws of as many rounds."""
    draws = np.random.default_rng(0).choice(shares, (10_000, len(shares)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()

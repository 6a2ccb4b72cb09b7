"""What a step of each recipe costs, beside the last one's: seconds and peak memory, by target.

    python -m benchmarks.method_cost nano nano-pose [--targets 2k,16k] [--steps 12] [--rounds 5]

Recipes and targets take turns, round by round, each in the trainer that ``skipwise extend`` uses, with its teacher and its
examples. Peak memory is that of a process for each. A step has as many tokens in all: that is checked.
"""

import argparse
import logging
import statistics
import sys

from skipwise.cli.terminal import keep_freed_memory

keep_freed_memory()

from rich.console import Console  # noqa: E402

from benchmarks.training_speed import WARM, skipwise_loop  # noqa: E402
from reproduction.costs import in_own_process, most_held  # noqa: E402
from skipwise.recipes.loading import load_recipe  # noqa: E402
from skipwise.training.prepare import PreparedRun, prepare  # noqa: E402


def job_of(recipe: str, target: str, steps: int) -> PreparedRun:
    """Prepare so many steps of a recipe, all of which are logged."""
    settings = {"training.max_steps": steps, "training.logging_steps": 1, "training.save_steps": 10**6}
    return prepare(load_recipe(recipe, {"target": target, **settings}), Console(stderr=True, quiet=True))


def peak_bytes(recipe: str, target: str) -> int:
    """Return the most bytes that a process held which took three steps."""
    skipwise_loop(job_of(recipe, target, 3), 3)
    return most_held()


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--targets", default="2k,16k")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    sides = [(recipe, target) for recipe in options.recipes for target in options.targets.split(",")]
    jobs = {side: job_of(*side, options.steps) for side in sides}
    tokens = {job.recipe.training.batch_size * job.train_length for job in jobs.values()}
    assert len(tokens) == 1, f"steps of {tokens} tokens cannot be compared"
    peaks = {side: in_own_process(peak_bytes, *side) for side in sides}
    rounds: list[dict[tuple[str, str], float]] = []
    for number in range(options.rounds):
        rounds.append(
            {side: statistics.median(skipwise_loop(job, options.steps)[0][WARM:]) for side, job in jobs.items()}
        )
        print(
            f"round {number + 1}: " + ", ".join(f"{t:.3f} s" for t in rounds[-1].values()), file=sys.stderr, flush=True
        )
    print("| recipe | target | seconds a step | of the last one's, by round | peak memory, MiB | of the last one's |")
    print("|---|---|---|---|---|---|")
    for recipe, target in sides:
        last = options.recipes[-1], target
        ratios = sorted(each[recipe, target] / each[last] for each in rounds)
        seconds = statistics.median(each[recipe, target] for each in rounds)
        print(
            f"| {recipe} | {target} | {seconds:.3f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
            f"| {peaks[recipe, target] / 2**20:,.0f} | {peaks[recipe, target] / peaks[last]:.2f} |"
        )


if __name__ == "__main__":
    main()

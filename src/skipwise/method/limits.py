"""Limits that recipes, commands and computations share. A command line reads them before it imports anything slow."""

LONGEST = 2**24  # tokens: coverage is computed for each distance below the target
MOST_CHUNKS = 2**14  # each is drawn in turn
MOST_TRIALS = 10_000  # prompts of each length, which are planned before the first is asked
SHORT_WINDOW = 4096  # tokens of a training window, unless a recipe sets more; positions skip over the rest
LAST_SEED = 2**32 - 1  # the largest that numpy accepts

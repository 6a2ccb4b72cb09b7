"""How much of a model's retrieval is wording, and how much is reading: the same prompts in trained and untrained words.

    python benchmarks/trained_wordings.py RUN/model [RUN/model ...] [--lengths 256,1k,2k] [--trials 20]

A prompt is the filler of the measured tasks with four facts in it, one of which is asked for: in each wording of the training
prompts, in wordings that are neither trained nor measured, and as the measured task ``keys`` has it. All are answered as
``skipwise evaluate`` does. Of several models, such as one recipe's seeds, the mean is shown.
"""

import argparse
import logging
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from skipwise.data.passkey import filler
from skipwise.data.prompts import Prompt, Room, longest_prompt
from skipwise.data.retrieval_prompts import draw_names, keys_prompt
from skipwise.data.training_prompts import FORMS, NOUNS
from skipwise.evaluation.retrieval import retrieve
from skipwise.method.lengths import format_length, parse_length
from skipwise.model.loading import load_model, load_tokenizer

FACTS = 4
UNTRAINED = (
    ("The locker of {name} opens with {number}.", "What opens the locker of {name}? It opens with"),
    ("{name} lives at {number} Main Street.", "Where does {name} live? {name} lives at"),
    ("Flight {number} takes {name} home.", "Which flight takes {name} home? Flight"),
    ("According to {name} it took {number} days.", "How long did it take, according to {name}? It took"),
    ("Bring {number} sheep to {name}.", "How many sheep go to {name}? Bring"),
)
Draw = Callable[[PreTrainedTokenizerBase, int, np.random.Generator], Prompt]


def facts_prompt(
    form: tuple[str, str], tokenizer: PreTrainedTokenizerBase, length: int, rng: np.random.Generator
) -> Prompt:
    """Draw filler with four facts of one form and a question, of at most ``length`` tokens with the answer."""
    names, numbers = draw_names(rng, FACTS), [str(n) for n in rng.choice(90_000, FACTS, replace=False) + 10_000]
    noun, places = NOUNS[int(rng.integers(len(NOUNS)))], np.sort(rng.random(FACTS))
    asked = int(rng.integers(FACTS))

    def drawn(sentences: int) -> tuple[str, str]:
        lines, done = [], 0
        for name, number, place in zip(names, numbers, places, strict=True):
            before = int(place * sentences + 0.5)
            lines += [filler(before - done, done), form[0].format(noun=noun, name=name, number=number)]
            done = before
        lines += [filler(sentences - done, done), form[1].format(noun=noun, name=names[asked])]
        return "\n".join(line for line in lines if line), numbers[asked]

    _, ids = longest_prompt(Room(tokenizer, length), drawn, range(length))
    return Prompt(ids, numbers[asked], places[asked])


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--lengths", default="256,1k,2k")
    parser.add_argument("--trials", type=int, default=20, help="prompts of a wording and length")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    lengths = [parse_length(length) for length in options.lengths.split(",")]
    tokenizer, models = load_tokenizer(options.models[0]), [load_model(name) for name in options.models]
    sides: dict[str, list[Draw]] = {
        f"trained, {len(FORMS)} wordings": [partial(facts_prompt, form) for form in FORMS],
        f"neither trained nor measured, {len(UNTRAINED)} wordings": [partial(facts_prompt, form) for form in UNTRAINED],
        "the task keys": [keys_prompt] * len(UNTRAINED),
    }
    print(f"| one of four facts found, by wording | {' | '.join(map(format_length, lengths))} |")
    print(f"|---|{'---|' * len(lengths)}")
    for name, draws in sides.items():
        shares = []
        for length in lengths:
            rng = np.random.default_rng(length)
            prompts = [draw(tokenizer, length, rng) for draw in draws for _ in range(options.trials)]
            hits = [answer.hit for model in models for answer in retrieve(model, tokenizer, prompts)]
            shares.append(f"{statistics.mean(hits):.0%} of {len(hits)}")
        print(f"| {name} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()

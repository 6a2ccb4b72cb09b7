"""Does an instruct model still follow instructions? 60 short ones with answers that a program can check.

    python benchmarks/instructions.py MODEL...    the first is the base; a folder or a hub name

Each is asked by the model's chat template and answered greedily in at most 150 tokens. An answer counts if it is right and its
turn ends. The differences to the first model have Newcombe's interval for paired shares.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

from skipwise.model.loading import load_model, load_tokenizer
from skipwise.results.statistics import share_difference, wilson_interval

_MOST = 150  # tokens of an answer
Check = Callable[[str], bool]


def has(*wanted: str) -> Check:
    """Return a check that one of the words is in the answer."""
    return lambda answer: any(re.search(rf"\b{re.escape(word)}\b", answer, re.I) for word in wanted)


def matches(rule: str) -> Check:
    """Return a check that the whole answer matches a rule."""
    return lambda answer: re.fullmatch(rule, answer.strip(), re.I | re.S) is not None


def lists(known: str) -> Check:
    """Return a check that the answer has at least three of the words."""
    return lambda answer: sum(has(word)(answer) for word in known.split()) >= 3


_CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Egypt": "Cairo",
    "Russia": "Moscow",
    "Greece": "Athens",
    "Portugal": "Lisbon",
    "the United Kingdom": "London",
}
_OPPOSITES = {
    "hot": ["cold", "cool"],
    "big": ["small", "little", "tiny"],
    "early": ["late"],
    "open": ["closed", "close", "shut"],
    "day": ["night"],
    "up": ["down"],
    "fast": ["slow"],
    "happy": ["sad", "unhappy"],
    "dark": ["light", "bright"],
    "wet": ["dry"],
}
_SUMS = {"3 + 4": 7, "12 - 5": 7, "6 times 2": 12, "20 / 4": 5, "9 + 8": 17, "15 - 9": 6, "5 times 5": 25}
_SUMS |= {"100 - 1": 99, "7 + 7": 14, "18 / 2": 9}
_LISTS = {
    "colors": "red orange yellow green blue purple violet pink brown black white gray grey indigo turquoise",
    "fruits": "apple apples banana bananas orange oranges grape grapes pear peach mango mangoes kiwi strawberry strawberries",
    "animals": "dog dogs cat cats lion lions tiger tigers elephant elephants horse cow bear giraffe monkey bird zebra",
    "days of the week": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November December",
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
    "countries in Europe": "France Germany Italy Spain Portugal Greece Poland Sweden Norway Austria Belgium England Switzerland Ireland Denmark Finland Netherlands Hungary",
    "vegetables": "carrot carrots broccoli spinach potato potatoes tomato tomatoes onion onions cabbage lettuce cucumber",
    "oceans": "Pacific Atlantic Indian Arctic Southern",
    "musical instruments": "piano guitar violin drums flute trumpet cello clarinet saxophone harp",
}
_FORMATS: dict[str, Check] = {
    "Answer with one word, yes or no: is ice cold?": matches(r"yes\W*"),
    "Answer with one word, yes or no: can a fish drive a car?": matches(r"no\W*"),
    "Write the word 'hello' in capital letters.": lambda answer: "HELLO" in answer,
    "Repeat this word and nothing else: lantern": matches(r"\W*lantern\W*"),
    "Write the numbers from 1 to 5, separated by commas.": lambda answer: (
        re.search(r"1,\s*2,\s*3,\s*4,\s*5", answer) is not None
    ),
    "Answer with a number only: how many legs does a dog have?": matches(r"\W*(4|four)\W*"),
    "Answer with true or false: the sun is a star.": has("true"),
    "Write a list with two bullet points about tea.": lambda answer: (
        len(re.findall(r"^\s*(?:[-*•]|\d\.)", answer, re.M)) >= 2
    ),
    "Spell the word 'cat' with dashes between the letters.": has("c-a-t"),
    "Translate to Spanish, one word: thank you": has("gracias"),
}
_ONE_SENTENCE = [
    "a bridge",
    "rain",
    "a library",
    "the moon",
    "bread",
    "a teacher",
    "a river",
    "music",
    "a garden",
    "snow",
]


def instructions() -> Iterator[tuple[str, str, Check]]:
    """Yield the instructions: kind, text, check."""
    for country, city in _CAPITALS.items():
        yield "capital", f"What is the capital of {country}?", has(city)
    for word, others in _OPPOSITES.items():
        yield "opposite", f"What is the opposite of '{word}'?", has(*others)
    for task, number in _SUMS.items():
        yield "arithmetic", f"What is {task}?", has(str(number))
    for kind, known in _LISTS.items():
        yield "list of three", f"Name three {kind}.", lists(known)
    for text, check in _FORMATS.items():
        yield "format", text, check
    for thing in _ONE_SENTENCE:
        yield "one sentence", f"Describe {thing} in one sentence.", matches(r"[^.!?\n]+[.!?]")


def answer(model: Any, tokenizer: Any, text: str) -> tuple[str, bool]:
    """Return the answer, and whether its turn ends."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = model.generate(**prompt, max_new_tokens=_MOST, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(made, skip_special_tokens=True), len(made) < _MOST


def main() -> None:
    """Ask every model; print the answers that do not count, and a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    of_base: dict[tuple[str, int], float] = {}
    kinds = list(dict.fromkeys(kind for kind, _, _ in instructions()))
    rows = [["model", *kinds, "all of 60", "95% interval", "turn ends", "less the base, points"]]
    rows.append(["---"] * len(rows[0]))
    for name in parser.parse_args().models:
        model, tokenizer = load_model(name).eval(), load_tokenizer(name)
        hits, ends = dict[tuple[str, int], float](), 0
        for number, (kind, text, check) in enumerate(instructions()):
            words, ended = answer(model, tokenizer, text)
            hits[kind, number], ends = float(check(words) and ended), ends + ended
            if not hits[kind, number]:
                print(f"{name} | {text} | {words!r}{'' if ended else ' ...'}")
        of_base = of_base or hits
        gap = share_difference(hits, of_base) if of_base is not hits else None
        low, high = wilson_interval(sum(hits.values()), len(hits))
        by_kind = [f"{sum(hit for (of, _), hit in hits.items() if of == kind):.0f}" for kind in kinds]
        less = f"{100 * gap.mean:+.0f} [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]" if gap else ""
        rows.append([name, *by_kind, f"{sum(hits.values()):.0f}", f"{low:.0%} to {high:.0%}", str(ends), less])
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

"""RULER's prompts: as long as they can be, with the answers that they say, the same for the same key."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from skipwise.data import ruler
from skipwise.data.prompts import encode, longest_prompt
from skipwise.data.ruler import TASKS, RulerData, read_ruler_data, ruler_prompt, ruler_task
from skipwise.data.ruler.tasks import PromptRequest, draw_frequent, frequent_forms
from skipwise.errors import RecipeError, TooShortError
from skipwise.model.loading import load_tokenizer
from tests.questions import write_questions
from tests.tiny import byte_tokenizer

BYTES, NANO = byte_tokenizer(), load_tokenizer("nano")
NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (.+?)\.(?=\s)")
NEEDLES = [task for task in TASKS if task.startswith("niah")]
ENDS = {
    "vt": "they are:",
    "cwe": "The top 10 words that appear most often in the list are:",
    "fwe": "the three most frequently appeared words are:",
    "qa_squad": "Answer:",
    "qa_hotpot": "Answer:",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> RulerData:
    return read_ruler_data(write_questions(tmp_path_factory.mktemp("ruler")))


def text_of(tokenizer, prompt) -> str:
    return tokenizer.decode(prompt.ids, clean_up_tokenization_spaces=False)


def drawn(tokenizer, task, length, seed, trial, data):
    """The prompt, the function that draws its text, and its number of units and the most there may be."""
    found = []

    def spied(tokenizer, length, drawn, parts, **more):
        units, ids = longest_prompt(tokenizer, length, drawn, parts, **more)
        found.append((lambda units: drawn(units)[0], units, parts[-1]))
        return units, ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ruler, "longest_prompt", spied)
        prompt = ruler_prompt(tokenizer, task, length, seed, trial, data)
    return prompt, *found[0]


def check(task, tokenizer, length, seed, trial, data):
    """That the text is RULER's is shown by ``tests/parity/test_ruler.py``."""
    try:
        prompt, text_for, units, most = drawn(tokenizer, task, length, seed, trial, data)
    except TooShortError:
        return
    room = length - TASKS[task].answer_tokens
    assert prompt.ids == encode(tokenizer, text_for(units))
    assert len(prompt.ids) <= room
    assert units < most
    assert len(encode(tokenizer, text_for(units + 1))) > room
    text = text_of(tokenizer, prompt)
    assert all(answer in text for answer in prompt.answers)
    kinds = TASKS[task].forms.args[0] if task in NEEDLES else None
    assert prompt.real_data is (kinds is None or kinds.haystack != "essay")
    if kinds and len(prompt.answers) == 1:
        context = text[text.index("afterwards.\n") : text.rindex("\nWhat is")]
        place = context.index(f" is: {prompt.answers[0]}.") / len(context)
        assert prompt.depth == pytest.approx(place, abs=0.03 + 300 / len(context))
    elif task in NEEDLES:
        assert prompt.depth is None
    assert text.endswith(ENDS.get(task, " is" if len(prompt.answers) == 1 else " are"))


SEEDS, TRIALS = st.integers(-(2**40), 2**70), st.integers(0, 2000)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(512, 6000) | st.integers(6000, 20_000),
    seed=SEEDS,
    trial=TRIALS,
    tokenizer=st.sampled_from([BYTES, NANO]),
)
def test_every_prompt_is_the_longest_that_fits_and_holds_its_answers(
    data, task, length, seed, trial, tokenizer
) -> None:
    check(task, tokenizer, length, seed, trial, data)


def test_prompts_are_equal_on_every_machine(data) -> None:
    """Answers written down once: another stream of random numbers, on whatever machine, changes them."""
    assert ruler_prompt(BYTES, "niah_multikey_3", 2048, 7, 1, data).answers == ("99ecece7-2eeb-49fc-9584-11b18552210f",)
    assert ruler_prompt(BYTES, "vt", 2048, 7, 1, data).answers[:2] == ("BDEJX", "UOBRR")
    keys = ((700, 5, 3), (700, 5, 4), (700, 6, 3), (750, 5, 3))
    for tasks in (["fwe"], NEEDLES):  # each key and task draws another
        answers = {ruler_prompt(NANO, task, *key, data).answers for task in tasks for key in keys}
        assert len(answers) == len(tasks) * len(keys)


def test_prompts_have_rulers_size_where_it_fits(data) -> None:
    texts = [text_of(NANO, ruler_prompt(NANO, "vt", length, 0, 0, data)) for length in (4095, 4096)]
    small, large = (text[: text.rindex("Memorize and track")].count("The grass is green") for text in texts)
    assert (small, large % 5) == (1, 0)
    assert large > 1
    texts = [text_of(NANO, ruler_prompt(NANO, "cwe", length, 0, 0, data)) for length in (512, 4095, 8192)]
    counts = [max(Counter(re.findall(r"\d+\. (\S+)", text)).values()) for text in texts]
    assert counts == [3, 6, 30]


def test_fwe_has_the_fewest_units_whose_answer_is_one_from_there_on() -> None:
    """The third and the fourth coded word, of n / (k^2 * 1.645) rounded down, are not equally frequent."""
    fewest = frequent_forms(PromptRequest(BYTES, 512, 0, 0, read_ruler_data()))[0].units[0]
    for units in (fewest - 1, *range(fewest, fewest + 200), 3000):
        coded = draw_frequent(0, units, different=60).text.split("coded words. ")[1].split("\n")[0].split()
        counts = [count for word, count in Counter(coded).most_common() if word != "..."]
        assert (counts[2] > counts[3]) is (units >= fewest)


def test_names_have_settings(data) -> None:
    text = text_of(NANO, ruler_prompt(NANO, "niah_multikey_1:keys=8,values=2,queries=3", 3000, 0, 0, data))
    assert len(NEEDLE.findall(text)) == 16
    assert len(ruler_prompt(NANO, "vt:hops=2,chains=3", 1800, 0, 0, data).answers) == 3
    assert ruler_task("vt:hops=2") == (TASKS["vt"], {"hops": 2})
    assert ruler_prompt(NANO, "vt:hops=4", 900, 0, 0, data) == ruler_prompt(NANO, "vt", 900, 0, 0, data)


@pytest.mark.parametrize(
    "name",
    [
        "niah_single",
        "vt:hop=2",
        "vt:hops=0",
        "vt:hops",
        "cwe:words=3",  # has no settings
    ],
)
def test_mistakes_in_names_are_refused(data, name) -> None:
    with pytest.raises(RecipeError):
        ruler_prompt(NANO, name, 2048, 0, 0, data)


@pytest.mark.parametrize("task", TASKS)
def test_a_length_too_short_names_the_shortest(data, task) -> None:
    with pytest.raises(TooShortError) as error:
        ruler_prompt(BYTES, task, 100, 0, 0, data)
    assert 100 < error.value.shortest < 5000

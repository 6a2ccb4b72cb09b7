"""RULER's prompts: as long as they can be, with the answers that they say, the same for the same key."""

import re
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.data import ruler
from skipwise.data.prompts import encode, longest_prompt
from skipwise.data.ruler import TASKS, RulerData, read_ruler_data, ruler_prompt, ruler_task
from skipwise.data.ruler.questions import Library, Question
from skipwise.data.ruler.sources import PromptRequest, common_words
from skipwise.data.ruler.tracing import draw_common, draw_frequent, frequent_forms
from skipwise.errors import RecipeError, TooShortError
from skipwise.model.loading import load_tokenizer
from tests.questions import write_questions
from tests.tiny import byte_tokenizer

BYTES, NANO = byte_tokenizer(), load_tokenizer("nano")
NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (.+?)\.(?=\s)")
ASKED = re.compile(
    r"What (?:is|are all) the special magic (\w+) for (.+?) mentioned in the provided text\? The special"
)
NEEDLES = [task for task in TASKS if task.startswith("niah")]
KINDS = {"numbers": r"\d{7}", "words": r"\w.*-.*\w", "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{21}"}
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

    def spied(room, drawn, parts, **more):
        units, ids = longest_prompt(room, drawn, parts, **more)
        found.append((lambda units: drawn(units)[0], units, parts[-1]))
        return units, ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ruler, "longest_prompt", spied)
        prompt = ruler_prompt(tokenizer, task, length, seed, trial, data)
    return prompt, *found[0]


def check_needles(text, prompt, task, units):
    counts = TASKS[task].settings
    kinds = TASKS[task].forms.args[0]
    said = NEEDLE.findall(text)
    keys = max(counts["keys"], counts["queries"])
    assert len(said) == keys * counts["values"] + (units if kinds.haystack == "needle" else 0)
    [(magic, query)] = ASKED.findall(text)
    asked = query.replace(", and ", ", ").split(", ")
    assert len(asked) == len(set(asked)) == counts["queries"]
    values = [[value for _, key, value in said if key == name] for name in asked]
    assert all(len(own) == counts["values"] for own in values)
    assert sorted(chain.from_iterable(values)) == sorted(prompt.answers)
    assert magic.removesuffix("s") == kinds.value.removesuffix("s")
    assert all(
        re.fullmatch(KINDS[kinds.key], key) and re.fullmatch(KINDS[kinds.value], value) for _, key, value in said
    )
    if len(prompt.answers) == 1:
        context = text[text.index("afterwards.\n") : text.rindex("\nWhat is")]
        needle = f"One of the special magic {kinds.value} for {query} is: {prompt.answers[0]}."
        place = context.index(needle) / max(1, len(context) - len(needle))
        assert 0 <= prompt.depth <= 1
        assert prompt.depth == pytest.approx(place, abs=0.03 + 300 / len(context))
    else:
        assert prompt.depth is None
    return " is" if len(prompt.answers) == 1 else " are"


def check_vt(text, prompt):
    main = text[text.rindex("Memorize and track") :]
    value, number = re.search(r"assigned the value (\d{5}) in .* above, (\d+) variables", main).groups()
    have = set(re.findall(rf"VAR (\w{{5}}) = {value}\b", main))
    links = re.findall(r"VAR (\w{5}) = VAR (\w{5})", main)
    for _ in links:
        have |= {name for name, before in links if before in have}
    assert have == set(prompt.answers)
    assert len(prompt.answers) == int(number) == 5


def check_cwe(text, prompt):
    main = text[text.rindex("Below is a numbered list") : text.rindex("\nQuestion:")]
    listed = re.split(r" ?\b\d+\. ", main[main.index("\n") + 1 :])[1:]
    counts = Counter(listed).most_common()
    assert {word for word, _ in counts[:10]} == set(prompt.answers)
    assert counts[9][1] > counts[10][1]


def check_fwe(text, prompt):
    coded = text[text.index("coded words. ") + len("coded words. ") : text.rindex("\nQuestion:")].split()
    counts = Counter(word for word in coded if word != "...").most_common()
    assert {word for word, _ in counts[:3]} == set(prompt.answers)
    assert counts[2][1] > counts[3][1]


def check(task, tokenizer, length, seed, trial, data):
    try:
        prompt, text_for, units, most = drawn(tokenizer, task, length, seed, trial, data)
    except TooShortError as error:
        refused = error
    else:
        refused = None
    if refused:  # another length draws other words, so its shortest prompt is a little shorter or longer
        assert length < refused.shortest
        assert ruler_prompt(tokenizer, task, refused.shortest + 300, seed, trial, data).ids
        return
    room = length - TASKS[task].answer_tokens
    assert prompt.ids == encode(tokenizer, text_for(units))
    assert len(prompt.ids) <= room
    assert units < most
    assert len(encode(tokenizer, text_for(units + 1))) > room
    text = text_of(tokenizer, prompt)
    assert all(answer in text for answer in prompt.answers)
    checks = {"vt": check_vt, "cwe": check_cwe, "fwe": check_fwe}
    if task in checks:
        checks[task](text, prompt)
    end = check_needles(text, prompt, task, units) if task in NEEDLES else ENDS[task]
    assert text.endswith(end)
    kinds = TASKS[task].forms.args[0] if task in NEEDLES else None
    assert prompt.real_data is (kinds is None or kinds.haystack != "essay")


SEEDS, TRIALS = st.integers(-(2**40), 2**70), st.integers(0, 2000)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=30, deadline=None)
@given(length=st.integers(512, 6000), seed=SEEDS, trial=TRIALS, tokenizer=st.sampled_from([BYTES, NANO]))
def test_short_prompts(data, task, length, seed, trial, tokenizer) -> None:
    check(task, tokenizer, length, seed, trial, data)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=3, deadline=None)
@given(length=st.integers(6000, 32_768), seed=SEEDS, trial=TRIALS)
def test_long_prompts(data, task, length, seed, trial) -> None:
    check(task, BYTES, length, seed, trial, data)


@pytest.mark.parametrize("task", TASKS)
def test_a_prompt_depends_on_its_key_alone(data, task) -> None:
    prompt = ruler_prompt(NANO, task, 700, 5, 3, data)
    assert ruler_prompt(load_tokenizer("nano"), task, 700, 5, 3, data) == prompt
    others = [ruler_prompt(NANO, task, *key, data) for key in ((700, 5, 4), (700, 6, 3), (750, 5, 3))]
    assert all(other.ids != prompt.ids for other in others)
    assert len({tuple(other.ids) for other in others}) == 3


def test_prompts_are_equal_on_every_machine(data) -> None:
    """Answers written down once: another stream of random numbers, on whatever machine, changes them."""
    assert ruler_prompt(BYTES, "niah_multikey_3", 2048, 7, 1, data).answers == ("99ecece7-2eeb-49fc-9584-11b18552210f",)
    assert ruler_prompt(BYTES, "vt", 2048, 7, 1, data).answers[:2] == ("BDEJX", "UOBRR")


@pytest.mark.parametrize("task", [task for task in TASKS if task != "qa_hotpot"])
def test_a_real_tokenizer_has_room_for_every_task_at_512_tokens(data, task) -> None:
    assert len(ruler_prompt(NANO, task, 512, 0, 0, data).ids) <= 512 - TASKS[task].answer_tokens


@pytest.mark.parametrize(("length", "fits"), [(4095, False), (4096, True)])
def test_the_example_of_vt_has_rulers_size_from_4096_tokens_on(data, length, fits) -> None:
    text = text_of(NANO, ruler_prompt(NANO, "vt", length, 0, 0, data))
    example = text[: text.rindex("Memorize and track")]
    lines = example.count("The grass is green")
    assert lines > 1 if fits else lines == 1
    assert lines % 5 == 0 or not fits
    assert len(NANO(example)["input_ids"]) <= 500


def test_cwe_takes_the_largest_size_that_fits(data) -> None:
    def size(tokenizer, length):
        text = text_of(tokenizer, ruler_prompt(tokenizer, "cwe", length, 0, 0, data))
        *example, _ = text.split("Below is a numbered list")[1:]
        answer = ruler_prompt(tokenizer, "cwe", length, 0, 0, data).answers[0]
        return len(example), Counter(re.findall(r"\d+\. ([^\d\n]+?)(?= \d|\n)", text))[answer]

    assert size(NANO, 8192) == (1, 30)
    assert size(NANO, 4095) == (1, 6)
    assert size(NANO, 512) == (0, 3)
    assert size(BYTES, 4096) == (1, 6)  # too small for RULER's own size


def test_more_words_than_there_are_come_again() -> None:
    most = len(common_words())
    for units, repeats in ((most, 30), (most + 1, 60)):
        text = draw_common(0, units, example=None, common=30, other=3).text
        counts = Counter(re.findall(r"\d+\. (.+?)(?= \d+\.|\n)", text)).most_common()
        assert [count for _, count in counts[:10]] == [repeats] * 10
        assert {count for _, count in counts[10:]} == {repeats // 10}


def test_fwe_has_the_fewest_units_whose_answer_is_one_from_there_on() -> None:
    """The third and the fourth coded word, of n / (k^2 * 1.645) rounded down, are not equally frequent."""
    fewest = frequent_forms(PromptRequest(BYTES, 512, 0, 0, read_ruler_data()))[0].units[0]
    for units in range(fewest - 1, 3000):
        coded = draw_frequent(0, units, different=60).text.split("coded words. ")[1].split("\n")[0].split()
        counts = [count for word, count in Counter(coded).most_common() if word != "..."]
        assert (counts[2] > counts[3]) is (units >= fewest)


def test_tasks_of_one_seed_draw_different_words(data) -> None:
    answers = [ruler_prompt(NANO, task, 900, 0, 0, data).answers[0] for task in NEEDLES]
    assert len(set(answers)) == len(NEEDLES) == 8


def test_a_question_that_does_not_fit_gives_way_to_a_spare(monkeypatch) -> None:
    long, short = "long " * 800, "short"
    asked = [Question(f"What is {i}?", ("long",), [0], []) for i in range(500)]
    library = Library([*asked, Question("What is short?", ("short",), [1], [])], [long, short])
    own = RulerData(["word"], True)
    monkeypatch.setattr(ruler.questions, "read_library", lambda folder, name: library)
    assert ruler_prompt(BYTES, "qa_squad", 1000, 0, 0, own).answers == ("short",)
    with pytest.raises(TooShortError) as refused:
        ruler_prompt(BYTES, "qa_squad", 1000, 0, 1, own)
    assert refused.value.shortest > 4000


def test_names_have_settings(data) -> None:
    text = text_of(NANO, ruler_prompt(NANO, "niah_multikey_1:keys=8,values=2,queries=3", 3000, 0, 0, data))
    assert len(NEEDLE.findall(text)) == 16
    assert len(ruler_prompt(NANO, "vt:hops=2,chains=3", 1800, 0, 0, data).answers) == 3
    assert ruler_task("vt:hops=2") == (TASKS["vt"], {"hops": 2})
    assert ruler_prompt(NANO, "vt:hops=4", 900, 0, 0, data) == ruler_prompt(NANO, "vt", 900, 0, 0, data)


@pytest.mark.parametrize(
    "name",
    ["niah_single", "vt:hop=2", "vt:hops=0", "vt:hops=two", "vt:hops", "cwe:words=3", "niah_multikey_1:values=11"],
)
def test_mistakes_in_names_are_refused(data, name) -> None:
    with pytest.raises(RecipeError):
        ruler_prompt(NANO, name, 2048, 0, 0, data)


@pytest.mark.parametrize("task", TASKS)
def test_a_length_too_short_names_the_shortest(data, task) -> None:
    with pytest.raises(TooShortError) as refused:
        ruler_prompt(BYTES, task, 100, 0, 0, data)
    assert refused.value.shortest > 100

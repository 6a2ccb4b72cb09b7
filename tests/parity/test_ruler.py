"""RULER's prompts against lm-evaluation-harness's own functions: the same seed gives the same text.

The harness draws from Python's global generator and numpy's. Its words are few here, since all would take it 15
seconds and a gigabyte; its sentences are ours, since NLTK's have to be downloaded. Whole texts are compared.
"""

import importlib
import random
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from skipwise.data.ruler import TASKS, needles, questions, sources, tracing
from skipwise.data.ruler.sources import read_ruler_data, sentences
from tests.questions import HOTPOT, SQUAD, write_questions

NOUNS = ["harbor", "apple", "x-ray", "blue", "zoo", "ice cream", *(f"noun{i}" for i in range(60))]
ADJECTIVES = ["quick", "blue", "blue-eyed", "ad hoc", "ad", "adept", *(f"plain{i}" for i in range(20))]
VERBS = ["run", "blue", *(f"verb{i}" for i in range(20))]
SEEDS = [0, 1, 42, 2**32 - 1]
MODULES = ["common_utils", "prepare_niah", "niah_utils", "vt_utils", "cwe_utils", "fwe_utils", "qa_utils"]


class FewWords:
    """What the harness and we ask of wonderwords."""

    def __init__(self, enhanced_prefixes: bool = True) -> None:
        lists = {"noun": NOUNS, "adjective": ADJECTIVES, "verb": VERBS}
        self._categories = {**lists, **{f"{kind}s": listed for kind, listed in lists.items()}}

    def filter(self, include_categories):
        return sorted({word for kind in include_categories for word in self._categories[kind]})


@pytest.fixture(scope="module")
def harness():
    """The harness's modules of RULER, and our words: both with the few words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "1")  # the process that does not download
        fake = ModuleType("wonderwords")
        fake.RandomWord = FewWords
        patch.setitem(sys.modules, "wonderwords", fake)
        for name in MODULES:
            patch.delitem(sys.modules, f"lm_eval.tasks.ruler.{name}", raising=False)
        sources.key_words.cache_clear()
        sources.common_words.cache_clear()
        found = SimpleNamespace(**{name: importlib.import_module(f"lm_eval.tasks.ruler.{name}") for name in MODULES})
        patch.setattr(found.prepare_niah, "cached_sent_tokenize", sentences)
        yield found
    for name in MODULES:
        sys.modules.pop(f"lm_eval.tasks.ruler.{name}", None)
    sources.key_words.cache_clear()
    sources.common_words.cache_clear()


def start(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def no_tokens(text: str) -> SimpleNamespace:
    """A tokenizer under which every prompt fits, so that the harness draws nothing before the prompt itself."""
    return SimpleNamespace(input_ids=[])


def same(ours, text, answers) -> None:
    assert ours.text == text
    assert list(ours.answers) == answers


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("haystack", ["repeat", "essay", "needle"])
@pytest.mark.parametrize(
    ("key", "value"), [("words", "numbers"), ("words", "uuids"), ("uuids", "words"), ("numbers", "uuids")]
)
@pytest.mark.parametrize(("keys", "values", "queries"), [(1, 1, 1), (4, 1, 1), (1, 4, 1), (4, 1, 4), (6, 2, 3)])
def test_needles(harness, seed, haystack, key, value, keys, values, queries) -> None:
    data = read_ruler_data()
    kinds, counts = needles.Kinds(haystack, key, value), {"keys": keys, "values": values, "queries": queries}
    stuff = data.words if haystack == "essay" else harness.prepare_niah.get_haystack(haystack)
    prefix_is = "is" if queries * values == 1 else "are"
    for units in (12, 13, 900):
        start(seed)
        text, answers, query = harness.prepare_niah.generate_input_output(
            units,
            stuff,
            type_haystack=haystack,
            num_needle_k=keys,
            type_needle_k=key,
            num_needle_v=values,
            type_needle_v=value,
            num_needle_q=queries,
            template=harness.niah_utils.TEMPLATE,
        )
        magic = value[:-1] if prefix_is == "is" else value
        prefix = f"The special magic {magic} for {query} mentioned in the provided text {prefix_is}"
        ours = needles.draw_needles(seed, units, kinds=kinds, data=data, **counts)
        same(ours, f"{text} {prefix}", answers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("haystack", ["repeat", "essay", "needle"])
@pytest.mark.parametrize(("values", "queries"), [(1, 1), (4, 1), (1, 4)])
def test_needles_with_the_beginning_of_the_answer(harness, seed, haystack, values, queries) -> None:
    """The harness's whole request: with room for nothing else, it draws 5 units, or 500 words."""
    start(seed)
    data = read_ruler_data()
    stuff = data.words if haystack == "essay" else harness.prepare_niah.get_haystack(haystack)
    [made] = harness.prepare_niah.generate_samples(
        stuff,
        no_tokens,
        max_seq_length=128,
        type_haystack=haystack,
        type_needle_k="words",
        type_needle_v="numbers",
        template=harness.niah_utils.TEMPLATE,
        num_samples=1,
        num_needle_v=values,
        num_needle_q=queries,
    )
    units = 500 if haystack == "essay" else 5
    kinds = needles.Kinds(haystack, "words", "numbers")
    ours = needles.draw_needles(
        seed, units, kinds=kinds, keys=max(1, queries), values=values, queries=queries, data=data
    )
    same(ours, f"{made['input']} {made['gen_prefix']}", made["outputs"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("hops", "count"), [(4, 1), (1, 1), (2, 3), (6, 2), (10, 1)])
@pytest.mark.parametrize("example_lines", [2, 5, 10])
def test_chains(harness, seed, hops, count, example_lines) -> None:
    def made(**more):
        [prompt] = harness.vt_utils.sys_vartrack_w_noise_random(
            no_tokens, 1, 30, num_chains=count, num_hops=hops, **more
        )
        return prompt

    for units in (2, 5, 6, 12, 40):
        start(seed)
        prompt = made(incremental=units, icl_example=made(incremental=example_lines))
        ours = tracing.draw_chains(seed, units, hops=hops, chains=count, example_lines=example_lines)
        same(ours, f"{prompt['input']} {prompt['gen_prefix']}", prompt["outputs"])


@pytest.mark.parametrize("seed", SEEDS)
def test_chains_without_an_example(harness, seed) -> None:
    for units in (2, 7, 30):
        start(seed)
        text, variables = harness.vt_utils.generate_input_output(units, 1, 4)
        same(tracing.draw_chains(seed, units, hops=4, chains=1), text.rstrip(), variables)


class Rulers:
    """RULER's own shuffle: each from the same seed. The harness goes on from the last one."""

    @staticmethod
    def shuffle(listed) -> None:
        random.Random(42).shuffle(listed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("length", "size"), [(8192, (tracing._EXAMPLE, 30, 3)), (2048, (tracing._SMALL_EXAMPLE, 6, 1))]
)
def test_common_words(harness, monkeypatch, seed, length, size) -> None:
    assert sources.common_words() == harness.cwe_utils.WORDS
    monkeypatch.setattr(harness.cwe_utils, "RNG", Rulers)
    example, common, other = size
    for units in (40, 41, 100, len(harness.cwe_utils.WORDS)):
        start(seed)
        front, text, answers = harness.cwe_utils.generate_input_output(units, length)
        ours = tracing.draw_common(seed, units, example=example, common=common, other=other)
        same(ours, f"{front}\n{text}", answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_frequent_words(harness, seed) -> None:
    for different in (10, 81, 655):
        for units in (53, 54, 700, 5461, 40_000, 300_000):
            start(seed)
            text, answers, _ = harness.fwe_utils.generate_input_output(
                sys.maxsize, no_tokens, num_words=units, vocab_size=different
            )
            same(tracing.draw_frequent(seed, units, different=different), text, answers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
def test_questions(harness, monkeypatch, tmp_path, seed, name) -> None:
    loaded = {"squad": SQUAD, "hotpotqa": HOTPOT}[name]
    monkeypatch.setattr(harness.qa_utils, "download_json", lambda url: loaded)
    qas, documents = getattr(harness.qa_utils, f"read_{name}").__wrapped__()
    library = questions.read_library(write_questions(tmp_path), f"{name}.json")
    assert library.documents == documents
    assert len(library.questions) == len(qas)
    for number in range(len(qas)):
        fewest = len(qas[number]["context"])
        for units in (fewest, fewest + 1, fewest + 6, fewest + 13, len(documents)):
            start(seed)
            [made] = harness.qa_utils.generate_samples(
                no_tokens, list(documents), qas, 32, num_samples=1, pre_samples=number, incremental=units
            )
            ours = questions.draw_question(seed, units, library=library, number=number)
            assert ours.text == f"{made['input']} {made['gen_prefix']}"
            assert list(ours.answers) == list(dict.fromkeys(made["outputs"]))


def test_keys_are_the_harness_s_list(harness) -> None:
    assert list(sources.key_words()) == harness.prepare_niah.WORDS


def test_every_task_has_the_harness_s_kinds(harness, monkeypatch) -> None:
    """The settings with which the harness calls its own generator, task by task."""
    calls = []
    monkeypatch.setattr(harness.niah_utils, "generate_samples", lambda *args, **given: calls.append(given) or [])
    monkeypatch.setattr(harness.niah_utils, "get_haystack", lambda type_haystack: "")
    monkeypatch.setattr(harness.niah_utils, "get_tokenizer", lambda name: None)
    monkeypatch.setattr(harness.niah_utils, "download_dataset", list)
    for name in [task for task in TASKS if task.startswith("niah")]:
        calls.clear()
        getattr(harness.niah_utils, name)(max_seq_lengths=[4096])
        [given] = calls
        kinds, settings = TASKS[name].forms.args[0], TASKS[name].settings
        assert (kinds.haystack, kinds.key, kinds.value) == tuple(
            given[f"type_{what}"] for what in ("haystack", "needle_k", "needle_v")
        )
        assert settings == {what: given.get(f"num_needle_{what[0]}", 1) for what in ("keys", "values", "queries")}
    tokens = {
        "vt": harness.vt_utils.CONFIG["variable_tracking"],
        "cwe": harness.cwe_utils.CONFIG,
        "fwe": harness.fwe_utils.CONFIG,
        "qa_squad": harness.qa_utils.CONFIG,
        "qa_hotpot": harness.qa_utils.CONFIG,
    }
    assert {task: TASKS[task].answer_tokens for task in tokens} == {
        task: config["tokens_to_generate"] for task, config in tokens.items()
    }
    assert {TASKS[task].answer_tokens for task in TASKS if task.startswith("niah")} == {128}

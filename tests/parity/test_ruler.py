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

from skipwise.data.ruler import TASKS, sources, tasks
from skipwise.data.ruler.sources import read_ruler_data, sentences
from tests.questions import HOTPOT, SQUAD, write_questions

NOUNS = ["harbor", "apple", "x-ray", "blue", "zoo", "ice cream", *(f"noun{i}" for i in range(60))]
ADJECTIVES = ["quick", "blue", "blue-eyed", "ad hoc", "ad", "adept", *(f"plain{i}" for i in range(20))]
VERBS = ["run", "blue", *(f"verb{i}" for i in range(20))]
SEEDS = [0, 2**32 - 1]
NEEDLES = [task for task in TASKS if task.startswith("niah")]
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
@pytest.mark.parametrize("task", NEEDLES)
def test_needles(harness, seed, task) -> None:
    data, kinds, counts = read_ruler_data(), TASKS[task].forms.args[0], dict(TASKS[task].settings)
    counts["keys"] = max(counts["keys"], counts["queries"])
    stuff = data.words if kinds.haystack == "essay" else harness.prepare_niah.get_haystack(kinds.haystack)
    several = counts["queries"] * counts["values"] > 1
    assert list(sources.key_words()) == harness.prepare_niah.WORDS
    for units in (12, 900):
        start(seed)
        text, answers, query = harness.prepare_niah.generate_input_output(
            units,
            stuff,
            type_haystack=kinds.haystack,
            num_needle_k=counts["keys"],
            type_needle_k=kinds.key,
            num_needle_v=counts["values"],
            type_needle_v=kinds.value,
            num_needle_q=counts["queries"],
            template=harness.niah_utils.TEMPLATE,
        )
        magic, verb = (kinds.value, "are") if several else (kinds.value[:-1], "is")
        prefix = f"The special magic {magic} for {query} mentioned in the provided text {verb}"
        same(tasks.draw_needles(seed, units, kinds=kinds, data=data, **counts), f"{text} {prefix}", answers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("hops", "count", "example_lines"), [(4, 1, 10), (2, 3, 5), (1, 1, 2)])
def test_chains(harness, seed, hops, count, example_lines) -> None:
    def made(**more):
        [prompt] = harness.vt_utils.sys_vartrack_w_noise_random(
            no_tokens, 1, 30, num_chains=count, num_hops=hops, **more
        )
        return prompt

    for units in (6, 40):
        start(seed)
        prompt = made(incremental=units, icl_example=made(incremental=example_lines))
        ours = tasks.draw_chains(seed, units, hops=hops, chains=count, example_lines=example_lines)
        same(ours, f"{prompt['input']} {prompt['gen_prefix']}", prompt["outputs"])
    start(seed)
    text, variables = harness.vt_utils.generate_input_output(7, count, hops)
    same(tasks.draw_chains(seed, 7, hops=hops, chains=count), text.rstrip(), variables)


class Rulers:
    """RULER's own shuffle: each from the same seed. The harness goes on from the last one."""

    @staticmethod
    def shuffle(listed) -> None:
        random.Random(42).shuffle(listed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("length", "size"), [(8192, (tasks._EXAMPLE, 30, 3)), (2048, (tasks._SMALL_EXAMPLE, 6, 1))])
def test_common_words(harness, monkeypatch, seed, length, size) -> None:
    assert sources.common_words() == harness.cwe_utils.WORDS
    monkeypatch.setattr(harness.cwe_utils, "RNG", Rulers)
    example, common, other = size
    for units in (40, len(harness.cwe_utils.WORDS)):
        start(seed)
        front, text, answers = harness.cwe_utils.generate_input_output(units, length)
        ours = tasks.draw_common(seed, units, example=example, common=common, other=other)
        same(ours, f"{front}\n{text}", answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_frequent_words(harness, seed) -> None:
    for different, units in ((10, 53), (81, 700), (655, 40_000)):
        start(seed)
        text, answers, _ = harness.fwe_utils.generate_input_output(
            sys.maxsize, no_tokens, num_words=units, vocab_size=different
        )
        same(tasks.draw_frequent(seed, units, different=different), text, answers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["squad", "hotpotqa"])
def test_questions(harness, monkeypatch, tmp_path, seed, name) -> None:
    loaded = {"squad": SQUAD, "hotpotqa": HOTPOT}[name]
    monkeypatch.setattr(harness.qa_utils, "download_json", lambda url: loaded)
    qas, documents = getattr(harness.qa_utils, f"read_{name}").__wrapped__()
    library = sources.read_library(write_questions(tmp_path), f"{name}.json")
    assert library.documents == documents
    assert len(library.questions) == len(qas)
    for number, asked in enumerate(qas[:4]):
        for units in (len(asked["context"]), len(asked["context"]) + 6, len(documents)):
            start(seed)
            [made] = harness.qa_utils.generate_samples(
                no_tokens, list(documents), qas, 32, num_samples=1, pre_samples=number, incremental=units
            )
            ours = tasks.draw_question(seed, units, library=library, number=number)
            same(ours, f"{made['input']} {made['gen_prefix']}", list(dict.fromkeys(made["outputs"])))


def test_every_task_has_the_harness_s_kinds(harness, monkeypatch) -> None:
    """The settings with which the harness calls its own generator, task by task."""
    calls = []
    monkeypatch.setattr(harness.niah_utils, "generate_samples", lambda *args, **given: calls.append(given) or [])
    monkeypatch.setattr(harness.niah_utils, "download_dataset", list)
    for name in ("get_haystack", "get_tokenizer"):
        monkeypatch.setattr(harness.niah_utils, name, lambda *args, **given: "")
    for name in NEEDLES:
        getattr(harness.niah_utils, name)(max_seq_lengths=[4096])
        given, task = calls.pop(), TASKS[name]
        kinds = task.forms.args[0]
        asked = [given[f"type_{what}"] for what in ("haystack", "needle_k", "needle_v")]
        assert [kinds.haystack, kinds.key, kinds.value] == asked
        assert task.settings == {what: given.get(f"num_needle_{what[0]}", 1) for what in ("keys", "values", "queries")}
        assert task.answer_tokens == 128
    for name, config in {
        "vt": harness.vt_utils.CONFIG["variable_tracking"],
        "cwe": harness.cwe_utils.CONFIG,
        "fwe": harness.fwe_utils.CONFIG,
        "qa_squad": harness.qa_utils.CONFIG,
        "qa_hotpot": harness.qa_utils.CONFIG,
    }.items():
        assert TASKS[name].answer_tokens == config["tokens_to_generate"]

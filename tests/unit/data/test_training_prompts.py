"""Retrieval prompts to train on: every answer was told, in its own words, and the example is whole."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from skipwise.data import passkey, retrieval_prompts, training_prompts
from skipwise.data.training_prompts import TrainingPrompt, require_room, training_prompt
from skipwise.errors import DataError
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
TEXT = np.array(TOKENIZER("a text of words that goes on. " * 60)["input_ids"])


def said(prompt: TrainingPrompt, part: slice = slice(None), kept: bool | None = None) -> str:
    ids, trained = prompt.ids[part], prompt.trained[part]
    return str(TOKENIZER.decode(ids if kept is None else ids[trained == kept]))


def with_numbers(lines: str) -> list[str]:
    """The facts: the text has no number."""
    return [line for line in lines.splitlines() if re.search(r"\d", line)]


@given(length=st.integers(250, 1500), seed=st.integers(0, 2**32))
def test_every_answer_was_told_before(length: int, seed: int) -> None:
    prompt = training_prompt(TOKENIZER, TEXT[:length], np.random.default_rng(seed))
    assert prompt.ids.shape == prompt.trained.shape == (length,)
    assert 0 < prompt.told <= prompt.asked < length
    told, asked = said(prompt, slice(prompt.asked), kept=False), said(prompt, slice(prompt.asked, None))
    answers = said(prompt, slice(prompt.asked, None), kept=True).split()
    facts = with_numbers(told)
    questions = [line for line in asked.splitlines() if line]
    assert 1 <= len(answers) == len(questions) <= len(facts)
    assert len(facts) == len(questions) or (len(facts) <= max(1, length // 64) and len(questions) <= 4)
    for question, answer in zip(questions, answers, strict=True):
        assert question.endswith(f" {answer}")
        names = re.findall(r"[a-z]{4}-[a-z]{4}", question)
        mine = [fact for fact in facts if answer in fact and (not names or names[0] in fact)]
        assert mine, (question, told)
        assert names or len(facts) == 1
    assert [TOKENIZER.decode([id]) for id in prompt.ids[prompt.first_digits]] == [answer[0] for answer in answers]
    assert not set("0123456789") & {said(prompt)[place - 1] for place in np.flatnonzero(prompt.first_digits)}


def test_the_first_digit_of_an_answer_is_found_where_a_token_has_several_or_a_space_before_it() -> None:
    words = {"\u0120170": 0, "36": 1, "\u0120": 2, "1": 3, "703": 4, "6": 5, "\u010a": 6, "\u01201": 7}
    backend = Tokenizer(models.WordLevel(words, unk_token="6"))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    answers = [[0, 1, 6], [2, 3, 4, 5, 6], [2, 2, 3, 4], [7, 4, 5]]
    assert [tokenizer.decode(answer) for answer in answers] == [" 17036\n", " 17036\n", "  1703", " 17036"]
    assert [training_prompts._before_digits(tokenizer, answer) for answer in answers] == [0, 1, 2, 0]


@given(length=st.integers(250, 1500), seed=st.integers(0, 2**32))
def test_what_is_between_is_the_text_in_its_order(length: int, seed: int) -> None:
    prompt = training_prompt(TOKENIZER, TEXT[:length], np.random.default_rng(seed))
    text = prompt.ids[: prompt.asked][prompt.trained[: prompt.asked]]
    assert (text == TEXT[: len(text)]).all()
    assert len(text) < length


def test_no_measured_prompt_has_its_words() -> None:
    forms = training_prompts.FORMS + training_prompts._NAMELESS
    measured = " ".join(
        TOKENIZER.decode(task.prompt(TOKENIZER, 2000, np.random.default_rng(0)).ids)
        for task in retrieval_prompts.TASKS.values()
    )
    assert "pass key of" in measured
    for (fact, question), noun in product(forms, training_prompts.NOUNS):
        for part in re.split(r"\{\w+\}", f"{fact}{{}}{question}".replace("{noun}", noun)):
            words = part.strip(" .,:#?-=")
            assert len(words.split()) < 2 or words not in measured
        assert "pass key" not in fact + question + noun
    assert passkey_words() not in "".join(fact for fact, _ in forms)


def passkey_words() -> str:
    return passkey.passkey_text("12345", 0, 0).splitlines()[1].split("12345")[0].strip()


def forms_of(prompt: TrainingPrompt) -> int:
    facts = with_numbers(said(prompt, slice(prompt.asked), kept=False))
    return len({re.sub(r"\d+", "#", re.sub(r"[a-z]{4}-[a-z]{4}", "@", fact)) for fact in facts})


def test_kinds_differ() -> None:
    prompts = [training_prompt(TOKENIZER, TEXT[:1000], np.random.default_rng(seed)) for seed in range(200)]
    told = [len(with_numbers(said(p, slice(p.asked)))) for p in prompts]
    asked = [len(said(p, slice(p.asked, None), kept=True).split()) for p in prompts]
    registers = [t == a > 4 for t, a in zip(told, asked, strict=True)]
    assert 0.3 < np.mean(registers) < 0.5
    assert {t for t, register in zip(told, registers, strict=True) if not register} == {1, 2, 4, 8}
    assert max(a for a, register in zip(asked, registers, strict=True) if not register) == 4
    forms = [forms_of(p) for p in prompts]
    assert {n for n, register in zip(forms, registers, strict=True) if not register} == {1}
    assert 4 < np.mean([n for n, register in zip(forms, registers, strict=True) if register]) <= 7
    assert all(p.trained[: p.asked].sum() < 150 for p, register in zip(prompts, registers, strict=True) if register)
    behind = [bool(p.text_follows[p.told :].any()) for p, register in zip(prompts, registers, strict=True) if register]
    assert 0.5 < np.mean(behind) < 1  # facts that stand together stand anywhere in the text


def test_an_example_that_holds_none_is_refused() -> None:
    require_room(TOKENIZER, 256)
    with pytest.raises(DataError, match="train length 64 is too short for retrieval prompts of 254 tokens"):
        require_room(TOKENIZER, 64)


@pytest.mark.parametrize(("known", "said"), [("a b c", "the digit 0 into"), ("0123456789 .", "the name .* into")])
def test_a_tokenizer_that_cannot_write_them_is_refused(known: str, said: str) -> None:
    words = {"[UNK]": 0, **{letter: i + 1 for i, letter in enumerate(dict.fromkeys(known))}}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    with pytest.raises(DataError, match=said):
        require_room(tokenizer, 1000)

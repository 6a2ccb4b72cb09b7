"""Prompts with several keys, and registers of lines: as long as asked for, and with one right answer."""

import re

import numpy as np
import pytest

from skipwise.data.prompts import answer_ids, keys_prompt, lines_prompt
from skipwise.model.loading import load_tokenizer
from tests.tiny import byte_tokenizer

BYTES, NANO = byte_tokenizer(), load_tokenizer("nano")
ASKED = {keys_prompt: r"What is the pass key of (\S+)\?", lines_prompt: r"What is the number in line (\S+)\?"}
SAID = {keys_prompt: r"The pass key of {} is (\d+)\.", lines_prompt: r"line {}: the number is (\d+)\.\n"}
LONGEST_PART = {keys_prompt: 24, lines_prompt: 38}  # characters


@pytest.mark.parametrize("prompt", [keys_prompt, lines_prompt])
@pytest.mark.parametrize(("tokenizer", "length"), [(BYTES, 700), (NANO, 1024), (BYTES, 3000)])
def test_a_prompt_fills_its_length_and_holds_its_answer_once(prompt, tokenizer, length) -> None:
    for trial in range(4):
        drawn = prompt(tokenizer, length, np.random.default_rng([trial, length]))
        text = tokenizer.decode(drawn.ids)
        used = len(drawn.ids) + len(answer_ids(tokenizer, drawn.answer))
        part = len(tokenizer("x" * LONGEST_PART[prompt])["input_ids"])
        assert length - max(part, 24) < used <= length
        [name] = re.findall(ASKED[prompt], text)
        assert re.findall(SAID[prompt].format(name), text) == [drawn.answer]
        assert text.endswith(" is")
        assert 0 <= drawn.depth <= 1
        assert prompt(tokenizer, length, np.random.default_rng([trial, length])) == drawn


def test_every_name_and_number_is_another() -> None:
    text = BYTES.decode(lines_prompt(BYTES, 20_000, np.random.default_rng(0)).ids)
    lines = re.findall(r"^line (\w{4}-\w{4}): the number is (\d{5})\.$", text, re.MULTILINE)
    assert len(lines) > 400
    assert len({name for name, _ in lines}) == len({number for _, number in lines}) == len(lines)
    keys = BYTES.decode(keys_prompt(BYTES, 2000, np.random.default_rng(0)).ids)
    assert len(set(re.findall(r"The pass key of (\S+) is (\d{5})\.", keys))) == 4


@pytest.mark.parametrize("prompt", [keys_prompt, lines_prompt])
@pytest.mark.parametrize("depth", [0.0, 0.3])
def test_depth_is_where_the_answer_stands(prompt, depth) -> None:
    drawn = prompt(BYTES, 5000, np.random.default_rng(1), depth)
    text = BYTES.decode(drawn.ids)
    [name] = re.findall(ASKED[prompt], text)
    place = re.search(SAID[prompt].format(name), text).start() / len(text)
    assert drawn.depth == pytest.approx(depth, abs=0.02)
    assert place == pytest.approx(depth, abs=0.09)

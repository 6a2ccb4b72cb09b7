"""LongPPL equals a token by token count on the same logits, and is kept whole from measuring to the page."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from skipwise.errors import RunError
from skipwise.evaluation.plan import Readings
from skipwise.report.longppl_table import longppl_by_position
from skipwise.report.table import format_number
from skipwise.results.records import ReadingRecord
from skipwise.results.token_losses import GAIN, MOST, TokenLosses, key_tokens, long_perplexity, read_losses
from tests.tiny import llama

SHORT, STRIDE, LENGTH = 24, 8, 88


def confident(seed: int) -> PreTrainedModel:
    """A model of random weights, large enough that far text changes what it predicts."""
    model, draw = llama(window=LENGTH), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6).add_(0.02 * torch.randn(weight.shape, generator=draw))
    return model.eval()


def told_by(model: PreTrainedModel, seed: int) -> np.ndarray:
    """A document that the model predicts well, int64 [LENGTH]: it is sampled from it."""
    torch.manual_seed(seed)
    start = torch.tensor([[1 + seed]])
    return model.generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=True,
        top_k=0,
        min_new_tokens=LENGTH - 1,
        max_length=LENGTH,
    )[0].numpy()


def measured(model: PreTrainedModel, documents: list[np.ndarray], arm: str, folder: Path) -> dict[int, list]:
    """Readings in both windows, and what they keep of single tokens."""
    records = {}
    for window, stride in ((SHORT, STRIDE), (LENGTH, LENGTH)):
        how = ReadingRecord(arm, "text", "", "sliding", 0, window, stride, [1, SHORT, LENGTH], "float32", digest=arm)
        requests = [replace(how, document=f"d{n}") for n in range(len(documents))]
        records[window] = list(Readings(requests, documents, folder).answers(model))
    return records


def token_loss(model: PreTrainedModel, context: np.ndarray, target: int) -> float:
    with torch.no_grad():
        logits = model(torch.tensor(context[None])).logits[0, -1].double()
    return float(torch.logsumexp(logits, 0) - logits[target])


@pytest.mark.parametrize(("gain", "most"), [(GAIN, MOST), (0.5, 6.0)])
def test_key_tokens_and_longppl_are_those_of_a_count_token_by_token(tmp_path: Path, gain: float, most: float) -> None:
    """The published code (PKU-ML/LongPPL) reads windows of trunc_len + sliding_window tokens, which advance by sliding_window."""
    evaluator, other = confident(0), confident(1)
    documents = [told_by(evaluator, number) for number in range(3)]
    ours, theirs = (measured(model, documents, arm, tmp_path) for model, arm in ((evaluator, "a"), (other, "b")))

    losses, of_other, keys = [], [], []
    for document in documents:
        key = []
        for begin in range(0, LENGTH - SHORT, STRIDE):
            for place in range(begin + SHORT, begin + SHORT + STRIDE):
                near = document[begin + STRIDE : place]  # from where the window that scores the place begins
                short, full = (token_loss(evaluator, text, document[place]) for text in (near, document[:place]))
                if short - full > gain and full < most:
                    key.append(place)
                    losses.append(full)
                    of_other.append(token_loss(other, document[:place], document[place]))
        keys.append(key)
    assert 9 < len(losses) < 3 * (LENGTH - SHORT) - 9

    def read(reading: ReadingRecord) -> TokenLosses | None:
        return read_losses(tmp_path, reading.key)

    chosen = key_tokens(ours[SHORT], ours[LENGTH], read, gain, most)
    assert [(np.flatnonzero(chosen[f"d{n}"].key) + 1).tolist() for n in range(3)] == keys
    for readings, expected in ((ours, losses), (theirs, of_other)):
        value = long_perplexity(readings[LENGTH], chosen, read)
        assert value.key.mean == pytest.approx(math.exp(np.mean(expected)), rel=1e-4)
        assert value.key.low < value.key.mean < value.key.high
    assert all(one.candidates == LENGTH - SHORT for one in chosen.values())
    if (gain, most) == (GAIN, MOST):
        told = longppl_by_position([*ours[SHORT], *ours[LENGTH]], tmp_path)
        assert f"LongPPL in windows of 88 tokens is {format_number(math.exp(np.mean(losses)))} [" in told
        assert (
            f"{len(losses)} key tokens of 192 in 3 documents, chosen by the model itself: their loss is below 2" in told
        )
        assert "more than 2 lower than in windows of 24 tokens" in told


def test_a_document_whose_losses_were_removed_is_left_out_of_every_model(tmp_path: Path) -> None:
    evaluator = confident(0)
    documents = [told_by(evaluator, number) for number in range(2)]
    readings = measured(evaluator, documents, "a", tmp_path)

    def read(reading: ReadingRecord) -> TokenLosses | None:
        return read_losses(tmp_path, reading.key)

    both = key_tokens(readings[SHORT], readings[LENGTH], read)
    (tmp_path / f"{readings[SHORT][0].key}.npz").unlink()
    chosen = key_tokens(readings[SHORT], readings[LENGTH], read)
    assert both.keys() == {"d0", "d1"} != chosen.keys() == {"d1"}
    assert long_perplexity(readings[LENGTH], chosen, read) == long_perplexity(readings[LENGTH][1:], chosen, read)


def test_other_tokens_and_lost_or_damaged_losses_give_none(tmp_path: Path) -> None:
    model, document = confident(0), told_by(confident(0), 0)
    readings, folder = measured(model, [document], "a", tmp_path), tmp_path

    def read(reading: ReadingRecord) -> TokenLosses | None:
        return read_losses(folder, reading.key)

    kept = read(readings[LENGTH][0])
    assert kept is not None
    assert kept.tokens.tolist() == document[1:].tolist()
    chosen = key_tokens(readings[SHORT], readings[LENGTH], read)
    other = measured(confident(1), [document[::-1].copy()], "b", tmp_path)
    assert long_perplexity(other[LENGTH], chosen, read) is None
    none = {"d0": replace(chosen["d0"], key=np.zeros_like(chosen["d0"].key))}
    assert long_perplexity(readings[LENGTH], none, read) is None
    path = tmp_path / f"{readings[SHORT][0].key}.npz"
    saved = path.read_bytes()
    middle = len(saved) // 2
    for damaged in (saved[:100], saved[:middle] + bytes([saved[middle] ^ 1]) + saved[middle + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=path.name):
            key_tokens(readings[SHORT], readings[LENGTH], read)
    path.unlink()
    assert key_tokens(readings[SHORT], readings[LENGTH], read) == {}
    told = longppl_by_position([*readings[SHORT], *readings[LENGTH]], folder)
    assert "LongPPL is not known: the file of --out has records without" in told
    assert "give another --out" in told
    assert longppl_by_position(readings[LENGTH], folder) == ""


def test_a_model_without_a_key_token_has_no_longppl(tmp_path: Path) -> None:
    readings = measured(llama(window=LENGTH), [told_by(confident(0), 0)], "a", tmp_path)
    told = longppl_by_position([*readings[SHORT], *readings[LENGTH]], tmp_path)
    assert "has no value, because there is no key token: 0 key tokens of 64 in 1 document" in told

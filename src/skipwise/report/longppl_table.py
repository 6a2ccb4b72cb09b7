"""LongPPL of the models of a run or an evaluation, side by side: one of them chooses the key tokens for all. And of one
model, in a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.report.folder import Folder
from skipwise.report.summary import Row, rows_of
from skipwise.report.table import Table, format_interval
from skipwise.results.records import ReadingRecord
from skipwise.results.token_losses import (
    GAIN,
    MOST,
    KeyTokens,
    LongPerplexity,
    TokenLosses,
    key_tokens,
    long_perplexity,
    read_losses,
)


@dataclass(frozen=True)
class LongPerplexities:
    """LongPPL of every model that read one text."""

    evaluator: Row  # the first extended model, which chooses the key tokens
    key: dict[str, KeyTokens]  # by document
    models: list[tuple[Row, LongPerplexity]]
    thresholds: tuple[float, float]  # of a key token, in nats: the least gain by far text and the greatest loss
    folder: str = ""  # its name, where there are several

    @property
    def rule(self) -> str:
        """Which tokens are key, in words."""
        return _rule(min(self.evaluator.sliding), *self.thresholds)

    @property
    def sentence(self) -> str:
        """LongPPL of the model that chooses the key tokens, in a sentence."""
        own = next((value for row, value in self.models if row is self.evaluator), None)
        return f"On {self.evaluator.data}: {_sentence(own, self.key, max(self.evaluator.sliding), self.rule)}"


def longppl_by_position(readings: Sequence[ReadingRecord], losses: Path) -> str:
    """LongPPL of one model, read in short and in long windows, in a sentence; empty where it was read in one window only.

    ``losses`` is the folder of the losses of single tokens. Thresholds are those published.
    """
    short, far = min(r.window for r in readings), max(r.window for r in readings)
    if short == far:
        return ""
    whole, read = [r for r in readings if r.window == far], partial(_read, losses, {})
    key = key_tokens([r for r in readings if r.window == short], whole, read)
    if len(key) < len(whole):
        return (
            f"LongPPL is not known: the file of --out has records without the losses of single tokens in {losses}; "
            "give another --out"
        )
    return _sentence(long_perplexity(whole, key, read), key, far, _rule(short, GAIN, MOST))


def _sentence(value: LongPerplexity | None, key: Mapping[str, KeyTokens], far: int, rule: str) -> str:
    """LongPPL of a model that chose the key tokens itself."""
    told = f"{_share(key)}, chosen by the model itself: {rule}"
    if value is None:
        return f"LongPPL in windows of {far:,} tokens has no value, because there is no key token: {told}."
    return (
        f"LongPPL in windows of {far:,} tokens is {format_interval(value.key, False)}, the perplexity of {told}. "
        f"The perplexity of all of these tokens is {format_interval(value.every, False)}."
    )


def _share(key: Mapping[str, KeyTokens]) -> str:
    """How many tokens are key, of how many."""
    tokens = sum(int(chosen.key.sum()) for chosen in key.values())
    candidates = sum(chosen.candidates for chosen in key.values())
    return f"{counted(tokens, 'key token')} of {candidates:,} in {counted(len(key), 'document')}"


def _rule(short: int, gain: float, most: float) -> str:
    """Which tokens are key, in words, by their losses in long windows and in ``short`` ones."""
    return f"their loss is below {most:g} nats, and more than {gain:g} lower than in windows of {short:,} tokens"


def _read(folder: Path | None, known: dict[str, TokenLosses | None], reading: ReadingRecord) -> TokenLosses | None:
    """The losses of a reading; ``known`` keeps them for the next question."""
    if reading.key not in known:
        known[reading.key] = read_losses(folder, reading.key) if folder else None
    return known[reading.key]


def long_perplexities(folders: Sequence[Folder]) -> list[LongPerplexities]:
    """Compute LongPPL of runs and evaluations, text by text; nothing where the losses of single tokens were not kept."""
    several = len(folders) > 1
    return [one for folder in folders for one in _of_texts(folder, folder.name if several else "")]


def _of_texts(folder: Folder, name: str) -> Iterator[LongPerplexities]:
    rows = [row for row in rows_of([folder]) if row.sliding]
    read = partial(_read, folder.losses, {})
    for evaluator in {row.data: row for row in reversed(rows) if row.judged}.values():
        short = min(evaluator.sliding)
        if short == max(evaluator.sliding):
            continue
        if chosen := key_tokens(evaluator.readings(short), evaluator.whole, read, *thresholds(folder)):
            of_all = [(row, long_perplexity(row.whole, chosen, read)) for row in rows if row.data == evaluator.data]
            yield LongPerplexities(
                evaluator, chosen, [(row, value) for row, value in of_all if value], thresholds(folder), name
            )


def thresholds(folder: Folder) -> tuple[float, float]:
    """What an evaluation calls a key token: the least gain by far text and the greatest loss, in nats."""
    asked = folder.info.get("evaluation", {})
    gain, most = asked.get("key_gain"), asked.get("key_loss")
    return GAIN if gain is None else float(gain), MOST if most is None else float(most)


def longppl_tables(computed: Sequence[LongPerplexities], brief: bool) -> list[Table]:
    """A table for each text: LongPPL of each model, and beside it the perplexity of all tokens as far into the text."""
    tables = []
    for one in computed:
        far = max(one.evaluator.sliding)
        cells = [
            [
                row.label
                if max(row.sliding) == far
                else f"{row.label}, in windows of {format_length(max(row.sliding))}",
                format_interval(value.key, brief),
                format_interval(value.every, brief),
            ]
            for row, value in one.models
        ]
        cells = cells or [[one.evaluator.label, "–", "–"]]  # there is no key token, as the title says
        named = f" ({one.folder})" if one.folder else ""
        title = f"LongPPL{named}: {_share(one.key)}, chosen by {one.evaluator.label} (lower is better)"
        head = ["model", "LongPPL", "perplexity of all"]
        tables.append(Table(title, "LongPPL", head, cells))
    return tables

"""LongPPL of the models of an evaluation, side by side: one of them chooses the key tokens for all."""

from collections.abc import Iterator
from dataclasses import dataclass

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.report.summary import Folder, Row, mapping, rows_of
from skipwise.report.table import Table, format_interval
from skipwise.results.longppl import GAIN, MOST, KeyTokens, LongPerplexity, key_tokens, long_perplexity
from skipwise.results.records import ReadingRecord
from skipwise.results.token_losses import TokenLosses, read_losses


@dataclass(frozen=True)
class LongPerplexities:
    """LongPPL of every model that read one text."""

    evaluator: Row  # the first extended model, which chooses the key tokens
    key: dict[str, KeyTokens]  # by document
    models: list[tuple[Row, LongPerplexity]]
    thresholds: tuple[float, float]  # of a key token, in nats: the least gain by far text and the greatest loss

    @property
    def share(self) -> str:
        """How many tokens are key, of how many."""
        tokens = sum(int(chosen.key.sum()) for chosen in self.key.values())
        candidates = sum(chosen.candidates for chosen in self.key.values())
        return f"{counted(tokens, 'key token')} of {candidates:,} in {counted(len(self.key), 'document')}"

    @property
    def rule(self) -> str:
        """Which tokens are key, in words."""
        gain, most = self.thresholds
        return f"their loss is below {most:g} nats, and more than {gain:g} lower than in windows of {min(self.evaluator.sliding):,} tokens"


def long_perplexities(folder: Folder) -> Iterator[LongPerplexities]:
    """Compute LongPPL of an evaluation, text by text; nothing where the losses of single tokens were not kept."""
    rows = [row for row in rows_of([folder]) if row.sliding]
    known: dict[str, TokenLosses | None] = {}

    def read(reading: ReadingRecord) -> TokenLosses | None:
        if reading.key not in known:
            known[reading.key] = read_losses(folder.losses, reading.key) if folder.losses else None
        return known[reading.key]

    for evaluator in {row.data: row for row in reversed(rows) if row.judged}.values():
        short = min(evaluator.sliding)
        if short == max(evaluator.sliding):
            continue
        if chosen := key_tokens(evaluator.readings(short), evaluator.whole, read, *thresholds(folder)):
            of_all = [(row, long_perplexity(row.whole, chosen, read)) for row in rows if row.data == evaluator.data]
            yield LongPerplexities(
                evaluator, chosen, [(row, value) for row, value in of_all if value], thresholds(folder)
            )


def thresholds(folder: Folder) -> tuple[float, float]:
    """What an evaluation calls a key token: the least gain by far text and the greatest loss, in nats."""
    asked = mapping(folder.info.get("evaluation"))
    gain, most = asked.get("key_gain"), asked.get("key_loss")
    return GAIN if gain is None else float(gain), MOST if most is None else float(most)


def longppl_tables(folder: Folder, brief: bool, named: str = "") -> list[Table]:
    """A table for each text: LongPPL of each model, and beside it the perplexity of all tokens as far into the text."""
    tables = []
    for one in long_perplexities(folder):
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
        title = f"LongPPL{named}: {one.share}, chosen by {one.evaluator.label} (lower is better)"
        head = ["model", "LongPPL", "perplexity of all"]
        tables.append(Table(title, "LongPPL", head, cells))
    return tables

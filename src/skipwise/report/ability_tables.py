"""Short ability -> tables: loss and accuracy on other text inside the original window, and published benchmarks."""

import re
from collections.abc import Mapping, Sequence

from skipwise.report.price import Price, prices_of
from skipwise.report.summary import Folder, arm_name, benchmarks_of
from skipwise.report.table import Table
from skipwise.results.benchmarks import PAPER, PaperTask, Score, average, is_of_paper, paper_scores
from skipwise.results.records import BenchmarkRecord

_AVERAGE = "average"


def ability_tables(folder: Folder, named: str = "") -> list[Table]:
    """A table for each model: loss and next-token accuracy by kind of text, beside its base."""
    prices = prices_of(folder)
    arms = list(dict.fromkeys(price.arm for price in prices))
    title = f"Short ability: other text inside the original window{named}"
    return [
        _ability_table(
            [price for price in prices if price.arm == arm], f"{title}: {arm_name(arm)}" if folder.models else title
        )
        for arm in arms
    ]


def _ability_table(prices: Sequence[Price], title: str) -> Table:
    against = any(price.loss.difference for price in prices)
    rows = []
    for name in dict.fromkeys(name for price in prices for name in price.measures):
        digits = 2 if name.endswith("(%)") else 3
        for price in prices:
            if measured := price.measures.get(name):
                own = f"{measured.own:.{digits}f}"
                cells = [own]
                if against and measured.base is not None and measured.difference:
                    cells = [f"{measured.base:.{digits}f}", own, price.told(measured.difference, digits)]
                rows.append([f"{price.kind}, {name}", *cells])
    head = ["text", "base", "extended", "difference"] if against else ["text", "model"]
    return Table(title, "other text", head, rows)


def benchmark_tables(folders: Sequence[Folder], brief: bool) -> list[Table]:
    """The paper's table of models, if its benchmarks were run, and a table of all others."""
    records = benchmarks_of(folders)
    bases = {str(m.get("label")): str(m.get("base") or "") for folder in folders for m in folder.models}
    rest = [record for record in records if not is_of_paper(record)]
    return [_paper_table([r for r in records if is_of_paper(r)], bases, brief), _rest_table(rest)]


def _paper_table(records: Sequence[BenchmarkRecord], bases: Mapping[str, str], brief: bool) -> Table:
    """The paper's Table 3: a row for each model, bases first, and below each extended one its difference to its base.

    ``bases`` names the base of each model by its label. Standard errors stand behind values, or if ``brief`` those of
    differences below them.
    """
    scores = {label: _with_average(own) for label, own in paper_scores(records).items()}
    columns = [task for task in (*PAPER, _AVERAGE) if any(task in own for own in scores.values())]
    rows = []
    for label in sorted(scores, key=lambda label: label not in bases.values()):
        own, base = scores[label], scores.get(bases.get(label, ""), {})
        rows.append([label, *(_cell(own.get(task), "{:.2f}", brief) for task in columns)])
        if apart := {task: own[task].less(base[task]) for task in own if task in base}:
            named = "  less its base" if brief else f"{label} less its base"
            rows.append([named, *(_cell(apart.get(task), "{:+.2f}", brief) for task in columns)])
            if brief:
                rows.append(["  standard error", *(_error(apart.get(task)) for task in columns)])
    asked = {name: _asked(task, brief) for name, task in PAPER.items()}
    limits = sorted({record.limit for record in records if record.limit})
    some = f", only the first {' and '.join(map(str, limits))} questions of each" if limits else ""
    title = f"The paper's benchmarks (its Table 3) in %{'' if brief else ' (standard error)'}{some}"
    return Table(title, "benchmarks", ["model", *(asked.get(task, task) for task in columns)], rows)


def _asked(task: PaperTask, brief: bool) -> str:
    """The task and its examples, if ``brief`` in as many lines as keep a column narrow."""
    if not brief:
        return f"{task.title}, {task.fewshot}-shot"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-\n", task.title) + f"\n{task.fewshot}-shot"


def _with_average(scores: Mapping[str, Score]) -> dict[str, Score]:
    mean = average(scores)
    return {**scores, _AVERAGE: mean} if mean else dict(scores)


def _cell(score: Score | None, form: str, brief: bool) -> str:
    if score is None:
        return "–"
    return form.format(score.value) + ("" if brief or score.error is None else f" ({score.error:.2f})")


def _error(score: Score | None) -> str:
    return "–" if score is None or score.error is None else f"{score.error:.2f}"


def benchmarks_sentence(folder: Folder) -> str:
    """Say that the paper's benchmarks were not run and which command runs them; empty where they were."""
    ran = {record.task for record in benchmarks_of([folder]) if is_of_paper(record)}
    if not folder.models or ran >= set(PAPER):
        return ""
    command = folder.info.get("command")
    words = list(map(str, command)) if isinstance(command, list) else str(command or "").split()
    own = words and not {"--benchmarks", "--data-dir"} & set(words)
    told = f"{' '.join(words) if own else 'skipwise evaluate ...'} --benchmarks paper --data-dir"
    missed = (
        "The paper's six benchmarks were not run" if not ran else f"Of the paper's six benchmarks {len(ran)} were run"
    )
    return f"{missed}, because their data do not ship with Skipwise: {told} DIR runs them, with their data sets in DIR."


def _rest_table(records: Sequence[BenchmarkRecord]) -> Table:
    labels = list(dict.fromkeys(r.arm for r in records))
    values = {(_task(r), r.arm): r for r in records}
    rows = [
        [task, *(_value(values.get((task, label))) for label in labels)] for task in dict.fromkeys(map(_task, records))
    ]
    return Table("Benchmarks (standard error)", "benchmarks", ["task", *labels], rows)


def _task(record: BenchmarkRecord) -> str:
    return f"{record.task}, {record.fewshot}-shot, {record.metric}"


def _value(record: BenchmarkRecord | None) -> str:
    if record is None:
        return "–"
    return f"{record.value:.4f}" + (f" ({record.standard_error:.4f})" if record.standard_error else "")

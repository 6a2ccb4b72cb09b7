"""Short ability -> tables: loss and accuracy on other text inside the original window, and published benchmarks."""

import re
import shlex
from collections.abc import Mapping, Sequence

from skipwise.recipes.names import arm_name
from skipwise.report.folder import Folder
from skipwise.report.price import Price, prices_of
from skipwise.report.summary import benchmarks_of
from skipwise.report.table import Table
from skipwise.results.records import BenchmarkRecord
from skipwise.results.scores import PAPER, PaperTask, Score, average, difference, is_of_paper, paper_records, score

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
    for name in prices[0].measures:
        digits = 2 if name.endswith("(%)") else 3
        for price in prices:
            measured = price.measures[name]
            cells = [own := f"{measured.own:.{digits}f}"]
            if against and measured.base is not None and measured.difference:
                cells = [f"{measured.base:.{digits}f}", own, price.told(measured.difference, digits)]
            rows.append([f"{price.kind}, {name}", *cells])
    head = ["text", "base", "extended", "difference"] if against else ["text", "model"]
    return Table(title, "other text", head, rows)


def benchmark_tables(folders: Sequence[Folder], brief: bool) -> list[Table]:
    """The paper's table of models, if its benchmarks were run, and a table of all others."""
    rest = [record for record in benchmarks_of(folders) if not is_of_paper(record)]
    return [_paper_table(folders, brief), _rest_table(rest)]


def paper_differences(folders: Sequence[Folder]) -> dict[str, dict[str, Score]]:
    """What each extended model scores more than its base in the paper's benchmarks, and on average, by label and task."""
    found = paper_records(benchmarks_of(folders))
    bases = {label: found.get(base, {}) for label, base in _bases(folders).items()}
    differences = {
        label: {task: difference(own[task], bases[label][task]) for task in own if task in bases.get(label, {})}
        for label, own in found.items()
    }
    return {label: _with_average(scores) for label, scores in differences.items() if scores}


def paper_sentence(folders: Sequence[Folder]) -> str:
    """How the errors in the paper's table are meant; empty where its benchmarks were not run."""
    differences = [score for scores in paper_differences(folders).values() for score in scores.values()]
    parts = ["The paper's benchmarks: as lm-evaluation-harness scores them."]
    if any(score.paired for score in differences):
        parts.append(
            "The standard error of a difference is over questions that both models answered, paired: the differences of "
            "their scores, question by question."
        )
    if any(score.paired is False for score in differences):
        parts.append(
            "With a * it is that of two models that answer different questions, because the records hold no score of each "
            "question, or the questions differ. Of models that answered the same ones the true error is smaller."
        )
    return " ".join(parts) if paper_records(benchmarks_of(folders)) else ""


def _bases(folders: Sequence[Folder]) -> dict[str, str]:
    """The label of each model's base, by the model's label."""
    return {m["label"]: str(m.get("base") or "") for folder in folders for m in folder.models}


def _paper_table(folders: Sequence[Folder], brief: bool) -> Table:
    """The paper's Table 3: a row for each model, bases first, and below each extended one its difference to its base.

    Standard errors stand behind values, or if ``brief`` those of differences below them.
    """
    found, differences = paper_records(benchmarks_of(folders)), paper_differences(folders)
    scores = {label: _with_average({task: score(r) for task, r in own.items()}) for label, own in found.items()}
    columns = [task for task in (*PAPER, _AVERAGE) if any(task in own for own in scores.values())]
    rows, bases = [], set(_bases(folders).values())
    for label in sorted(scores, key=lambda label: label not in bases):
        rows.append([label, *(_cell(scores[label].get(task), "{:.2f}", brief) for task in columns)])
        if changes := differences.get(label):
            named = "  less its base" if brief else f"{label} less its base"
            rows.append([named, *(_cell(changes.get(task), "{:+.2f}", brief) for task in columns)])
            if brief:
                rows.append(["  standard error", *(_error(changes.get(task)) or "–" for task in columns)])
    asked = {name: _asked(task, brief) for name, task in PAPER.items()}
    limits = sorted({record.limit for own in found.values() for record in own.values() if record.limit})
    some = f", only the first {' and '.join(map(str, limits))} questions of each" if limits else ""
    starred = any(one.paired is False and _error(one) for changes in differences.values() for one in changes.values())
    kinds = ["" if brief else "standard error", "* not paired" if starred else ""]
    told = f" ({'; '.join(filter(None, kinds))})" if any(kinds) else ""
    title = f"The paper's benchmarks (its Table 3) in %{told}{some}"
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
    error = "" if brief else _error(score)
    return form.format(score.value) + (f" ({error})" if error else "")


def _error(score: Score | None) -> str:
    """A standard error, with a star where it is that of a difference and not paired; empty where it is not known."""
    if score is None or score.error is None:
        return ""
    return f"{score.error:.2f}" + ("*" if score.paired is False else "")


def benchmarks_sentence(folder: Folder) -> str:
    """Say that the paper's benchmarks were not run and which command runs them; empty where they were."""
    ran = {record.task for record in benchmarks_of([folder]) if is_of_paper(record)}
    if not folder.models or ran >= set(PAPER):
        return ""
    command = folder.info.get("command", "")
    try:
        program, *words = [word.partition("=")[0] for word in shlex.split(command)] or [""]
    except ValueError:  # of an older version, which left out the quotes
        program, *words = [""]
    others = {"--benchmarks", "--data-dir", "--shard"} & {*words}
    own = words[:1] == ["evaluate"] and program == "skipwise" and not others and "***" not in command  # and no merge
    told = f"{command if own else 'skipwise evaluate ...'} --benchmarks paper --data-dir"
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
    error = record.standard_error
    return f"{record.value:.4f}" + ("" if error is None else f" ({error:.4f})")

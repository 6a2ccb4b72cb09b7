"""The records of a reproduction -> Markdown: a file an exhibit, and one page of all with what holds at its head.

OUT/<exhibit>.md       tables, the paper's figures beside ours, verdicts
OUT/reproduction.md    all of them, hardware and hours, the verdicts in one table, the reader's own notes
OUT/figures/           SVG, PNG, and CSV of what is drawn
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction.costs import constant_costs, costs_markdown, known_costs
from reproduction.coverage_check import coverage_section
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.figures import cost_figures, exhibit_figures
from reproduction.runs import ArmRun
from reproduction.scores import collect, whole_and_partial
from reproduction.tables import exhibit_markdown, findings, table
from reproduction.verdicts import Finding
from skipwise.errors import RecipeError, RunError
from skipwise.results.records import read_records
from skipwise.results.run_folder import RunFolder

Findings = list[tuple[str, Finding]]


def write_pages(plans: Mapping[str, Sequence[ArmRun]], out: Path, notes: Path | None) -> Path:
    """Write a file an exhibit and the page of all, from what is measured; coverage is computed now.

    Args:
        plans: the runs by exhibit.
        out: where they were made.
        notes: Markdown with a section an exhibit (``## main``), put under the exhibit's head.

    Returns:
        The page.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be made ({error.strerror}); give another --out") from None
    remarks = read_notes(notes) if notes else {}
    sections, verdicts = [], []
    for name, runs in plans.items():
        text, found = _section(EXHIBITS[name], runs, out)
        if name in remarks:
            title, _, body = text.partition("\n\n")
            text = f"{title}\n\n{remarks[name]}\n\n{body}"
        (out / f"{name}.md").write_text(text, encoding="utf-8")
        sections.append(text)
        verdicts += [[name, where, *_told(finding)] for where, finding in found if finding.holds is not None]
    head = ["# The paper's tables, run here", *_made(plans, out), *([remarks[""]] if "" in remarks else [])]
    summary = table(["exhibit", "setting", "claim", "", "where it holds least"], verdicts, left=5)
    page = out / "reproduction.md"
    page.write_text("\n\n".join([*head, "## What holds", summary, *sections]), encoding="utf-8")
    return page


def read_notes(path: Path) -> dict[str, str]:
    """Sections of a Markdown file by exhibit; what stands before the first is the page's own, under the empty name.

    Raises:
        RecipeError: there is no such file, or a section is of no exhibit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"notes {path} cannot be read: {error}; give a Markdown file") from None
    sections: dict[str, list[str]] = {"": []}
    name, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")  # what a block of code holds is no heading
        if not fenced and line.startswith("## "):
            name = line[3:].strip()
            if name not in EXHIBITS:
                raise RecipeError(f"notes {path}: {name!r} is no exhibit; there are {', '.join(EXHIBITS)}")
        sections.setdefault(name, []).append(line)
    notes = {name: "\n".join(lines[bool(name) :]).strip() for name, lines in sections.items()}
    return {name: text for name, text in notes.items() if name or text}


def _section(exhibit: Exhibit, runs: Sequence[ArmRun], out: Path) -> tuple[str, Findings]:
    """One exhibit's tables and figures, and its findings."""
    whole, partial = whole_and_partial(runs, out)
    runs = _alike(whole)
    scores, folder = collect(runs, out), out / "figures"
    figures = exhibit_figures(exhibit, runs, scores, folder)
    paths = {label: [f"figures/{name}.svg" for name in names] for label, names in figures.items()}
    text, found = exhibit_markdown(exhibit, runs, scores, paths, partial), findings(exhibit, runs, scores)
    if (
        "costs" in exhibit.show
        and whole
        and (records := known_costs(whole[0].recipe, whole[0].original, out))
    ):
        drawn = "\n".join(f"![{name}](figures/{name}.svg)" for name in cost_figures(records, folder))
        text += f"\n### Cost by target\n\n{costs_markdown(records)}\n\n{drawn}\n"
        found += [("2x to 64x", finding) for finding in constant_costs(records)]
    if "coverage" in exhibit.show:
        more, checked = coverage_section(folder)
        text, found = f"{text}\n{more}", found + checked
    return text, found


def _alike(there: Sequence[ArmRun]) -> list[ArmRun]:
    """Of each block the seeds that all its trained rows have: like stands beside like."""
    seeds: dict[str, dict[str, set[int]]] = {}
    for run in there:
        if run.trained:
            seeds.setdefault(run.setting, {}).setdefault(run.variant, set()).add(run.recipe.seed)
    shared = {setting: set.intersection(*rows.values()) for setting, rows in seeds.items()}
    return [
        run
        for run in there
        if not run.trained or not shared[run.setting] or run.recipe.seed in shared[run.setting]
    ]


def _told(finding: Finding) -> list[str]:
    return [finding.rule, "holds" if finding.holds else "**does not hold**", finding.worst]


def _made(plans: Mapping[str, Sequence[ArmRun]], out: Path) -> list[str]:
    """By what the records were made: machines, versions, seeds, hours, texts."""
    runs = {run.folder(out): run for each in plans.values() for run in each}
    folders = {path: run for path, run in runs.items() if (path / "results.jsonl").exists()}
    if not folders:
        return []
    facts = [_facts(path) for path in folders]
    machines = _each(f.machine for f in facts if f.machine)
    versions = _each(f.versions for f in facts if f.versions)
    seeds = _each(str(run.recipe.seed) for run in folders.values() if run.trained)
    training = sum(f.seconds for f in facts)
    measuring = sum(
        getattr(r, "seconds", 0.0) for path in folders for r in read_records(path / "results.jsonl")
    )
    speeds = [f.tokens_per_second for f in facts if f.tokens_per_second]
    told = f"Machine: {machines}. Versions: {versions}. Seeds: {seeds}."
    hours = (
        f"{len(speeds)} models trained in {training / 3600:.1f} hours (median {statistics.median(speeds):,.0f} tokens a "
        f"second), {len(folders)} measured in {measuring / 3600:.1f} hours."
        if speeds
        else ""
    )
    return [f"{told} {hours}".strip()]


@dataclass(frozen=True)
class _Facts:
    """Of a run's ``run.json``; empty what it does not say."""

    machine: str = ""
    versions: str = ""
    seconds: float = 0.0
    tokens_per_second: float = 0.0


def _facts(path: Path) -> _Facts:
    facts = RunFolder(path).read()
    packages = ("python", "torch", "transformers", "skipwise")
    try:
        machine, versions, training = (facts.get(key) for key in ("machine", "versions", "training"))
        return _Facts(
            f"{machine['cores']} cores of {machine['processor']}" if machine else "",
            ", ".join(f"{name} {versions[name]}" for name in packages if name in versions)
            if versions
            else "",
            float(training["seconds"]) if training else 0.0,
            float(training["tokens_per_second"]) if training else 0.0,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{path / 'run.json'} is damaged ({error!r}); remove {path}, and the arm is made again"
        ) from None


def _each(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))

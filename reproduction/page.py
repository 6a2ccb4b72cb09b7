"""The scores of a reproduction -> pages in Markdown: one that sums up, and one for each exhibit.

PAGES/<exhibit>.md   tables, the paper's figures beside ours, verdicts
PAGES/figures/       SVG, and CSV of what is drawn
INDEX                the main result, which claims hold, what it cost, links to the exhibits
"""

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction import paper
from reproduction.costs import constant_costs, costs_markdown, known_costs
from reproduction.coverage_check import coverage_section
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.figures import cost_figures, exhibit_figures
from reproduction.measured import PROMPTS, SLIDING
from reproduction.runs import ArmRun
from reproduction.scores import Scores, collect
from reproduction.tables import exhibit_markdown, findings, format_reported
from reproduction.verdicts import Finding
from skipwise.errors import RecipeError, RunError
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.numbers import format_number, format_share
from skipwise.report.tables import markdown_table
from skipwise.results.records import Measured, read_records
from skipwise.results.run_folder import RunFolder

Findings = list[tuple[str, Finding]]
Table = dict[str, dict[str, Scores]]

# Sections that notes may have besides the exhibits'; the text before the first section begins the page.
SECTIONS = ("findings", "differences", "cost", "again")
# The blocks of the main result; of two with one label the later is shown if it is there.
_SHOWN = (
    ("main", "linear, 8x", paper.LINEAR_16K),
    ("passkey", "linear, 8x", paper.LINEAR_16K),
    ("passkey", "yarn, 8x", paper.YARN_16K),
)


@dataclass(frozen=True)
class Pages:
    """Where pages are written: a folder for the exhibits' and their figures, and the page that sums up."""

    folder: Path
    index: Path

    def link(self, name: str) -> str:
        """The path from the index to a page."""
        return Path(os.path.relpath(self.folder / name, self.index.parent)).as_posix()


def write_pages(plans: Mapping[str, Sequence[ArmRun]], out: Path, pages: Pages, notes: Mapping[str, str]) -> Path:
    """Write the pages of what is measured; coverage is computed now.

    Args:
        plans: the runs by exhibit.
        out: the folder that holds their records.
        pages: where to write.
        notes: as of ``read_notes``; an exhibit's section stands below its title.

    Returns:
        The index.
    """
    try:
        pages.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{pages.folder} cannot be made ({error.strerror}); give another --out") from None
    found, tables = dict[str, Findings](), dict[str, Table]()
    for name, runs in plans.items():
        text, found[name], tables[name] = _section(EXHIBITS[name], runs, out, pages.folder)
        if name in notes:
            title, _, body = text.partition("\n\n")
            text = f"{title}\n\n{notes[name]}\n\n{body}"
        (pages.folder / f"{name}.md").write_text(text, encoding="utf-8")
    parts = ["# The paper's tables, run here", notes.get("", ""), *_results(tables, plans)]
    parts += ["## What holds and what does not", notes.get("findings", ""), *_claims(found, pages)]
    parts += ["## Pages", _exhibits(found, pages)]
    if made := _made(plans, out) or notes.get("cost", ""):
        parts += ["## What it cost", made, notes.get("cost", "")]
    for name, title in (("differences", "Differences from the paper"), ("again", "Run it again")):
        parts += [f"## {title}", notes[name]] if name in notes else []
    pages.index.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return pages.index


def read_notes(path: Path) -> dict[str, str]:
    """Read the sections of a Markdown file by name; the text before the first one has the empty name.

    Raises:
        RecipeError: there is no such file, or a section is of no exhibit and not one of ``SECTIONS``.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"notes {path} cannot be read: {error}; give a Markdown file") from None
    sections: dict[str, list[str]] = {"": []}
    name, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")  # a block of code holds no headings
        if not fenced and line.startswith("## "):
            name = line[3:].strip()
            if name not in (*EXHIBITS, *SECTIONS):
                known = ", ".join((*EXHIBITS, *SECTIONS))
                raise RecipeError(f"notes {path}: {name!r} is no section; there are {known}")
        sections.setdefault(name, []).append(line)
    notes = {name: "\n".join(lines[bool(name) :]).strip("\n") for name, lines in sections.items()}
    return {name: text for name, text in notes.items() if name or text}


def _section(exhibit: Exhibit, runs: Sequence[ArmRun], out: Path, folder: Path) -> tuple[str, Findings, Table]:
    """One exhibit's page, its findings and its scores; figures are drawn."""
    scores, partial = collect(runs, out)
    figures = {
        label: [f"![{title}: {label}](figures/{name}.svg)" for name, title in drawn.items()]
        for label, drawn in exhibit_figures(exhibit, runs, scores, folder / "figures").items()
    }
    text, found = exhibit_markdown(exhibit, runs, scores, figures, partial), findings(exhibit, runs, scores)
    if "costs" in exhibit.show and runs and (records := known_costs(runs[0].recipe, runs[0].original, out)):
        drawn = "\n".join(f"![{name}](figures/{name}.svg)" for name in cost_figures(records, folder / "figures"))
        text += f"\n## Cost by target\n\n{costs_markdown(records)}\n\n{drawn}\n"
        found += [("2x to 64x", finding) for finding in constant_costs(records)]
    if "coverage" in exhibit.show:
        more, checked = coverage_section(folder / "figures")
        text, found = f"{text}\n{more}", found + checked
    return text, found, scores


def _results(tables: Mapping[str, Table], plans: Mapping[str, Sequence[ArmRun]]) -> list[str]:
    """The main result: perplexity at the original length and at the target, and passkeys at the target."""
    blocks = {label: tables[name][label] for name, label, _ in _SHOWN if label in tables.get(name, {})}
    texts = [text for rows in blocks.values() for row in rows.values() for text, _ in row.nll]
    if not texts:
        return []
    run = next(run for name, label, _ in _SHOWN for run in plans.get(name, ()) if run.setting == label)
    text = next((text for text in texts if Path(text).name == "reports"), texts[0])
    ends = run.original, run.target
    published = {label: theirs[paper.GOVREPORT] for _, label, theirs in _SHOWN}
    lines = []
    for label, rows in blocks.items():
        for variant, row in rows.items():
            scores = [row.perplexity(text, window) for window in ends]
            hits = format_share(row.share_found(ends[1])) if ends[1] in row.passkeys else "not measured"
            seeds = " / ".join(str(len(row.seeds.get(kind, ()))) for kind in (SLIDING, PROMPTS))
            theirs = published[label].get(variant, ())
            lines.append(
                [
                    label,
                    arm_name(variant),
                    *(format_number(score[0]) if score else "not measured" for score in scores),
                    hits,
                    seeds,
                    *(format_reported(theirs, place) for place in (0, 3)),
                ]
            )
    near, far = map(format_length, ends)
    head = ["setting", "arm", f"perplexity at {near}", f"at {far}", f"passkeys at {far}", "seeds", "paper, 2k", "16k"]
    told = (
        f"Perplexity is of {text}, in sliding windows of {near} and {far} tokens. Passkeys are found in prompts of {far} "
        "tokens, 50 for each seed. The number of seeds is given for perplexity / passkeys. The paper's columns are its "
        "perplexity on GovReport at its own window and target."
    )
    return ["## The main result", told, markdown_table(head, lines, left=2)]


def _claims(found: Mapping[str, Findings], pages: Pages) -> list[str]:
    """One row for each of the paper's claims, with the settings in which it holds and in which it does not."""
    rules: dict[str, list[tuple[str, str, bool | None]]] = {}
    for name, each in found.items():
        if name not in ("coverage", "gap", "better"):  # of our own
            for where, finding in each:
                rules.setdefault(finding.rule, []).append((name, where, finding.holds))
    lines = []
    for rule, judged in rules.items():
        columns = [dict.fromkeys(w for _, w, holds in judged if holds is value) for value in (True, False)]
        links = dict.fromkeys(f"[{name}]({pages.link(f'{name}.md')})" for name, _, holds in judged if holds is not None)
        if links:
            lines.append([rule, *("; ".join(settings) or "–" for settings in columns), ", ".join(links)])
    return [markdown_table(["claim", "holds in", "does not hold in", "figures"], lines, left=4)] if lines else []


def _exhibits(found: Mapping[str, Findings], pages: Pages) -> str:
    """The exhibits with links, and how many of their claims hold."""
    lines = []
    for name, each in found.items():
        judged = [finding.holds for _, finding in each if finding.holds is not None]
        exhibit = EXHIBITS[name]
        told = f"{sum(judged)} of {len(judged)}" if judged else "–"
        lines.append([f"[{name}]({pages.link(f'{name}.md')})", exhibit.title, exhibit.source, told])
    return markdown_table(
        ["page", "what it compares", "in the paper", "claims that hold, settings counted"], lines, left=3
    )


def _made(plans: Mapping[str, Sequence[ArmRun]], out: Path) -> str:
    """What made the records: machines, versions, seeds, hours."""
    runs = {run.folder(out): run for each in plans.values() for run in each}
    folders = {path: run for path, run in runs.items() if (path / "results.jsonl").exists()}
    if not folders:
        return ""
    facts = [_facts(path) for path in folders]
    machines = _each(f.machine for f in facts if f.machine)
    versions = _each(f.versions for f in facts if f.versions)
    seeds = _each(str(run.recipe.seed) for run in folders.values() if run.trained)
    training = sum(f.seconds for f in facts)
    measuring = sum(
        getattr(record, "seconds", 0.0)
        for path in folders
        for record in read_records(path / "results.jsonl")
        if isinstance(record, Measured)
    )
    speeds = [f.tokens_per_second for f in facts if f.tokens_per_second]
    told = f"Machine: {machines}. Versions: {versions}. Seeds: {seeds}."
    if not speeds:
        return told
    return (
        f"{told} {len(speeds)} models trained in {training / 3600:.1f} hours (median {statistics.median(speeds):,.0f} tokens a "
        f"second), {len(folders)} measured in {measuring / 3600:.1f} hours."
    )


@dataclass(frozen=True)
class _Facts:
    """What a run's ``run.json`` says; empty what it does not say."""

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
            ", ".join(f"{name} {versions[name]}" for name in packages if name in versions) if versions else "",
            float(training["seconds"]) if training else 0.0,
            float(training["tokens_per_second"]) if training else 0.0,
        )
    except KeyError as error:
        raise RunError(
            f"{path / 'run.json'} is damaged ({error!r}); remove {path}, and the arm is made again"
        ) from None


def _each(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))

"""The scores of a reproduction -> pages in Markdown: a scoreboard, and a page for each exhibit.

PAGES/<exhibit>.md   verdicts, figures, tables with the paper's numbers next to ours
PAGES/figures/       SVG, and CSV of what is drawn
INDEX                each claim with its verdict, how the miniature differs from the paper, what made the records
"""

import os
from collections.abc import Sequence
from pathlib import Path

from reproduction.claims import Finding, judge
from reproduction.costs import constant_costs, costs_markdown, known_costs
from reproduction.coverage_check import coverage_section
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.runs import ArmRun, Plans
from reproduction.scores import collect
from reproduction.tables import block_markdown
from skipwise.report.page import markdown_table
from skipwise.results.records import Measured, read_records
from skipwise.results.run_folder import RunFolder

Findings = list[tuple[str, Finding]]  # with the block's label

_PACKAGES = ("python", "torch", "transformers", "skipwise")
_INTRODUCTION = """\
The PoSE paper's tables and figures in miniature, as far as they were run: the paper extends LLaMA-7B from 2,048 tokens, we the embedded model
(4.3 million parameters, window 256) by the same factors and with the same method, `method: paper`. An absolute perplexity
cannot be compared with the paper's; the order of the rows can. Each claim was written down as a rule before the runs. The
control `no_skip` is the same training without skips: 256 tokens from anywhere in a document at positions 0 to 255, where
PoSE's first chunk is a document's beginning."""

_DIFFERENCES = """\
- A run has 400 steps of 16 windows at a learning rate of 8e-4 (paper: 1,000 steps of 64 at 2e-5).
- The training text is Python's standard library less a tenth, which is measured on, with the library's documentation (paper: The
  Pile; GovReport and Proof-pile). Up to 8 documents of a text are read (paper: 50; in `extreme` 20, as here).
- Documents have at least as many tokens as the window, as in the paper. Full-length training has longer windows and reads
  only documents that fill one.
- The other families are small models pretrained here on 8 million tokens each.
- `original-ability` measures loss and next-token accuracy inside the original window. The six benchmarks of Table 3 were not run:
  `skipwise evaluate MODEL --benchmarks paper` runs them on a model of your own.
- `v = 0` and `v = u` of `content` begin anywhere in a document; in the paper, at its first token.
- The paper's text describes YaRN; the authors' program has another form of it for LLaMA, here `yarn-revised`. Both are run."""

_AGAIN = """\
    make reproduce                                       # lists the exhibits, and how long each takes here
    make reproduce ARGS="passkey --arm pose --arm full_length"  # two rows of one exhibit
    make reproduce ARGS="main --scale paper --dry-run"   # the paper's models and lengths: the runs and their tokens
    make reproduce ARGS="all --page-only"                # these pages again, from the published records

A row is a run folder under `--out` (default: `runs/reproduction/arms`), named after what decides its weights, so exhibits
share rows and a stopped command continues. With `--publish`, and the same `--text` and `--set`, its records become those of
these pages."""

_PAPER = """\
    @inproceedings{zhu2024pose,
      title = {PoSE: Efficient Context Window Extension of LLMs via Positional Skip-wise Training},
      author = {Zhu, Dawei and Yang, Nan and Wang, Liang and Song, Yifan and Wu, Wenhao and Wei, Furu and Li, Sujian},
      booktitle = {The Twelfth International Conference on Learning Representations (ICLR)},
      year = {2024}, note = {arXiv:2309.10400}
    }"""


def write_pages(plans: Plans, out: Path, folder: Path, index: Path) -> None:
    """Write the pages of the records under ``out``: exhibits into ``folder``, and the ``index``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, missing = [], []
    for name, runs in plans.items():
        text, findings = exhibit_page(EXHIBITS[name], runs, out, folder / "figures")
        page = folder / f"{name}.md"
        link = f"[{name}]({Path(os.path.relpath(page, index.parent)).as_posix()})" if text else name
        if text:
            page.write_text(text, encoding="utf-8")
        else:
            page.unlink(missing_ok=True)
        lines += [
            [link, "our control" if "no skips" in line[0] else EXHIBITS[name].source, *line]
            for line in _scores(findings)
        ]
        missing += [link] * (not findings)
    parts = ["# The paper's tables, run here", _INTRODUCTION, "## Scoreboard"]
    parts += [markdown_table(["exhibit", "in the paper", "claim", "verdict"], lines, left=4)] if lines else []
    parts += [f"Not run, or too little for a verdict: {', '.join(missing)}."] if missing else []
    parts += ["## How the miniature differs from the paper", _DIFFERENCES]
    if made := _made(plans, out):
        parts += ["## What made the records", made]
    parts += ["## Run it again", _AGAIN, "## The paper", _PAPER]
    index.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def exhibit_page(exhibit: Exhibit, runs: Sequence[ArmRun], out: Path, figures: Path) -> tuple[str, Findings]:
    """Return an exhibit's page, empty if nothing was run, and its findings; figures are drawn."""
    scores, partial = collect(runs, out)
    parts = [f"# {exhibit.name}: {exhibit.title[0].lower()}{exhibit.title[1:]}", f"The paper's {exhibit.source}."]
    findings: Findings = []
    if exhibit.show == "coverage":
        text, judged = coverage_section(figures)
        findings += [("", finding) for finding in judged]
        parts.append(text)
    if exhibit.show == "costs":
        records = known_costs(runs[0].recipe, runs[0].original, out)
        judged = constant_costs(records)
        findings += [("2x to 64x", finding) for finding in judged]
        parts += ["## Cost by target", "\n".join(map(str, judged)), costs_markdown(records)] if records else []
    missing = []
    for block in exhibit.blocks:
        planned, rows = [run for run in runs if run.block == block.label], scores.get(block.label, {})
        if not any(row.measured for row in rows.values()):
            missing.append(block.label)
            continue
        claims = [judge(claim, rows, planned[0].original, planned[0].target) for claim in exhibit.claims_in(block)]
        judged = [finding for finding in claims if finding]
        findings += [(block.label, finding) for finding in judged]
        parts += [f"## {block.label}", "\n".join(map(str, judged))]
        parts += block_markdown(exhibit, block, planned, rows, partial.get(block.label, []), figures)
    if not any(parts[2:]):
        return "", []
    parts += [f"Not run: {'; '.join(missing)}."] if missing else []
    return "\n\n".join(part for part in parts if part) + "\n", findings


def _scores(findings: Findings) -> list[list[str]]:
    """Each claim once, with its verdict, or with the blocks of each verdict where they differ."""
    rules: dict[str, dict[str, list[str]]] = {}
    for block, finding in findings:
        rules.setdefault(finding.rule, {}).setdefault(finding.verdict, []).append(block)
    return [
        [
            rule,
            next(iter(by)) if len(by) == 1 else "; ".join(f"{verdict}: {' and '.join(b)}" for verdict, b in by.items()),
        ]
        for rule, by in rules.items()
    ]


def _made(plans: Plans, out: Path) -> str:
    """What made the records: machines, versions, hours."""
    runs = [RunFolder(path) for path in sorted({run.folder(out) for runs in plans.values() for run in runs})]
    runs = [run for run in runs if run.results.exists()]
    facts = [run.read() for run in runs]
    machines = {f"{m['cores']} cores of {m['processor']}" for fact in facts if (m := fact.get("machine"))}
    versions = {", ".join(f"{k} {v[k]}" for k in _PACKAGES if k in v) for fact in facts if (v := fact.get("versions"))}
    training = [fact["training"]["seconds"] for fact in facts if fact.get("training")]
    records = [record for run in runs for record in read_records(run.results) if isinstance(record, Measured)]
    measuring = sum(getattr(record, "seconds", 0.0) for record in records)
    return (
        f"Machine: {'; '.join(sorted(machines))}. Versions: {'; '.join(sorted(versions))}. {len(training)} models trained in "
        f"{sum(training) / 3600:.1f} hours, {len(runs)} measured in {measuring / 3600:.1f} hours."
    ) * bool(runs)

"""Figures: their data, their drawing, and their files."""

import csv
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from skipwise.method.coverage import coverage
from skipwise.report import figures
from skipwise.report.canvas import Plot
from skipwise.report.figures import draw_figures
from skipwise.report.numbers import ReportData
from skipwise.report.rows import Folder
from skipwise.results.records import CoverageRecord, RulerRecord, TrainingRecord
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, WINDOWS, readings, trials

CURVE = CoverageRecord.of(coverage(256, 1024), "2 chunks")
LOG = [TrainingRecord("pose", s, 3 - s / 100, 1e-4, 1.0, s * 512, 1e4) for s in range(1, 40)]
DURING = [replace(r, step=step) for step in (10, 20) for r in readings("pose", 2048, 9.0)]
RUN = Folder("run", [*ORIGINAL, *PI_ONLY, *POSE, *LOG, *DURING, CURVE], INFO)


def run(*records, name: str = "run") -> Folder:
    return Folder(name, list(records), INFO)


def plots_of(*folders: Folder) -> dict[str, Plot]:
    return {plot.name: plot for figure in figures.FIGURES for plot in figure(ReportData(folders))}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, draw_figures(ReportData([RUN]), folder)


def test_every_figure_is_written_as_svg_png_and_csv(drawn):
    folder, made = drawn
    names = [plot.name for plot, _ in made]
    assert {"perplexity", "passkey", "passkey-depth", "loss", "steps", "coverage"} <= set(names)
    assert {p.name for p in folder.iterdir()} == {f"{n}.{kind}" for n in names for kind in ("csv", "png", "svg")}
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")
    with open(folder / "passkey.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["model"], last["length"], last["trials"], last["hits"]) == ("PoSE", "2048", "100", "98")
    with open(folder / "perplexity.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["model"], last["window"], last["documents"]) == ("PoSE", "2048", "6")
    assert float(last["low_95"]) < float(last["perplexity"]) < float(last["high_95"])


def test_labels_have_the_name_of_the_run_and_stay_text(tmp_path):
    name = "_$x^$<script>&"
    made = draw_figures(ReportData([run(*LOG[:5], name=name), run(*LOG[:5], name="other")]), tmp_path)
    [svg] = [svg for _, svg in made]
    names = list(plots_of(run(*trials("pose", 256, 5, 10, task="../../evil"))))
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)
    assert "<script" not in svg
    assert "_$x^$&lt;script&gt;&amp; · PoSE" in svg
    assert "other · PoSE" in svg


def test_a_repeated_step_and_equal_coverage_of_two_runs_count_once():
    logs = [TrainingRecord("pose", s, loss, 1e-4, 1.0, s * 8, 1.0) for s, loss in [(1, 3), (2, 9), (2, 2)]]
    plots = plots_of(run(*logs, CURVE, name="a"), run(CURVE, name="b"))
    assert [row[1:4] for row in plots["loss"].data] == [[1, 8, 3], [2, 16, 2]]
    assert plots["coverage"].data == plots_of(run(CURVE))["coverage"].data


def test_ruler_has_averages_and_a_heat_map_of_tasks(tmp_path):
    tasks = ("vt", "niah_multikey_1:keys=8,values=2")
    folder = run(*(RulerRecord("m", task, n, 0, 0, True, "float32", "d", score=0.5) for task in tasks for n in WINDOWS))
    assert "ruler-tasks" in [plot.name for plot, _ in draw_figures(ReportData([folder]), tmp_path)]
    plots = plots_of(folder)
    assert [row[1] for row in plots["ruler"].data] == list(WINDOWS)
    assert {row[4] for row in plots["ruler-tasks"].data} == {0.5}

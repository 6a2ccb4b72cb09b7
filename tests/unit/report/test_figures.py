"""Figures: their data, their drawing, and their files."""

import csv
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from skipwise.method.coverage import coverage
from skipwise.method.positions import ChunkRules
from skipwise.report import figures
from skipwise.report.canvas import ARM_LOOKS, Plot, looks_of, named, powers_of_two, write
from skipwise.report.figures import FIGURES, coverage_figure, curve_plot, draw_figures
from skipwise.report.folder import Folder, read_folder
from skipwise.report.numbers import ReportData
from skipwise.results.records import CoverageRecord, RulerRecord, TrainingRecord
from skipwise.results.statistics import Interval
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, WINDOWS, evaluation_folder, readings, trials

CURVE = CoverageRecord.of(coverage(256, 1024), "2 chunks")
LOG = [TrainingRecord("pose", s, 3 - s / 100, 1e-4, 1.0, s * 512, 1e4) for s in range(1, 40)]
DURING = [replace(r, step=step) for step in (10, 20) for r in readings("pose", 2048, 9.0)]
RUN = Folder("run", [*ORIGINAL, *PI_ONLY, *POSE, *LOG, *DURING, CURVE], INFO)
WITHOUT_UNIT = {"perplexity", "probability", "tokens read", "tokens trained on", "optimizer step", "task"}


def run(*records, name: str = "run") -> Folder:
    return Folder(name, list(records), INFO)


def plots_of(*folders: Folder) -> dict[str, Plot]:
    return {plot.name: plot for figure in figures.FIGURES for plot in figure(ReportData(folders))}


def axes_of(plot: Plot) -> Axes:
    axes = Canvas().add_subplot()
    plot.draw(axes, "#000000")
    return axes


def exact(curve: dict[int, float]) -> dict[int, Interval]:
    return {x: Interval(value, -math.inf, math.inf) for x, value in curve.items()}


def dashed_levels(axes: Axes) -> dict[str, float]:
    """Height by colour of the lines over the whole width."""
    return {line.get_color(): line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, draw_figures(ReportData([RUN]), folder)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """A model, and its base in its own window, where it finds 80% of the passkeys."""
    levels = [9, 8, 7, 6, 5, 4.0]
    own = [r for w in WINDOWS for r in (*readings("m", w, levels), *trials("m", w, 78))]
    own += [RulerRecord("m", "vt", w, 0, 0, True, "float32", "d", score=0.5) for w in WINDOWS]
    own += [RulerRecord("m", "niah_multikey_1:keys=8,values=2", 256, 0, 0, False, "float32", "d", score=0.5)]
    base = [*readings("base", 256, 8.5), *trials("base", 256, 80)]
    return read_folder(evaluation_folder(tmp_path_factory.mktemp("e") / "e", [*own, *base]))


def test_every_figure_is_written_as_svg_png_and_csv(drawn):
    folder, made = drawn
    names = [figure.name for figure in made]
    assert {"perplexity", "passkey", "passkey-depth", "loss", "steps", "coverage"} <= set(names)
    assert {p.name for p in folder.iterdir()} == {f"{n}.{kind}" for n in names for kind in ("csv", "png", "svg")}
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")
    assert all(figure.title and figure.caption for figure in made)


def test_svg_has_the_pages_colour_and_font_and_its_own_ids(drawn):
    ids = []
    for figure in drawn[1]:
        assert "currentColor" in figure.svg
        assert not re.search("DejaVu|#010203|#040506|<style>svg{", figure.svg)
        assert 'role="img" aria-label=' in figure.svg
        ids += [element.get("id") for element in ElementTree.fromstring(figure.svg).iter() if element.get("id")]
    assert len(ids) == len(set(ids)) > 0
    svg = drawn[1][0].svg.replace("\u200b", "")
    assert all(f">{text}<" in svg for text in ("256", "512", "1k", "original length 256", "PoSE"))


def test_csv_has_the_figures_numbers(drawn):
    with open(drawn[0] / "passkey.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["model"], last["length"], last["trials"], last["hits"]) == ("PoSE", "2048", "100", "98")
    with open(drawn[0] / "perplexity.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["model"], last["window"], last["documents"]) == ("PoSE", "2048", "6")
    assert float(last["low_95"]) < float(last["perplexity"]) < float(last["high_95"])


def test_both_axes_of_every_figure_have_names_and_units(evaluation):
    for figure in FIGURES:
        plots = [plot for folder in (RUN, evaluation) for plot in figure(ReportData([folder]))]
        assert plots
        for axes in map(axes_of, plots):
            for label in (axes.get_xlabel(), axes.get_ylabel()):
                assert label in WITHOUT_UNIT or re.fullmatch(r".+ \(.+\)", label), axes.get_title()


def test_the_smallest_text_is_ten_pixels_high_on_a_phone(tmp_path, evaluation):
    for plot in [*plots_of(RUN).values(), *plots_of(evaluation).values()]:
        svg = write(plot, tmp_path, png=False).svg
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
        assert min(sizes) * 340 / width >= 10


def test_figures_without_records_are_not_drawn(tmp_path):
    assert draw_figures(ReportData([run()]), tmp_path / "new") == []
    assert plots_of(run(TrainingRecord("pose", 1, 3.0, 1e-4, None, 0, 0.0))) == {}


def test_the_scale_is_logarithmic_only_if_a_model_fails():
    calm = [*readings("original", 256, 15), *readings("original", 512, 40)]
    assert axes_of(plots_of(run(*calm))["perplexity"]).get_yscale() == "linear"
    assert axes_of(plots_of(run(*calm, *readings("pose", 256, 10)))["perplexity"]).get_yscale() == "log"
    broken = [replace(r, nll=[1e6] * 6) for r in readings("original", 512, 1.0)]
    plot = plots_of(run(*readings("original", 256, 15), *broken))["perplexity"]
    assert plot.data[1][3] == math.inf  # in the data only
    assert list(axes_of(plot).lines[0].get_xdata()) == [256]


def test_labels_have_the_name_of_the_run_and_stay_text(tmp_path):
    name = "_$x^$<script>&"
    made = draw_figures(ReportData([run(*LOG[:5], name=name), run(*LOG[:5], name="other")]), tmp_path)
    [svg] = [figure.svg for figure in made]
    assert "<script" not in svg
    assert "_$x^$&lt;script&gt;&amp; · PoSE" in svg
    assert "other · PoSE" in svg


def test_a_task_with_a_path_in_its_name_writes_into_no_other_folder():
    names = ["../../evil", "/evil", "a/b", "..", "loss", "a\\0b"]
    found = plots_of(run(*(t for task in names for t in trials("pose", 256, 5, 10, task=task)), *LOG))
    assert all(re.fullmatch(r"[\w-]+", name) for name in found)
    assert len(found) == 2 * len(names) + 1


@pytest.mark.parametrize(("prompts", "parts"), [(50, 5), (100, 10)])
def test_a_heat_map_has_ten_parts_with_enough_prompts(prompts, parts):
    plot = plots_of(run(*trials("pose", 256, 20, prompts), *trials("pose", 512, prompts, prompts)))["passkey-depth"]
    assert len(plot.data) == 2 * parts
    assert sum(row[4] for row in plot.data) == 2 * prompts
    assert [row[5] for row in plot.data if row[1] == 512] == [prompts // parts] * parts
    depths = [
        replace(t, depth=depth) for t, depth in zip(trials("pose", 256, 4, 4), (0.0, 0.19, 0.2, 1.0), strict=True)
    ]
    plot = plots_of(run(*depths))["passkey-depth"]
    assert [row[4] for row in plot.data] == [2, 1, 0, 0, 1]
    assert len(axes_of(plot).patches) == 3  # parts without prompts have no colour


def test_an_evaluation_has_figures_by_position(tmp_path):
    levels = {"m": [9, 8, 7, 6, 5, 4.0], "base": [8, 7, 6, 8, 9, 9.0]}
    records = [
        *readings("m", 2048, levels["m"]), *readings("m", 256, [9, 8, 7, 8, 8, 8.0]), *readings("base", 256, levels["base"])
    ]  # fmt: skip
    found = plots_of(read_folder(evaluation_folder(tmp_path / "e", records)))
    assert list(found) == ["perplexity", "gain", "excess", "first-tokens"]
    gain = {row[1]: row[2:] for row in found["gain"].data}
    assert list(gain) == [512, 1024, 2048]
    assert gain[2048] == pytest.approx([np.log(2)] * 3, abs=1e-6)  # equal for all documents
    excess = {row[1]: row[2] for row in found["excess"].data}
    assert excess[2048] == pytest.approx(np.log(4 / 9))
    first = {(row[0], row[1]): row[2] for row in found["first-tokens"].data}
    assert first["m", 64] == pytest.approx(9)
    assert [n for label, n in first if label == "base"] == [64, 128, 256]


def test_the_base_of_an_evaluation_has_dashed_lines(evaluation):
    plots, grey = plots_of(evaluation), ARM_LOOKS["original"].colour
    assert dashed_levels(axes_of(plots["perplexity"]))[grey] == pytest.approx(8.5, abs=0.01)
    assert dashed_levels(axes_of(plots["passkey"]))[grey] == pytest.approx(80)
    assert dashed_levels(axes_of(plots["excess"]))[grey] == 0
    assert axes_of(plots["excess"]).get_legend_handles_labels()[1] == ["m", "base"]
    assert dashed_levels(axes_of(plots["ruler"])) == {"#000000": pytest.approx(85.6)}
    for name in ("perplexity", "passkey"):  # the original of a run is measured at every length
        assert not dashed_levels(axes_of(plots_of(RUN)[name]))


def test_ruler_has_averages_and_a_heat_map_of_tasks(evaluation):
    plots = plots_of(evaluation)
    assert [row[:4] for row in plots["ruler"].data] == [["m", w, 1, 0.5] for w in WINDOWS]
    cells = {(row[1], row[2]): row[4] for row in plots["ruler-tasks"].data}
    assert len(cells) == 5


def test_a_repeated_training_step_counts_once():
    logs = [TrainingRecord("pose", s, loss, 1e-4, 1.0, s * 8, 1.0) for s, loss in [(1, 3), (2, 9), (2, 2)]]
    assert [row[:4] for row in plots_of(run(*logs))["loss"].data] == [["PoSE", 1, 8, 3], ["PoSE", 2, 16, 2]]


def test_equal_coverage_of_several_runs_is_drawn_once():
    other = CoverageRecord.of(coverage(256, 1024, ChunkRules(skips="end_anchored")), "2 chunks")
    data = plots_of(run(CURVE))["coverage"].data
    assert plots_of(run(CURVE, name="a"), run(CURVE, name="b"))["coverage"].data == data
    labels = [row[0] for row in plots_of(run(CURVE, name="a"), run(CURVE, other, name="b"))["coverage"].data]
    assert list(dict.fromkeys(labels)) == ["a · 2 chunks", "b · 2 chunks"]


def test_a_coverage_figure_has_the_format_of_its_ending(tmp_path):
    coverage_figure([CURVE], tmp_path / "a" / "c.svg")
    coverage_figure([CURVE], tmp_path / "c.png")
    ElementTree.parse(tmp_path / "a" / "c.svg")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_no_two_lines_of_a_figure_look_alike():
    labels = ["full", "short", "pose", "pose, twice", "pose, 4 times", "short, twice", "linear", "yarn"]
    looks = looks_of(labels)
    assert len({(look.colour, look.marker) for look in looks}) == len(labels)
    assert looks[1].colour == ARM_LOOKS["short"].colour
    assert looks_of(["linear"])[0].colour == ARM_LOOKS["pose"].colour
    assert len(looks_of([str(i) for i in range(20)])) == 20
    assert len({str(look.dash) for look in looks_of(["pose"] * 4)}) == 4


# Pairs with similar colours under deuteranopia, protanopia and tritanopia (Machado, 2009).
ALIKE = ["pose randpos", "pose cream", "original cream", "full short", "full skipwise", "full cream", "short skipwise"]
ALIKE += ["pi-only short", "pi-only skipwise", "pi-only full"]


@pytest.mark.parametrize("pair", ALIKE)
def test_arms_with_similar_colours_differ_in_hatch_and_marker(pair):
    one, other = (ARM_LOOKS[arm] for arm in pair.split())
    assert one.hatch != other.hatch
    assert one.marker != other.marker


def test_curves_far_above_the_lowest_leave_the_figure_with_their_ends_in_the_legend():
    curves = {
        "original": exact({256: 10.5, 2048: 97.1}),
        "pose": exact({256: 11, 2048: 12}),
        "short": exact({256: 11, 2048: 20}),
        "broken": exact({256: math.inf, 2048: math.inf}),
    }
    near, whole = (
        axes_of(curve_plot("p", "Perplexity", ("window", "perplexity"), curves, near=near)) for near in (True, False)
    )
    low, high = near.get_ylim()
    assert 10 < low < 10.5
    assert 20 < high < 21
    assert near.get_legend_handles_labels()[1] == ["original (ends at 97.1)", "PoSE", "short", "broken"]
    assert whole.get_yscale() == "log"


def test_shares_have_an_axis_from_0_to_100():
    plot = curve_plot("p", "Found", ("prompt", "found (%)"), {"pose": exact({256: 0, 2048: 0})}, percent=True)
    low, high = axes_of(plot).get_ylim()
    assert low < 0 < 100 < high
    assert list(axes_of(plot).get_yticks()) == [0, 25, 50, 75, 100]


def test_axes_of_lengths_have_at_most_nine_ticks_at_powers_of_two():
    axis = ("window (tokens)", "perplexity")
    odd = axes_of(curve_plot("odd", "Odd", axis, {"m": exact({300: 1.0, 1000: 2.0, 3000: 3.0})}))
    assert [text.get_text() for text in odd.get_xticklabels()] == ["256", "512", "1k", "2k", "4k"]
    assert (
        len(axes_of(curve_plot("many", "Many", axis, {"m": exact({2**k: 1.0 for k in range(15)})})).get_xticks()) == 8
    )
    assert [powers_of_two(*ends) for ends in ((1, 4), (256, 256), (3, 5), (0, 1))] == [[1, 2, 4], [256], [2, 4, 8], [1]]


def test_long_titles_are_wrapped_and_long_labels_keep_both_ends(tmp_path):
    label = "a-model-with-quite-a-long-name-" * 3 + "seed1"
    curves = {name: exact({256: 1.0, 512: 2.0}) for name in (label, "other")}
    plot = curve_plot("long", f"Perplexity of {label}", ("tokens read", "perplexity"), curves)
    svg = write(plot, tmp_path, png=False).svg
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", svg) + re.findall(r"<tspan[^>]*>([^<]*)</tspan>", svg)
    assert max(map(len, lines)) <= 44
    assert named(label).startswith("a-model")
    assert named(label).endswith("seed1")

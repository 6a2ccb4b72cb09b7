"""Figures: what is drawn from which records, the files, and their bytes."""

import csv
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from skipwise.errors import RecipeError, RunError
from skipwise.method.coverage import coverage
from skipwise.method.positions import ChunkRules
from skipwise.report import figures
from skipwise.report.canvas import Plot
from skipwise.report.figures import coverage_figure, curve_plot, draw_figures
from skipwise.report.folder import Folder, read_folder
from skipwise.report.retrieval_figures import found_plots, hits_by_depth
from skipwise.report.shown import ARM_LOOKS, Shown, looks_of
from skipwise.results.records import CoverageRecord, TrainingRecord
from skipwise.results.statistics import Interval
from tests.measured import INFO, evaluation_folder, readings, trials

CURVE = CoverageRecord.of(coverage(256, 1024), "2 chunks")
LOG = [TrainingRecord("pose", s, 3 - s / 100, 1e-4, 1.0, s * 512, 1e4) for s in range(1, 40)]


def perplexities(arm: str, **values: float) -> list:
    return [r for window, p in values.items() for r in readings(arm, int(window[1:]), p, documents=2)]


def some_records() -> list:
    return [
        *LOG,
        *perplexities("original", w256=15.7, w512=79, w1024=109),
        *perplexities("pose", w256=15.3, w512=15.0, w1024=15.2),
        *(t for n, k in [(256, 10), (512, 0)] for t in trials("original", n, k, 10)),
        *(t for n, k in [(256, 10), (512, 9)] for t in trials("pose", n, k, 10)),
        CURVE,
    ]


def run(*records, name: str = "run") -> Folder:
    return Folder(name, list(records), INFO)


def plots_of(*folders: Folder) -> dict[str, object]:
    return {plot.name: plot for figure in figures.FIGURES for plot in figure(Shown(folders))}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, draw_figures(Shown([run(*some_records())]), folder)


def test_every_figure_is_written_as_svg_png_and_csv(drawn):
    folder, made = drawn
    names = [figure.name for figure in made]
    assert {"perplexity", "passkey", "passkey-depth", "loss", "coverage"} <= set(names)
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        f"{n}.{kind}" for n in names for kind in ("csv", "png", "svg")
    )
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")


def test_the_caption_counts_the_misses_that_hold_no_number():
    answers = ["12345", "12345", "the pass key", "54321", "No. 7", r"the key.\x0aThe"]
    asked = [replace(trial, answer=answer) for trial, answer in zip(trials("pose", 512, 2, 6), answers, strict=True)]
    other = [*trials("original", 512, 6, 6), *trials("short", 256, 0, 3)]
    [plot] = found_plots(Shown([Folder("run", [*asked, *other], INFO)]))
    assert "Misses there whose answer has no number: PoSE 2 of 4." in plot.caption
    [plot] = found_plots(Shown([Folder("run", trials("pose", 512, 6, 6), INFO)]))
    assert "Misses" not in plot.caption


def test_every_figure_has_a_title_and_a_caption_of_its_own(drawn):
    made = drawn[1]
    assert all(figure.title and figure.caption.endswith((".", ")")) for figure in made)
    captions = {figure.name: figure.caption for figure in made}
    assert len(set(captions.values())) == len(made)
    assert "original rises from 15.7 to 109" in captions["perplexity"]
    assert "PoSE stays level (15.3 and 15.2)" in captions["perplexity"]
    assert "At 512 tokens: original 0% and PoSE 90%." in captions["passkey"]
    assert "PoSE 39 steps, 19,968 tokens" in captions["loss"]
    assert "Training windows of 256 tokens" in captions["coverage"]


def test_svg_takes_the_pages_colour_and_has_no_fixed_ink_or_font(drawn):
    for figure in drawn[1]:
        assert "currentColor" in figure.svg
        assert "DejaVu" not in figure.svg
        assert "#010203" not in figure.svg
        assert "#040506" not in figure.svg
        assert "<style>svg{" not in figure.svg
        assert 'role="img" aria-label=' in figure.svg


def test_ids_of_two_figures_never_meet(drawn):
    ids = [
        element.get("id")
        for figure in drawn[1]
        for element in ElementTree.fromstring(figure.svg).iter()
        if element.get("id")
    ]
    assert ids
    assert len(ids) == len(set(ids))


def test_same_records_give_the_same_svg(drawn, tmp_path):
    some = [
        *perplexities("original", w256=15.7, w512=79, w1024=109),
        *perplexities("pose", w256=15.3, w512=15.0, w1024=15.2),
    ]
    again = draw_figures(Shown([run(*some)]), tmp_path)
    assert [figure.svg for figure in again] == [drawn[1][0].svg]


def test_text_is_text_and_lengths_are_written_short(drawn):
    svg = drawn[1][0].svg
    for text in ("256", "512", "1k", "original length 256", "PoSE"):
        assert f">{text}<" in svg.replace("\u200b", "")


def test_arms_have_their_colours_baselines_grey_and_orange(drawn):
    svg = drawn[1][0].svg
    assert "#848c96" in svg  # original
    assert "#2f7de1" in svg  # PoSE
    assert [look.colour for look in looks_of(["original", "pi-only", "pose"])] == ["#848c96", "#d9760f", "#2f7de1"]


def test_the_base_of_an_evaluation_is_grey_and_its_model_blue(tmp_path):
    records = [*readings("base", 256, 15.0), *readings("m", 256, 15.0), *readings("m", 512, 15.0)]
    shown = Shown([read_folder(evaluation_folder(tmp_path / "e", records))])
    assert (shown.looks["base"].colour, shown.looks["m"].colour) == ("#848c96", "#2f7de1")
    [plot] = figures.perplexity_plots(shown)
    assert "base has 15.0 at 256 tokens, its only window" in plot.caption


def test_perplexity_is_logarithmic_only_where_a_model_fails():
    calm = perplexities("original", w256=15, w512=40)
    assert plots_of(run(*calm))["perplexity"].title == "Perplexity by window"
    wild = [*calm, *perplexities("pose", w256=10)]
    assert plots_of(run(*wild))["perplexity"].title == "Perplexity by window (log scale)"


def test_csv_holds_the_figures_numbers(drawn):
    with open(drawn[0] / "passkey.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["model"], r["length"], r["trials"], r["hits"]) for r in rows][-1] == ("PoSE", "512", "10", "9")
    assert float(rows[0]["low_95"]) == pytest.approx(0.7225, abs=1e-3)
    with open(drawn[0] / "perplexity.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    assert (last["model"], last["window"], last["documents"], last["tokens_scored"]) == ("PoSE", "1024", "2", "4094")
    assert float(last["low_95"]) < float(last["perplexity"]) < float(last["high_95"])


def test_infinite_perplexity_is_left_out_of_the_drawing_and_kept_in_the_data(tmp_path):
    broken = [replace(r, nll=[1e6] * 6) for r in readings("original", 512, 1.0)]
    draw_figures(Shown([run(*readings("original", 256, 15), *broken)]), tmp_path)
    assert "inf" in (tmp_path / "perplexity.csv").read_text()


def test_figures_without_records_are_not_drawn(tmp_path):
    assert draw_figures(Shown([run()]), tmp_path / "new") == []
    assert draw_figures(Shown([run(TrainingRecord("pose", 1, 3.0, 1e-4, None, 0, 0.0))]), tmp_path) == []


def test_runs_are_told_apart_by_label_and_hostile_names_stay_text(tmp_path):
    name = "_$x^$<script>&"
    made = draw_figures(Shown([run(*LOG[:5], name=name), run(*LOG[:5], name="other")]), tmp_path)
    [svg] = [figure.svg for figure in made]
    assert "<script" not in svg
    assert "_$x^$&lt;script&gt;&amp; · PoSE" in svg
    assert "other · PoSE" in svg


def test_a_task_that_a_file_names_writes_into_no_other_folder():
    names = ["../../evil", "/evil", "a/b", "..", "loss", "a\\0b"]
    records = [t for task in names for t in trials("pose", 256, 5, 10, task=task)]
    found = [plot.name for figure in figures.FIGURES for plot in figure(Shown([run(*records, *LOG)]))]
    assert all(re.fullmatch(r"[\w-]+", name) for name in found)
    assert len(set(found)) == len(found) == 2 * len(names) + 1


def test_depths_are_sorted_into_equal_parts_with_the_last_end_included():
    made = [
        replace(t, depth=depth, hit=depth != 0.19)
        for t, depth in zip(trials("m", 256, 0, 4), (0.0, 0.19, 0.2, 1.0), strict=True)
    ]
    assert hits_by_depth(made, 5) == [[True, False], [True], [], [], [True]]


@pytest.mark.parametrize(("asked", "parts"), [(50, 5), (100, 10)])
def test_a_heat_map_has_ten_parts_where_there_are_prompts_enough(asked, parts):
    found = plots_of(
        run(*trials("pose", 256, 20, asked), *trials("pose", 512, asked, asked), *trials("original", 256, 1))
    )
    plot = found["passkey-depth"]
    assert len(plot.data) == 2 * parts
    assert sum(row[4] for row in plot.data) == 2 * asked
    assert [row[5] for row in plot.data if row[1] == 512] == [asked // parts] * parts


def test_every_extended_model_has_a_heat_map_of_its_own():
    found = plots_of(run(*trials("pose", 256, 9), name="a"), run(*trials("short", 256, 9), name="b"))
    assert set(found) == {"passkey", "passkey-depth-1", "passkey-depth-2"}
    assert found["passkey-depth-2"].title == "Passkey found, b · short, by depth"


def test_an_evaluation_has_figures_by_position(tmp_path):
    levels = {"m": [9, 8, 7, 6, 5, 4.0], "base": [8, 7, 6, 8, 9, 9.0]}
    records = [
        *readings("m", 2048, levels["m"]), *readings("m", 256, [9, 8, 7, 8, 8, 8.0]), *readings("base", 256, levels["base"])
    ]  # fmt: skip
    folder = read_folder(evaluation_folder(tmp_path / "e", records))
    found = plots_of(folder)
    assert list(found) == ["perplexity", "gain", "excess", "first-tokens"]
    gain = {row[1]: row[2:] for row in found["gain"].data}
    assert list(gain) == [512, 1024, 2048]
    assert gain[2048] == pytest.approx([np.log(2)] * 3, abs=1e-6)  # all documents gain the same
    excess = {row[1]: row[2] for row in found["excess"].data}
    assert excess[2048] == pytest.approx(np.log(4 / 9))
    first = {row[1]: row[2] for row in found["first-tokens"].data if row[0] == "m"}
    assert first[64] == pytest.approx(9)
    assert list(first) == [64, 128, 256, 512, 1024, 2048]
    assert "level curve beyond the original length" in found["perplexity"].caption


def test_a_step_logged_again_after_a_resume_counts_once():
    logs = [TrainingRecord("pose", s, loss, 1e-4, 1.0, s * 8, 1.0) for s, loss in [(1, 3), (2, 9), (2, 2)]]
    data = plots_of(run(*logs))["loss"].data
    assert [row[:4] for row in data] == [["PoSE", 1, 8, 3], ["PoSE", 2, 16, 2]]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, False), ({"teacher": None, "data.answer_weight": 1.0}, False), ({"teacher.weight": 0.0}, True),
     ({"data.retrieval": 0.1, "data.answer_weight": 8.0}, True), ({"data.retrieval": 0.0, "data.answer_weight": 8.0}, False),
     ({"data.retrieval": 0.1, "data.answer_weight": 1.0, "data.first_digit_weight": 8.0}, True),
     ({"data.retrieval": 0.0, "data.retrieval_end": 0.5, "data.answer_weight": 4.0}, True),
     ({"data.retrieval": 0.1, "data.answer_weight": 1.0, "data.first_digit_weight": None}, False)],
)  # fmt: skip
def test_a_training_loss_that_is_not_that_of_the_text_is_said_to_be_none(settings: dict, said: bool):
    caption = plots_of(Folder("run", LOG, {**INFO, "settings": settings}))["loss"].caption
    assert ("is not that of the text" in caption) is said


def test_perplexity_by_training_step_counts_far_text_in_segments_alone():
    def at(step: int, mode: str, near: float, far: float) -> list:
        made = readings("pose", 2048, [near] * 3 + [far] * 3, documents=2)
        return [replace(record, mode=mode, step=step) for record in made]

    measured = [*at(2, "sliding", 9, 9), *at(4, "sliding", 8, 8), *at(2, "segment", 9, 5), *at(4, "segment", 9, 6)]
    plot = plots_of(run(*measured, *measured[:2], *perplexities("pose", w256=9)))["steps"]  # two were measured twice
    assert {(label, step): mean for label, step, mean, *_ in plot.data} == pytest.approx(
        {("windows of 2,048 tokens", 2): 9, ("windows of 2,048 tokens", 4): 8, ("far text", 2): 5, ("far text", 4): 6}
    )
    assert "windows of 2,048 tokens at step 4 and far text at step 2" in plot.caption
    part = at(6, "segment", 9, 1)[:1]  # of a step that a kill cut short
    other = [replace(r, data="another") for r in at(2, "sliding", 1, 1)]
    info = {**INFO, "evaluation": {"documents": {"held out": ["d0", "d1"], "another": ["d0"]}}}
    assert plots_of(Folder("run", [*measured, *part, *other], info))["steps"].data == plot.data
    assert "steps" not in plots_of(run(*at(2, "sliding", 9, 9)))


def test_drawing_leaves_matplotlibs_settings_and_numpys_generator_alone(tmp_path):
    import matplotlib

    before, state = dict(matplotlib.rcParams), np.random.get_state()[1].copy()
    draw_figures(Shown([run(CURVE)]), tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert (np.random.get_state()[1] == state).all()


def test_coverage_of_several_runs_is_drawn_once_where_it_is_equal_and_told_apart_where_not():
    other = CoverageRecord.of(coverage(256, 1024, ChunkRules(skips="end_anchored")), "2 chunks")
    assert (
        plots_of(run(CURVE, name="a"), run(CURVE, name="b"))["coverage"].data == plots_of(run(CURVE))["coverage"].data
    )
    labels = [row[0] for row in plots_of(run(CURVE, name="a"), run(CURVE, other, name="b"))["coverage"].data]
    assert list(dict.fromkeys(labels)) == ["a · 2 chunks", "b · 2 chunks"]


def test_coverage_is_explained_by_the_windows_of_the_run():
    original = CoverageRecord.of(coverage(64, 1024, scheme="short"), "original")
    assert "Training windows of 256 tokens" in plots_of(run(original, CURVE))["coverage"].caption


def test_coverage_without_skips_is_not_said_to_reach_the_target():
    original, short = (
        CoverageRecord.of(coverage(length, 1024, scheme="short"), label)
        for length, label in ((64, "original"), (256, "short"))
    )
    caption = plots_of(run(original, short))["coverage"].caption
    assert "farther apart than 255, and these runs skip no positions." in caption
    assert "farther apart than 255; with skipped positions" in plots_of(run(original, CURVE))["coverage"].caption


def test_coverage_figure_is_written_by_its_ending(tmp_path):
    coverage_figure([CURVE], tmp_path / "a" / "c.svg")
    coverage_figure([CURVE], tmp_path / "c.png")
    ElementTree.parse(tmp_path / "a" / "c.svg")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RecipeError, match=r"must end in .svg or .png"):
        coverage_figure([CURVE], tmp_path / "c.jpg")
    with pytest.raises(RunError, match=r"cannot be written: .*; give another path"):
        coverage_figure([CURVE], tmp_path / "c.png" / "c.svg")


def test_no_two_lines_of_a_figure_look_alike():
    labels = ["full", "short", "pose", "pose, twice", "pose, 4 times", "short, twice", "linear", "yarn"]
    looks = looks_of(labels)
    assert len({(look.colour, look.marker) for look in looks}) == len(labels)
    assert looks[1].colour == ARM_LOOKS["short"].colour
    assert looks_of(["linear"])[0].colour == ARM_LOOKS["pose"].colour
    assert len(looks_of([str(i) for i in range(20)])) == 20
    assert len({str(look.dash) for look in looks_of(["pose"] * 4)}) == 4


# Pairs that a simulation of deuteranopia, protanopia and tritanopia (Machado, 2009) puts close to each other.
ALIKE = ["pose randpos", "pose cream", "original cream", "full short", "full skipwise", "full cream", "short skipwise"]
ALIKE += ["pi-only short", "pi-only skipwise", "pi-only full"]


@pytest.mark.parametrize("pair", ALIKE)
def test_arms_whose_colours_look_alike_to_the_colour_blind_differ_in_hatch_and_marker(pair):
    one, other = (ARM_LOOKS[arm] for arm in pair.split())
    assert one.hatch != other.hatch
    assert one.marker != other.marker


def axes_of(plot: Plot) -> Axes:
    axes = Canvas().add_subplot()
    plot.draw(axes, "#000000")
    return axes


def exact(curve: dict[int, float]) -> dict[int, Interval]:
    return {x: Interval(value, -math.inf, math.inf) for x, value in curve.items()}


def test_curves_that_end_far_above_the_lowest_leave_the_figure_and_the_legend_says_where():
    """Beside an original that fails, arms that differ by a few percent would lie on one another."""
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
    assert near.get_yscale() == "linear"
    assert near.get_legend_handles_labels()[1] == ["original (ends at 97.1)", "PoSE", "short", "broken"]
    assert whole.get_yscale() == "log"
    assert whole.get_legend_handles_labels()[1][0] == "original"


def test_shares_have_an_axis_from_0_to_100():
    """However little they differ; of equal ones matplotlib would show thousandths."""
    plot = curve_plot("p", "Found", ("prompt", "found (%)"), {"pose": exact({256: 0, 2048: 0})}, percent=True)
    low, high = axes_of(plot).get_ylim()
    assert low < 0 < 100 < high
    assert list(axes_of(plot).get_yticks()) == [0, 25, 50, 75, 100]

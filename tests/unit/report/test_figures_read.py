"""Figures as a reader needs them: named axes with units, a scale, the base's line, text that a phone shows."""

import re
from dataclasses import replace

import pytest
from matplotlib.figure import Figure as Canvas

from skipwise.method.coverage import coverage
from skipwise.report.canvas import named, powers_of_two, write
from skipwise.report.figures import FIGURES, curve_plot
from skipwise.report.folder import Folder, read_folder
from skipwise.report.shown import ARM_LOOKS, Shown
from skipwise.results.records import CoverageRecord, RulerRecord, TrainingRecord
from skipwise.results.statistics import Interval
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, WINDOWS, evaluation_folder, readings, trials

WITHOUT_UNIT = {"perplexity", "probability", "tokens read", "tokens trained on", "optimizer step", "task"}
LOG = [TrainingRecord("pose", s, 3 - s / 100, 1e-4, 1.0, s * 512, 1e4) for s in range(1, 40)]
DURING = [replace(r, step=step) for step in (10, 20) for r in readings("pose", 2048, 9.0)]
CURVE = CoverageRecord.of(coverage(256, 2560), "2 chunks")
RUN = Folder("run", [*ORIGINAL, *PI_ONLY, *POSE, *LOG, *DURING, CURVE], INFO)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """A model beside its base, which was measured inside its own window only and finds 80% of the passkeys there."""
    levels = [9, 8, 7, 6, 5, 4.0]
    own = [r for w in WINDOWS for r in (*readings("m", w, levels), *trials("m", w, 78))]
    own += [RulerRecord("m", "vt", w, 0, 0, True, "float32", "d", score=0.5) for w in WINDOWS]
    base = [*readings("base", 256, 8.5), *trials("base", 256, 80)]
    return read_folder(evaluation_folder(tmp_path_factory.mktemp("e") / "e", [*own, *base]))


def plots_of(*folders):
    return {plot.name: plot for figure in FIGURES for plot in figure(Shown(folders))}


def drawn(plot):
    axes = Canvas().add_subplot()
    plot.draw(axes, "#000000")
    return axes


def level_lines(axes):
    """Height by colour of the lines that go over the whole width."""
    return {line.get_color(): line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]}


def test_both_axes_of_every_figure_are_named_with_their_units(evaluation):
    for figure in FIGURES:
        plots = [plot for folder in (RUN, evaluation) for plot in figure(Shown([folder]))]
        assert plots
        for axes in map(drawn, plots):
            for label in (axes.get_xlabel(), axes.get_ylabel()):
                assert label in WITHOUT_UNIT or re.fullmatch(r".+ \(.+\)", label), axes.get_title()


def test_axes_of_lengths_have_ticks_at_powers_of_two(evaluation):
    lengths = {300: 1.0, 1000: 2.0, 3000: 3.0}
    curves = {"m": {n: Interval(v, v, v) for n, v in lengths.items()}}
    odd = drawn(curve_plot("odd", "Odd", ("window (tokens)", "perplexity"), curves))
    assert [text.get_text() for text in odd.get_xticklabels()] == ["256", "512", "1k", "2k", "4k"]
    plots = {**plots_of(RUN), **plots_of(evaluation)}
    for name in ("perplexity", "gain", "excess", "first-tokens", "coverage"):
        ticks = [int(tick) for tick in drawn(plots[name]).get_xticks() if tick]
        assert len(ticks) >= 3
        assert all(n & (n - 1) == 0 for n in ticks)


@pytest.mark.parametrize(
    ("low", "high", "powers"), [(1, 4, [1, 2, 4]), (256, 256, [256]), (3, 5, [2, 4, 8]), (0, 1, [1])]
)
def test_powers_of_two_enclose_what_is_shown(low, high, powers):
    assert powers_of_two(low, high) == powers


def test_many_lengths_have_nine_ticks_at_the_most():
    curves = {"m": {2**k: Interval(1.0, 1.0, 1.0) for k in range(15)}}
    assert len(drawn(curve_plot("many", "Many", ("steps (count)", "loss (nats)"), curves)).get_xticks()) == 8


def test_a_heat_map_has_a_scale_of_its_own_colours(evaluation):
    axes = drawn(plots_of(evaluation)["passkey-depth"])
    [scale] = axes.child_axes
    assert scale.get_ylabel() == "found (% of prompts)"
    assert list(scale.get_yticks()) == [0, 25, 50, 75, 100]
    cells = {patch.get_facecolor() for patch in axes.patches}
    colours = [patch.get_facecolor() for patch in scale.patches]
    assert colours[0] in cells  # nothing found
    assert colours[-1] in cells  # all found
    assert [colour[3] for colour in colours] == sorted(colour[3] for colour in colours)


def test_a_cell_without_prompts_has_no_colour_and_the_caption_says_so():
    few = Folder("run", trials("pose", 256, 2, 2), INFO)  # at depths 0 and 0.5
    plot = plots_of(few)["passkey-depth"]
    assert len(drawn(plot).patches) == 2
    assert "A dash stands where no prompt was asked." in plot.caption


def test_the_base_of_an_evaluation_has_a_line_in_its_figures(evaluation):
    plots, grey = plots_of(evaluation), ARM_LOOKS["original"].colour
    assert level_lines(drawn(plots["perplexity"]))[grey] == pytest.approx(8.5, abs=0.01)
    assert level_lines(drawn(plots["passkey"]))[grey] == pytest.approx(80)
    for name in ("perplexity", "passkey"):
        assert "The dashed line is base at 256 tokens." in plots[name].caption
    excess = drawn(plots["excess"])
    assert level_lines(excess)[grey] == 0
    assert excess.get_legend_handles_labels()[1] == ["m", "base"]
    first = {line.get_label(): list(line.get_xdata()) for line in drawn(plots["first-tokens"]).lines}
    assert first["base"] == [64, 128, 256]


def test_a_run_whose_original_was_measured_everywhere_has_no_second_line_of_it():
    plots = plots_of(RUN)
    assert not level_lines(drawn(plots["perplexity"]))
    assert not level_lines(drawn(plots["passkey"]))
    assert "dashed" not in plots["perplexity"].caption


def test_bars_of_a_length_stand_around_its_tick(evaluation):
    axes = drawn(plots_of(evaluation)["passkey"])
    middles = sorted(patch.get_x() + patch.get_width() / 2 for patch in axes.patches)
    assert middles == pytest.approx([-0.21, 0.21, 1, 2, 3])
    handles, labels = axes.get_legend_handles_labels()
    colours = {label: handle.patches[0].get_facecolor() for label, handle in zip(labels, handles, strict=True)}
    assert len(set(colours.values())) == len(labels) == 2


def test_the_smallest_text_is_ten_pixels_high_on_a_phone(tmp_path, evaluation):
    for plot in [*plots_of(RUN).values(), *plots_of(evaluation).values()]:
        svg = write(plot, tmp_path).svg
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
        assert sizes
        assert min(sizes) * 340 / width >= 10


def test_long_titles_are_wrapped_and_long_labels_keep_both_ends(tmp_path):
    label = "a-model-with-quite-a-long-name-" * 3 + "seed1"
    curves = {name: {256: Interval(1.0, 1.0, 1.0), 512: Interval(2.0, 2.0, 2.0)} for name in (label, "other")}
    svg = write(curve_plot("long", f"Perplexity of {label}", ("tokens read", "perplexity"), curves), tmp_path).svg
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", svg) + re.findall(r"<tspan[^>]*>([^<]*)</tspan>", svg)
    assert max(map(len, lines)) <= 44
    assert named(label).startswith("a-model")
    assert named(label).endswith("seed1")

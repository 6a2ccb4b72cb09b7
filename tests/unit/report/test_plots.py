"""Figures: what is drawn from which records, the files, and their bytes."""

import csv
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from skipwise.errors import RecipeError, RunError
from skipwise.method.coverage import closed_form, coverage_record
from skipwise.report import plots
from skipwise.report.plots import coverage_figure, draw_figures, hits_by_depth
from skipwise.results.records import PasskeyRecord, PerplexityRecord, TrainingRecord


def perplexity(arm, window, value, data="held out"):
    return PerplexityRecord(arm, window, 128, 8, 1000, 1000 * math.log(value), "float32", 1.0, data)


def passkey(arm, length, hits, trials=10):
    depths = [i / trials for i in range(trials)]
    return PasskeyRecord(arm, length, 0, depths, [length] * trials, [i < hits for i in range(trials)], 1.0)


def some_records():
    return [
        *[TrainingRecord("pose", s, 3 - s / 100, 1e-4, 1.0, s * 512, 1e4) for s in range(1, 40)],
        *[perplexity("original", w, p) for w, p in [(256, 15.7), (512, 79), (1024, 109)]],
        *[perplexity("pose", w, p) for w, p in [(256, 15.3), (512, 15.0), (1024, 15.2)]],
        *[passkey("original", n, k) for n, k in [(256, 10), (512, 0)]],
        *[passkey("pose", n, k) for n, k in [(256, 10), (512, 9)]],
        coverage_record(closed_form(256, 1024, 2), "2 chunks"),
    ]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, draw_figures({"run": some_records()}, folder, 256)


def test_every_figure_is_written_as_svg_png_and_csv(drawn):
    folder, figures = drawn
    names = ["perplexity", "passkey", "passkey-depth", "loss", "coverage"]
    assert [figure.name for figure in figures] == names
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        f"{n}.{kind}" for n in names for kind in ("csv", "png", "svg")
    )
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")


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
    again = draw_figures({"run": some_records()}, tmp_path, 256)
    assert [figure.svg for figure in again] == [figure.svg for figure in drawn[1]]


def test_text_is_text_and_lengths_are_written_short(drawn):
    svg = drawn[1][0].svg
    for text in ("256", "512", "1k", "original length 256", "PoSE"):
        assert f">{text}<" in svg.replace("\u200b", "")


def test_perplexity_is_logarithmic_only_where_an_arm_explodes(tmp_path):
    calm = [perplexity("original", 256, 15), perplexity("original", 512, 40)]
    titles = [
        draw_figures({"r": records}, tmp_path)[0].title
        for records in (calm, [*calm, perplexity("pose", 256, 10)])
    ]
    assert titles == ["Perplexity by window", "Perplexity by window (log scale)"]


def test_csv_holds_the_figures_numbers(drawn):
    with open(drawn[0] / "passkey.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["arm"], r["length"], r["hits"]) for r in rows][-1] == ("PoSE", "512", "9")
    assert float(rows[0]["low_95"]) == pytest.approx(0.7225, abs=1e-3)


def test_infinite_perplexity_is_left_out_of_the_drawing_and_kept_in_the_data(tmp_path):
    broken = PerplexityRecord("original", 512, 128, 1, 1, 800.0, "float32", 1.0)
    draw_figures({"r": [perplexity("original", 256, 15), broken]}, tmp_path)
    assert "inf" in (tmp_path / "perplexity.csv").read_text()


def test_figures_without_records_are_not_drawn(tmp_path):
    assert draw_figures({"r": []}, tmp_path / "new") == []
    assert draw_figures({"r": [TrainingRecord("pose", 1, 3.0, 1e-4, None, 0, 0.0)]}, tmp_path) == []


def test_runs_are_told_apart_by_label_and_hostile_names_stay_text(tmp_path):
    name = "_$x^$<script>&"
    figures = draw_figures({name: some_records()[:5], "other": some_records()[:5]}, tmp_path)
    svg = next(f.svg for f in figures if f.name == "loss")
    assert "<script" not in svg
    assert "_$x^$&lt;script&gt;&amp; · PoSE" in svg
    assert "other · PoSE" in svg
    two = [passkey("pose", 256, 9)]
    assert [f.name for f in draw_figures({"a": two, "b": two}, tmp_path)] == ["passkey"]


def test_depths_are_sorted_into_equal_parts_with_the_last_end_included():
    record = PasskeyRecord("pose", 256, 0, [0.0, 0.19, 0.2, 1.0], [256] * 4, [True, False, True, True], 1.0)
    assert hits_by_depth(record) == [[True, False], [True], [], [], [True]]


def test_a_step_logged_again_after_a_resume_counts_once(tmp_path):
    logs = [TrainingRecord("pose", s, loss, 1e-4, 1.0, s * 8, 1.0) for s, loss in [(1, 3), (2, 9), (2, 2)]]
    draw_figures({"r": logs}, tmp_path)
    rows = (tmp_path / "loss.csv").read_text().splitlines()
    assert len(rows) == 3
    assert rows[-1].startswith("PoSE,2,16,2")


def test_drawing_leaves_matplotlibs_settings_and_numpys_generator_alone(tmp_path):
    import matplotlib

    before, state = dict(matplotlib.rcParams), np.random.get_state()[1].copy()
    draw_figures({"r": some_records()[-1:]}, tmp_path)
    assert dict(matplotlib.rcParams) == before
    assert (np.random.get_state()[1] == state).all()


def test_coverage_figure_is_written_by_its_ending(tmp_path):
    records = some_records()[-1:]
    coverage_figure(records, tmp_path / "a" / "c.svg")
    coverage_figure(records, tmp_path / "c.png")
    ElementTree.parse(tmp_path / "a" / "c.svg")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RecipeError, match=r"must end in .svg or .png"):
        coverage_figure(records, tmp_path / "c.jpg")
    with pytest.raises(RunError, match=r"cannot be written: .*; give another path"):
        coverage_figure(records, tmp_path / "c.png" / "c.svg")


def test_no_two_lines_of_a_figure_look_alike() -> None:
    labels = ["full", "short", "pose", "pose, twice", "pose, 4 times", "short, twice", "linear", "yarn"]
    looks = plots._looks(labels)
    assert len(set(looks.values())) == len(labels)
    assert looks["short"][0] == plots.ARM_COLOURS["short"]
    assert plots._looks(["linear"])["linear"][0] == plots.ARM_COLOURS["pose"]
    assert len(plots._looks([str(i) for i in range(20)])) == 20

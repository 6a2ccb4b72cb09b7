"""What records say of a model: how far it reads, what far text is worth, and what the extension cost."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from skipwise.errors import RunError
from skipwise.report.difference_table import differences_to_first
from skipwise.report.folder import Folder, read_folder
from skipwise.report.retrieval_figures import found_plots
from skipwise.report.shown import Shown
from skipwise.report.summary import COST_LIMIT, benchmarks_of, judgements, rows_of
from skipwise.report.tables import tables_of
from skipwise.results.files import file_digest, write_json
from skipwise.results.records import BenchmarkRecord, ReadingRecord, append_record
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, WINDOWS, arm, evaluation_folder, readings, run_folder, trials

EDGES = [1, 64, 128, *WINDOWS]


def judged(*records, info=INFO):
    [one] = judgements(rows_of([Folder("run", list(records), info)]))
    return one


def random_readings(seed: int, name: str, window: int) -> list[ReadingRecord]:
    rng = np.random.default_rng(seed)
    return [
        replace(r, nll=list(rng.uniform(1, 2, 6) * np.diff(EDGES)), hits=list(map(int, rng.integers(0, 50, 6))))
        for r in readings(name, window, 1.0)
    ]


def test_every_number_is_its_own_formula(tmp_path) -> None:
    whole, short, base = (
        random_readings(seed, name, window) for seed, name, window in ((0, "m", 2048), (1, "m", 256), (2, "base", 256))
    )
    records = [*whole, *reversed(short), *base[3:], *base[:3], *trials("m", 256, 40, 40), *trials("m", 2048, 39, 40)]
    [one] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", records))]))
    row, every = one.row, slice(None)

    def total(read, buckets=every, what="nll") -> float:
        return sum(float(np.sum(getattr(r, what)[buckets])) for r in read)

    assert row.perplexity[2048].mean == pytest.approx(math.exp(total(whole) / (6 * 2047)))
    assert row.perplexity[256].mean == pytest.approx(math.exp(total(short) / (6 * 2047)))
    assert row.perplexity[2048].low < row.perplexity[2048].mean < row.perplexity[2048].high
    assert {edge: first.mean for edge, first in row.truncated().items()} == pytest.approx(
        {edge: math.exp(total(whole, slice(0, i + 1)) / (6 * (edge - 1))) for i, edge in enumerate(EDGES[1:])}
    )
    assert [(b.begin, b.end) for b in one.buckets] == [
        (1, 64), (64, 128), (128, 256), (256, 512), (512, 1024), (1024, 2048)
    ]  # fmt: skip
    last = one.buckets[-1]
    assert last.loss.mean == pytest.approx(total(whole, 5) / (6 * 1024))
    assert last.gain.mean == pytest.approx((total(short, 5) - total(whole, 5)) / (6 * 1024))
    assert last.excess.mean == pytest.approx((total(whole, 5) - total(base, 5)) / (6 * 1024))
    assert [b.gain is None for b in one.buckets] == [True] * 3 + [False] * 3  # nothing is far inside the original
    assert one.cost.loss.mean == pytest.approx((total(short) - total(base)) / (6 * 2047))
    hits = total(short, what="hits") - total(base, what="hits")
    assert one.cost.accuracy.mean == pytest.approx(hits / (6 * 2047))
    assert row.found == {"passkey": {256: (40, 40), 2048: (39, 40)}}


def test_the_order_of_measuring_changes_nothing() -> None:
    one, other = (rows_of([Folder("run", records, INFO)]) for records in (
        [*ORIGINAL, *POSE], [*reversed(POSE), *reversed(ORIGINAL)]
    ))  # fmt: skip
    assert judgements(one)[0].cost == judgements(other)[0].cost
    assert [row.perplexity for row in one] == [row.perplexity for row in other]
    assert judgements(one)[0].effective == judgements(other)[0].effective


def test_a_row_names_its_text_by_the_last_part_of_its_path_and_prompts_are_on_no_text() -> None:
    def rows(*texts: str):
        read = [r for text in texts for r in readings("pose", 256, 15.0, text)]
        return rows_of([Folder("run", [*read, *trials("pose", 256, 9, 10)], INFO)])

    assert [row.label for row in rows("/data/books/")] == ["PoSE"]
    assert [row.label for row in rows("/data/books/", "owner/reports")] == ["PoSE (books)", "PoSE (reports)"]
    assert [row.label for row in rows("/a/books", "/b/books")] == ["PoSE (/a/books)", "PoSE (/b/books)"]
    read = [*readings("pose", 256, 15.0, "a"), *readings("pose", 256, 15.0, "b")]
    shown = Shown([Folder("run", [*read, *trials("pose", 256, 9, 10)], INFO)])
    perplexity, passkey = tables_of(shown)
    assert [row[0] for row in perplexity.rows] == ["PoSE (a)", "PoSE (b)"]
    assert [row[0] for row in passkey.rows] == ["PoSE"]
    assert {row[0] for plot in found_plots(shown) for row in plot.data} == {"PoSE"}


def test_models_that_read_two_texts_are_compared_by_the_prompts_they_share() -> None:
    records = [r for name in ("m", "n") for text in ("a", "b") for r in readings(name, 256, 15.0, text)]
    records += [*trials("m", 256, 40, 50), *trials("n", 256, 50, 50)]
    first, apart = differences_to_first(rows_of([Folder("run", records, INFO)]))
    assert first == "m"
    assert apart["n"]["passkey", 256].mean == pytest.approx(0.2)


def test_a_run_and_an_evaluation_of_the_same_records_say_the_same(tmp_path) -> None:
    named = {"original": "base", "pose": "m"}
    records = [replace(r, arm=named[r.arm]) for r in (*ORIGINAL, *POSE)]
    [evaluated] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", records))]))
    run = judged(*ORIGINAL, *POSE)
    assert evaluated.headline == run.headline == "Reads 2,048 tokens, 8 times its original 256"
    assert evaluated.effective.tokens == run.effective.tokens
    assert evaluated.cost == run.cost
    assert evaluated.buckets == run.buckets


@pytest.mark.parametrize(
    ("trained", "headline", "told"),
    [
        (POSE, "Reads 2,048 tokens, 8 times its original 256", ""),
        (
            arm("pose", [15.3, 15.0, 15.2, 15.4], [100, 100, 80, 90]),
            "Reads 512 tokens, 2 times its original 256, short of its target 2,048",
            "At 1,024 tokens it fails: 80 of 100 passkeys found",
        ),
        (
            arm("pose", [15.3, 15.0, 15.2, 15.4], [100, 50, 100, 100]),
            "Not extended: it reads 256 tokens, no more than its original 256",
            "At 512 tokens it fails: 50 of 100",
        ),
        (
            arm("pose", [15.3, 15.0, 15.2, 15.4], [20, 100, 100, 100]),
            "Not extended: it fails the rule at the shortest length that was tested",
            "At 256 tokens it fails: 20 of 100",
        ),
        (
            arm("pose", [15.3, 15.0, 15.2, 17.0], [100] * 4),
            "Not extended: it fails the rule at the shortest length that was tested",
            "At 256 tokens it fails: loss +0.080",
        ),
        (
            [*arm("pose", [15.3, 15.0, 15.2, 15.4], [100] * 4)[:-100], *trials("pose", 2048, 2, 2)],
            "Reads at least 1,024 tokens, 4 times its original 256; too little was measured to say more",
            "At 2,048 tokens too little was measured: 2 of 2",
        ),
        (
            [r for w in WINDOWS for r in (*readings("pose", w, 15.0), *trials("pose", w, 1, 2))],
            "Too little was measured to say how far it reads",
            "At 256 tokens too little was measured: 1 of 2",
        ),
        (
            [r for w in WINDOWS for r in (*readings("pose", w, 15.0, documents=1), *trials("pose", w, 100))],
            "Too little was measured to say how far it reads",
            "[one document]",
        ),
    ],
)  # fmt: skip
def test_the_headline_follows_the_rule(trained, headline, told) -> None:
    one = judged(*ORIGINAL, *PI_ONLY, *trained)
    assert one.headline == headline
    assert told in one.effective.next
    assert "that of the base (original) in windows of its original 256 tokens" in one.effective.rule


def test_a_loss_that_grows_beyond_the_window_is_seen_at_its_length() -> None:
    failing = readings("pose", 2048, [15.0, 15.0, 15.0, 15.0, 17.0, 17.0])
    one = judged(*ORIGINAL, *(r for r in POSE if getattr(r, "window", 0) != 2048), *failing)
    assert one.effective.tokens == 512
    assert one.effective.next.startswith("At 1,024 tokens it fails: loss +0.080")


def test_no_part_of_the_loss_is_left_out_where_prompts_have_other_lengths() -> None:
    """2,048 is judged by all positions from 1,024 on, though a prompt ended between them."""
    failing = readings("pose", 2048, [15.0] * 5 + [17.0])
    read = [r for r in POSE if getattr(r, "window", 0) != 2048]
    one = judged(*ORIGINAL, *read, *failing, *trials("pose", 1500, 100))
    assert one.effective.tokens == 1024
    assert one.effective.next.startswith("At 2,048 tokens it fails: loss +0.080")


def test_what_was_not_measured_is_said() -> None:
    no_passkeys = judged(*ORIGINAL, *(r for r in POSE if isinstance(r, ReadingRecord)))
    assert no_passkeys.effective.next == "Not measured: passkeys."
    no_text = judged(*(r for r in POSE if not isinstance(r, ReadingRecord)))
    assert no_text.effective.next == "Not measured: loss by position."
    assert "original 256 tokens" in no_text.effective.rule
    assert no_text.cost_sentence == ""
    assert {one.headline for one in (no_passkeys, no_text)} == {"Too little was measured to say how far it reads"}
    assert judgements(rows_of([Folder("run", ORIGINAL, INFO)])) == []


@pytest.mark.parametrize(("more", "warned"), [(0.02, False), (COST_LIMIT + 0.01, True)])
def test_a_high_cost_inside_the_original_window_is_warned_of(more, warned) -> None:
    one = judged(*readings("original", 256, 15.0), *readings("pose", 256, 15.0 * math.exp(more)))
    assert one.cost.loss.mean == pytest.approx(more)
    assert bool(one.cost.warning) is warned
    assert ("costs 0.040 nats a token inside the original window" in one.cost.warning) is warned
    assert f"changed by {one.cost.loss} nats a token against original" in one.cost_sentence


def test_of_one_document_no_interval_is_given() -> None:
    alone = [*readings("original", 256, 15.0, documents=1), *readings("pose", 256, 15.0, documents=1)]
    told = judged(*alone).cost_sentence
    assert "next-token accuracy by +0.00 [one document] points" in told
    assert "inf" not in told


def test_without_a_base_the_model_is_its_own_control(tmp_path) -> None:
    records = [r for w in WINDOWS for r in readings("m", w, 15.0)]
    [one] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", records, base=""))]))
    assert one.cost is None
    assert "no base was read" in one.cost_sentence
    assert one.buckets[-1].excess is None
    assert one.buckets[-1].gain is not None
    assert "the model itself in windows of its original 256 tokens" in one.effective.rule


def test_an_original_length_that_is_no_multiple_of_four_splits_near_from_far() -> None:
    edges = [1, 16, 32, 64, 66, 128, 256]
    nll = [float(n) for n in np.diff(edges)]
    records = [
        replace(r, window=window, edges=edges, nll=nll, hits=[1] * 6)
        for name in ("original", "pose")
        for window in (66, 256)
        for r in readings(name, window, 1.0)
    ]
    one = judged(*records, info={"model": {"original_length": 66, "target_length": 256}})
    assert [(b.begin, b.gain is not None) for b in one.buckets] == [
        (1, False), (16, False), (32, False), (64, False), (66, True), (128, True)
    ]  # fmt: skip


def labels(*runs: tuple[str, list]) -> list[str]:
    return [row.label for row in rows_of([Folder(name, records, INFO) for name, records in runs])]


def test_baselines_come_first_and_equal_ones_are_one_row() -> None:
    assert labels(("a", [*POSE, *PI_ONLY, *ORIGINAL])) == ["original", "PI-only", "PoSE"]
    assert labels(("a", [*ORIGINAL, *POSE]), ("b", [*ORIGINAL, *POSE])) == ["original", "a · PoSE", "b · PoSE"]
    other = arm("original", [16, 80, 110, 135], [100, 0, 0, 0])
    assert labels(("a", [*ORIGINAL, *POSE]), ("b", [*other, *POSE])) == [
        "a · original", "b · original", "a · PoSE", "b · PoSE"
    ]  # fmt: skip

    two = [(name, [*ORIGINAL, *POSE]) for name in "ab"] + [(name, [*other, *POSE]) for name in "cd"]
    assert labels(*two)[:2] == ["a · original", "c · original"]


def test_equal_baselines_keep_the_names_of_their_texts() -> None:
    two = [*readings("original", 256, 9, "x"), *readings("original", 256, 8, "y")]
    assert labels(("a", two), ("b", two)) == ["original (x)", "original (y)"]


def test_every_run_is_judged_against_its_own_baseline() -> None:
    worse = arm("original", [10, 80, 110, 135], [100, 0, 0, 0])
    folders = [Folder("a", [*worse, *POSE], INFO), *(Folder(n, [*ORIGINAL, *POSE], INFO) for n in "bc")]
    a, b, c = judgements(rows_of(folders))
    assert a.cost.loss.mean > 0.4
    assert b.cost == c.cost == judged(*ORIGINAL, *POSE).cost
    assert b.headline == c.headline == judged(*ORIGINAL, *POSE).headline


def test_texts_are_kept_apart_and_the_first_is_judged() -> None:
    records = [
        r
        for data, p in (("x", 9.0), ("y", 30.0))
        for name in ("original", "pose")
        for r in readings(name, 256, p, data)
    ]
    assert labels(("a", records)) == ["original (x)", "original (y)", "PoSE (x)", "PoSE (y)"]
    one = judged(*records)
    assert one.row.data == "x"
    assert one.cost.loss.mean == pytest.approx(0)


def test_a_number_measured_again_replaces_the_older_one() -> None:
    records = [*readings("pose", 256, 9), *readings("pose", 256, 8, digest="e"), *trials("pose", 256, 10, 10)]
    [row] = rows_of([Folder("a", [*records, *(replace(t, digest="e", hit=False) for t in records[-10:])], INFO)])
    assert row.perplexity[256].mean == pytest.approx(8)
    assert row.found["passkey"][256] == (0, 10)


def test_what_a_resumed_run_no_longer_asks_for_is_left_out(tmp_path) -> None:
    asked = {"documents": {"held out": ["d0", "d2"]}, "windows": [512], "prompt_lengths": [512], "trials": 4}
    asked["tasks"] = ["passkey"]
    records = [*readings("original", 256, 9), *readings("original", 512, 9), *readings("original", 1024, 9)]
    records += trials("original", 512, 1, 3, "keys")
    records += [*trials("original", 256, 5, 10), *trials("original", 512, 5, 10)]
    records += [replace(r, data="another") for r in readings("original", 512, 9)]
    folder = read_folder(run_folder(tmp_path / "a", records, {**INFO, "evaluation": asked}))
    [row] = rows_of([folder])
    assert set(row.perplexity) == {256, 512}  # the original is read in its own window too
    assert [r.document for r in row.readings(512)] == ["d0", "d2"]
    assert row.found == {"passkey": {512: (4, 4)}}
    [row, other] = rows_of([read_folder(run_folder(tmp_path / "b", records, {**INFO, "evaluation": {}}))])
    assert set(row.perplexity) == {256, 512, 1024}
    assert other.data == "another"


def test_segments_and_steps_of_training_are_in_no_row() -> None:
    record = readings("pose", 256, 9)[0]
    assert rows_of([Folder("a", [replace(record, mode="segment"), replace(record, step=3)], INFO)]) == []


def test_how_much_of_an_evaluation_is_measured_is_told(tmp_path) -> None:
    records = [*readings("m", 256, 9), *trials("m", 256, 3, 4)]
    folder = evaluation_folder(tmp_path / "e", records, records=12)
    assert read_folder(folder).unfinished.startswith("Unfinished: 10 of 12 records.")
    append_record(folder / "results.jsonl", *records, *trials("m", 512, 1, 2))
    assert read_folder(folder).unfinished == ""


def test_a_benchmark_that_was_run_again_counts_last() -> None:
    record = BenchmarkRecord("m", "boolq", "acc", 0, 256, None, "float32", "0.4", "d", 4, 0.5)
    assert benchmarks_of([Folder("a", [record, replace(record, value=0.75)])]) == [replace(record, value=0.75)]


def test_of_a_benchmark_that_answer_counts_which_has_most_questions() -> None:
    """A short look with --limit does not take the place of the whole."""
    whole = BenchmarkRecord("a", "boolq", "acc", 0, 2048, None, "float32", "0.4", samples=100, value=0.5)
    some = replace(whole, limit=10, samples=10, value=0.9)
    assert benchmarks_of([Folder("a", [whole, some])]) == [whole]
    assert benchmarks_of([Folder("a", [some, whole])]) == [whole]


@pytest.mark.parametrize("info", [{}, {"model": {}}, {"evaluation": {"windows": []}}, {"own": [3]}])
def test_every_key_of_run_json_may_be_missing(tmp_path, info) -> None:
    folder = read_folder(run_folder(tmp_path / "a", [*ORIGINAL, *POSE], info))
    [one] = judgements(rows_of([folder]))
    assert one.headline == "Reads 2,048 tokens"


def test_folders_that_cannot_be_read_are_explained(tmp_path) -> None:
    with pytest.raises(RunError, match="is not a folder"):
        read_folder(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RunError, match="neither a run nor an evaluation"):
        read_folder(empty)
    (empty / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"holds no results .*--resume"):
        read_folder(empty)
    lost = run_folder(tmp_path / "lost", POSE[:2])
    (lost / "run.json").unlink()
    with pytest.raises(RunError, match=r"has lost run\.json; restore it, or let extend --resume write it again"):
        read_folder(lost)
    with pytest.raises(RunError, match=r"holds no results .*the same command"):
        read_folder(evaluation_folder(tmp_path / "e", []))
    for number, text in enumerate(("{", "[1]")):
        broken = run_folder(tmp_path / str(number), POSE[:2])
        (broken / "run.json").write_text(text)
        with pytest.raises(RunError, match=r"run\.json"):
            read_folder(broken)
    (broken / "run.json").write_text(json.dumps(INFO))
    (broken / "recipe.yaml").unlink()
    (broken / "recipe.yaml").mkdir()
    with pytest.raises(RunError, match=r"has lost recipe\.yaml; restore it"):
        read_folder(broken)


def test_results_of_perplexity_and_passkey_alone_have_no_report(tmp_path) -> None:
    append_record(tmp_path / "results.jsonl", *POSE[:3])
    with pytest.raises(RunError, match="skipwise evaluate makes a page"):
        read_folder(tmp_path)


@pytest.mark.parametrize("edited", ["", "model: other\n"])
def test_a_recipe_that_is_not_the_one_of_the_run_is_refused(tmp_path, edited: str) -> None:
    folder = run_folder(tmp_path / "run", [*ORIGINAL, *POSE])
    write_json(folder / "run.json", {**INFO, "recipe": file_digest(folder / "recipe.yaml")})
    read_folder(folder)
    (folder / "recipe.yaml").write_text(edited)
    with pytest.raises(RunError, match=r"recipe.yaml was edited or damaged since the run was begun; restore it"):
        read_folder(folder)


def test_readings_in_training_are_kept_by_another_stride_because_they_are_never_made_again(tmp_path) -> None:
    record = readings("pose", 512, 9.0)[0]
    asked = {
        "documents": {record.data: ["d0"]},
        "tokens": {record.data: [64]},
        "windows": [512],
        "strides": {"512": 64},
    }
    folder = run_folder(tmp_path / "run", [record, replace(record, step=2)], info=INFO | {"evaluation": asked})
    assert [one.step for one in read_folder(folder).records] == [2]

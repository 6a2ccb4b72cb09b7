"""Tables have mean, spread and the paper's figures at their places."""

import math

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import Scores
from reproduction.tables import exhibit_markdown, findings
from tests import reproduced


def markdown(name: str, scores) -> str:
    exhibit = EXHIBITS[name]
    return exhibit_markdown(exhibit, plan_runs(exhibit, SCALES["nano"], seeds=[0], changes={}), scores, {}, {})


def found(name: str, scores):
    exhibit = EXHIBITS[name]
    return findings(exhibit, plan_runs(exhibit, SCALES["nano"], seeds=[0], changes={}), scores)


def scored(text: str, *values: float) -> Scores:
    return Scores({(text, 256 * 2**k): [math.log(v)] for k, v in enumerate(values)})


def segments(*losses: float, hits: int = 0, length: int = 2048) -> Scores:
    edges = [1, 64, 128, 256, 512, 1024, 2048][: 4 if length == 256 else 7]
    return Scores(segments={("x", length): [reproduced.segments(losses, edges=edges, hits=hits, count=3)]})


def test_perplexity_has_mean_spread_and_the_papers_figures() -> None:
    scores = {"pose": scored("x", 10.0, 9.0, 9.0), "full": scored("x", 10.0, 9.0, 9.0)}
    scores["pose"].nll["x", 512] = [math.log(9.0), math.log(9.2)]
    text = markdown("main", {"linear, 8x": scores})
    assert "| perplexity, x | 256 | 512 | 1k | GovReport 1x | GovReport 2x | GovReport 4x |" in text
    assert "| PoSE | 10.0 | 9.10 ± 0.14 | 9.00 | 4.84 | 4.68 | 4.60 |" in text
    assert "- PoSE at most 1.03 x full-length, at every length: holds (1.011 of it at 512 (x))" in text
    assert "- PoSE at most 0.97 x PI-only, at every length beyond the original: not measured" in text
    assert (
        "full-length: 1,638,400 tokens (400 steps of 2 x 2,048); PoSE: 1,638,400 tokens (400 steps of 16 x 256)."
        in text
    )
    assert "linear, 16x" not in text


def test_mathematics_stands_beside_mathematics() -> None:
    text = markdown("interpolation", {"yarn, 8x": {"pose": scored("texts/math", 10.0)}})
    assert "| perplexity, texts/math | 256 | Proof-pile 1x |" in text
    assert "| PoSE | 10.0 | 2.91 |" in text


def test_far_windows_stand_beside_their_own() -> None:
    scores = Scores({("x", 4096): [math.log(12.0)], ("x", 12288): [math.log(13.0)]})
    text = markdown("extreme", {"yarn, 48x": {"yarn": scores}})
    assert "| yarn | 12.0 | 13.0 | 8.31 | 9.36 |" in text


def test_loss_by_position_is_shown_from_the_original_length_on() -> None:
    text = markdown("main", {"linear, 8x": {"pose": segments(9, 9, 9, 2, 3, 1)}})
    assert "| perplexity at positions, x | 1 to 256 | 256 to 512 | 512 to 1k | 1k to 2k |" in text
    assert "| PoSE | 8.1e3 | 7.39 | 20.1 | 2.72 |" in text


def test_curves_are_of_the_first_tokens() -> None:
    text = markdown("families", {"LLaMA": {"yarn": segments(3, 3, 3, 2, 2, 2)}})
    assert "| perplexity of the first tokens, x | 64 | 128 | 256 | 512 | 1k | 2k | paper 1k | paper 16k |" in text
    assert "| yarn | 20.1 | 20.1 | 20.1 | 12.2 | 9.48 | 8.37 | 5.19 | 4.76 |" in text


def test_ability_stands_beside_the_papers_benchmarks() -> None:
    rows = {"original": segments(2, 2, 2, hits=10, length=256), "pose": segments(2.1, 2.1, 2.1, hits=9, length=256)}
    text = markdown("original-ability", {"linear, 8x": rows})
    assert "| original | x | 7.39 | 11.8% [11.8, 11.8] | – | – |" in text
    assert "| PoSE | x | 8.17 | 10.6% [10.6, 10.6] | +0.100 [+0.100, +0.100] | -1.176 [-1.176, -1.176] |" in text
    assert "| PoSE | 74.50 | 78.13 | 68.59 | 32.05 | 48.29 | 75.56 | 62.85 |" in text
    assert "| original | 75.11 |" in text
    assert "73.61" not in text  # of 64 times


def test_perplexity_by_step_stands_beside_the_papers() -> None:
    text = markdown("efficiency", {"yarn, 8x": {"full": Scores({("x", 256): [1.0]}, steps={10: [2.0], 400: [1.0]})}})
    assert "| perplexity after steps | 10 | 400 | paper 10 | paper 30 |" in text
    assert "| full-length | 7.39 | 2.72 | 5.51 | 4.99 |" in text


def test_passkeys_stand_beside_the_papers_at_the_exhibits_lengths() -> None:
    scores = {
        "pose": Scores(hits={"passkey": {256: [(50, 50)], 4096: [(1, 50)]}}),
        "short": Scores(hits={"passkey": {256: [(49, 50)]}}),
    }
    text = markdown("passkey", {"yarn, 8x": scores})
    assert "| passkeys found | 256 | 4k | paper 1x | paper 2x | paper 4x | paper 8x | paper 12x | paper 16x |" in text
    assert "| PoSE | 100% | 2% | 90-100% | 90-100% | 90-100% | 90-100% | 0% | 0% |" in text
    assert "| short | 98% | – | – | – | – | – | – | – |" in text
    seeds = {"pose": Scores(hits={"passkey": {256: [(50, 50), (44, 50)]}})}
    assert "| PoSE | 94% (88% to 100%) |" in markdown("chunks", {"linear, 8x": seeds})
    assert "the lowest and the highest share of one seed" in markdown("chunks", {"linear, 8x": seeds})
    assert "paper 1x" not in markdown("chunks", {"linear, 8x": {"N = 2": scores["pose"]}})


def test_other_tasks_have_a_table_of_their_own() -> None:
    rows = {"skipwise": Scores(hits={"passkey": {256: [(50, 50)]}, "keys": {256: [(30, 50)]}}), "short": Scores()}
    text = markdown("better", {"trained on the library": rows})
    assert "| passkeys found | 256 |" in text
    assert "| one key of four found | 256 |" in text
    assert "| Skipwise | 60% |" in text
    assert "10% of the examples of PoSE, short, short, windows 4 times as long end in a passkey prompt" in text
    assert (
        "15% of the examples of Skipwise, Skipwise without skips are retrieval prompts, none worded as those measured."
        in text
    )


def test_a_row_is_compared_with_the_others_seed_by_seed() -> None:
    def row(*perplexities: float) -> Scores:
        return Scores({("x", 256): [math.log(value) for value in perplexities]})

    rows = {"original": row(8.0), "skipwise": row(10.0, 20.0, 40.0), "short": row(10.1, 20.0, 40.8), "pose": Scores()}
    text = markdown("better", {"trained on the mixture": rows})
    assert "| Skipwise's perplexity relative to each arm's, %, x | 256 |" in text
    # Of -0.990, 0 and -1.961 the mean is -0.984; their deviation 0.980 times 4.303 / sqrt(3) is 2.436.
    assert "| short | -1.0 [-3.4, +1.5] |" in text
    assert "| original | +191.7 [" in text
    assert "| PoSE | not measured |" in text
    for without in ({}, {"skipwise": Scores()}):
        assert "relative to each arm's" not in markdown(
            "better", {"trained on the mixture": {"short": row(9.0), **without}}
        )


def test_a_table_that_would_say_nothing_is_left_out() -> None:
    alone = {"original": Scores(), "skipwise": scored("x", 10.0), "pose": Scores()}
    text = markdown("better", {"trained on the library, 16x": alone})
    assert "| Skipwise | 10.0 |" in text
    assert "against PoSE" not in text
    assert "| text | perplexity | accuracy |" not in text
    assert "| the paper, per cent |" not in text  # which has no arm trained so, and its original alone compares nothing


def test_every_published_passkey_has_its_length() -> None:
    exhibit = EXHIBITS["passkey"]
    for setting in exhibit.settings:
        assert {len(shares) for shares in setting.retrieved.values()} == {len(exhibit.passkey)}


def test_a_block_states_no_claim_about_rows_that_it_has_not() -> None:
    scores = {"full": scored("x", 10.0, 9.0), "pose": scored("x", 10.0, 9.0)}
    text = markdown("gap", {"12M on 8M tokens": scores, "yarn, 8x": scores})
    assert text.count("- PoSE at most 1.03 x full-length, at every length: holds") == 2
    assert text.count("twice the steps, at every length: not measured") == 1
    names = [name for name, finding in found("gap", {"12M on 8M tokens": scores}) if finding.holds is None]
    assert names == []


def test_it_is_said_how_windows_were_read_and_what_was_not() -> None:
    scores = {"pose": scored("x", 10.0, 9.0, 8.0)}
    scores["pose"].reading.update({("x", 256): (128, 4), ("x", 512): (256, 4), ("x", 1024): (256, 4)})
    runs = plan_runs(EXHIBITS["main"], SCALES["nano"], seeds=[0], changes={"evaluation.source": ["x", "y"]})
    partial = [run for run in runs if (run.setting, run.variant) == ("linear, 16x", "full")]
    text = exhibit_markdown(EXHIBITS["main"], runs, {"linear, 16x": scores}, {}, {"linear, 16x": partial})
    assert (
        "Sliding windows at stride 128 (windows 256) and 256 (windows 512, 1k), over the first 8,192 tokens of 4 documents "
        "of each text. Not measured: y. Left out, because measured in part: full-length, seed 0." in text
    )
    assert "10% of the examples end in a passkey prompt" in text


@pytest.mark.parametrize(("text", "mathematics"), [("math", True), ("my-math", True), ("aftermath-novels", False)])
def test_the_papers_mathematics_stands_beside_mathematics(text, mathematics) -> None:
    assert ("Proof-pile 1x" in markdown("main", {"linear, 8x": {"pose": scored(text, 10.0, 9.0)}})) is mathematics


def test_rows_without_records_are_shown_as_not_measured() -> None:
    text = markdown(
        "extreme", {"yarn, 48x": {"yarn": Scores({("x", 4096): [1.0], ("x", 8192): [1.0]}), "short": Scores()}}
    )
    assert "| short | not measured | – | – | – |" in text
    text = markdown(
        "passkey",
        {"linear, 8x": {"pose": Scores(hits={"passkey": {256: [(5, 50)], 512: [(5, 50)]}}), "full": Scores()}},
    )
    assert "| full-length | not measured | – | 90-100% | 90-100% |" in text


@pytest.mark.parametrize(
    ("name", "label"), [("gap", "12M on 8M tokens"), ("families", "GPT-J"), ("extreme", "yarn, 64x")]
)
def test_short_is_a_row_where_pose_is(name, label) -> None:
    runs = plan_runs(EXHIBITS[name], SCALES["nano"], seeds=[0], changes={})
    assert "short" in {run.variant for run in runs if run.setting == label}


def test_the_papers_default_interpolation_is_the_first_block_of_the_passkeys() -> None:
    assert [setting.label for setting in EXHIBITS["passkey"].settings] == ["linear, 8x", "yarn, 8x"]


def test_the_gap_is_over_full_length_training_of_as_many_steps() -> None:
    rows = {
        "full": scored("x", *[10.0] * 4),
        "pose": scored("x", *[11.0] * 4),
        "short": Scores(),
        "full, twice the steps": scored("x", *[8.0] * 4),
        "pose, twice the steps": scored("x", *[10.0] * 4),
    }
    text = markdown("gap", {"yarn, 8x": rows})
    assert "| perplexity at 2k over full-length's | x |" in text
    assert "| PoSE | +10.0% |" in text
    assert "| pose, twice the steps | +25.0% |" in text
    assert "| short | not measured |" in text


def test_equal_tokens_are_said_beside_the_tables() -> None:
    rows = {"full": scored("x", 10.0), "pose": scored("x", 11.0)}
    told = "the paper gives every arm the same number of windows"
    assert told in markdown("main", {"linear, 8x": rows})
    assert told not in markdown("content", {"linear, 8x": {"v = 0": scored("x", 10.0), "v = u": scored("x", 10.0)}})


def test_passkeys_of_other_seeds_are_said() -> None:
    pose = scored("x", 10.0)
    pose.hits, pose.seeds = {"passkey": {256: [(5, 50)]}}, {"sliding": [0, 1, 2], "prompts": [0]}
    assert "Seeds 0, 1, 2; passkeys: seed 0. ±: standard deviation over seeds." in markdown(
        "passkey", {"linear, 8x": {"pose": pose}}
    )

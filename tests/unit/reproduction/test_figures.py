"""Figures are files that a page can link to."""

from reproduction.exhibits import EXHIBITS
from reproduction.figures import exhibit_figures
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import Scores


def test_every_block_has_its_files_and_names_without_spaces(tmp_path) -> None:
    exhibit = EXHIBITS["gap"]
    scores = {
        setting.label: {
            "pose, half the rate": Scores({("x", 256): [2.0]}),
            "full": Scores({("x", 256): [2.0], ("x", 512): [1.8]}),
            "pose": Scores({("x", 256): [2.0], ("x", 512): [1.9]}, hits={"passkey": {2048: [(3, 4)]}}),
        }
        for setting in exhibit.settings
    }
    drawn = exhibit_figures(exhibit, plan_runs(exhibit, SCALES["nano"], seeds=[0], changes={}), scores, tmp_path)
    assert set(drawn) == set(scores)
    legend = (tmp_path / "gap-yarn-8x-perplexity.csv").read_text()
    assert "pose" in legend
    assert "half the rate" not in legend
    assert drawn["yarn, 8x"] == {"gap-yarn-8x-perplexity": "Perplexity by window, x"}
    names = [name for names in drawn.values() for name in names]
    assert len(set(names)) == len(names) == len(scores)  # passkeys of one length are not drawn
    assert not any(" " in name for name in names)
    assert all((tmp_path / f"{name}.svg").exists() for name in names)

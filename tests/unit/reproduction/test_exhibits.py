"""Every exhibit resolves, and speaks of its own rows."""

import pytest

from reproduction import paper
from reproduction.claims import arms_of
from reproduction.exhibits import BASELINES, EXHIBITS, TRAINED
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.selection import chosen_exhibits
from skipwise.errors import RecipeError


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("name", sorted(EXHIBITS))
def test_every_exhibit_resolves_and_names_its_own_variants(name: str, scale: str) -> None:
    exhibit = EXHIBITS[name]
    rows = plan_runs(exhibit, SCALES[scale], seeds=[0], changes={})
    settings = [setting for setting in exhibit.settings if scale == "nano" or not setting.miniature]
    assert len(rows) == sum(len(setting.only or exhibit.variants) for setting in settings)
    assert len({(run.setting, run.variant) for run in rows}) == len(rows)
    for claim in exhibit.claims:
        assert set(arms_of(claim)) <= set(exhibit.variants)
    for setting in exhibit.settings:
        for rows in setting.published.values():
            assert set(rows) <= {*exhibit.variants, *BASELINES, *TRAINED}
            most = max(len(values) for row, values in rows.items() if row != "original")
            assert most <= (len(setting.windows) or setting.factor.bit_length())


def test_the_papers_exhibits_are_all_there_and_two_of_ours() -> None:
    asked = "main passkey efficiency families extreme original-ability content chunks coverage interpolation"
    assert set(EXHIBITS) == {*asked.split(), "gap", "better"}


def test_published_figures_are_as_in_the_paper() -> None:
    """Checked against the paper's tables by hand: corners and one in the middle of each."""
    assert paper.LINEAR_16K["GovReport"]["pi-only"][3] == 54.33
    assert paper.LINEAR_16K["Proof-pile"]["randpos"] == (7.26, 6.83, 6.76, 7.73)
    assert paper.LINEAR_32K["GovReport"]["pose"][-1] == 4.66
    assert paper.NTK_16K["Proof-pile"]["pose"][3] == 4.37
    assert paper.YARN_16K["GovReport"]["full"] == (4.78, 4.62, 4.54, 4.53)
    assert sum(paper.ABILITY["original", ""]) / 6 == pytest.approx(64.44, abs=0.01)


def test_unknown_exhibits_are_named() -> None:
    with pytest.raises(RecipeError, match=r"exhibit 'mian' is unknown \(did you mean main\?\); choose one of main, "):
        chosen_exhibits(["mian"])

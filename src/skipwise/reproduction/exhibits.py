"""What each exhibit compares, what the paper (PoSE, Zhu et al., ICLR 2024) reports for it, and when a claim holds.

The rules are written down before anything is run: a claim is an order between two arms, or a bound on one,
at every length that it names. Perplexities of the paper are GovReport's, in windows of 1, 2, 4, 8 and 16 times
the original 2,048 tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skipwise.errors import RecipeError
from skipwise.recipe import Recipe, nearest

BASELINES = ("original", "pi-only")
TRAINED = ("full", "randpos", "pose", "short", "cream")


@dataclass(frozen=True)
class Setting:
    """One block of an exhibit's table, and the paper's figures under it.

    Attributes:
        interpolation: a name of ``skipwise.interpolation.NAMES``.
        factor: target over original length.
        paper: variant -> what the paper reports at 1, 2, 4, ... times the original length; infinite where it
            says above 1,000.
    """

    interpolation: str
    factor: int
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As the table names it: ``yarn, 8x``."""
        return f"{self.interpolation}, {self.factor}x"


@dataclass(frozen=True)
class Lower:
    """Claim: at every length (or only beyond the original one) ``arm`` has at most ``factor`` x ``other``'s perplexity."""

    arm: str
    other: str
    factor: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class Finds:
    """Claim: ``arm`` finds at least ``least`` and at most ``most`` of the passkeys, at every length of a kind."""

    arm: str
    least: float = 0.0
    most: float = 1.0
    beyond: bool = False


Claim = Lower | Finds


@dataclass(frozen=True)
class Exhibit:
    """A table of the paper: variants of one recipe, measured alike.

    Attributes:
        name: as on the command line.
        title: what it shows.
        source: where the paper shows it.
        settings: the blocks of the table.
        variants: row label -> dotted recipe changes; the label is an arm of ``ARMS`` where there is one.
        claims: what the paper says, as rules.
        evaluation: changes to the recipe's evaluation.
    """

    name: str
    title: str
    source: str
    settings: tuple[Setting, ...]
    variants: Mapping[str, Mapping[str, Any]]
    claims: tuple[Claim, ...] = ()
    evaluation: Mapping[str, Any] = field(default_factory=dict)


def arm_changes(arm: str, base: Recipe, target: int, train: int) -> dict[str, Any]:
    """What an arm changes in the base recipe; all train on the same tokens in as many steps.

    ``full`` takes windows of ``target`` tokens, so that fewer of them make a step.
    """
    if arm in BASELINES:
        return {"evaluation.arms": [arm]}
    changes: dict[str, Any] = {"evaluation.arms": ["trained"], "positions.scheme": arm}
    if arm == "full":
        windows = max(1, base.training.batch_size * train // target)
        changes |= {"training.batch_size": windows, "training.per_device_train_batch_size": windows}
    return changes


_INF = float("inf")
_ORIGINAL = (4.74, _INF, _INF, _INF, _INF)
_LINEAR = {
    "original": _ORIGINAL[:4],
    "pi-only": (43.80, 43.35, 45.89, 54.33),
    "full": (4.87, 4.70, 4.61, 4.59),
    "pose": (4.84, 4.68, 4.60, 4.60),
}

EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            name="main",
            title="Perplexity by way of training",
            source="Table 1, linear interpolation",
            settings=(
                Setting(
                    "linear",
                    8,
                    {**_LINEAR, "randpos": (11.63, 11.17, 11.54, 15.16)},
                ),
                Setting(
                    "linear",
                    16,
                    {
                        "original": _ORIGINAL,
                        "randpos": (93.43, 95.85, 91.79, 93.22, 97.57),
                        "pose": (4.91, 4.76, 4.68, 4.64, 4.66),
                    },
                ),
            ),
            variants={arm: {} for arm in (*BASELINES, *TRAINED)},
            claims=(
                Lower("pose", "full", 1.03),
                Lower("pose", "pi-only"),
                Lower("pi-only", "original", beyond=True),
                Lower("pose", "randpos"),
            ),
        ),
        Exhibit(
            name="interpolation",
            title="The three interpolations",
            source="Table 5",
            settings=(
                Setting(
                    "linear",
                    8,
                    _LINEAR,
                ),
                Setting(
                    "ntk",
                    8,
                    {
                        "original": _ORIGINAL[:4],
                        "pi-only": (5.62, 5.61, 5.80, 550.0),
                        "full": (4.78, 4.63, 4.57, 7.24),
                        "pose": (4.79, 4.63, 4.57, 7.24),
                    },
                ),
                Setting(
                    "yarn",
                    8,
                    {
                        "original": _ORIGINAL[:4],
                        "pi-only": (5.57, 5.51, 5.57, 5.83),
                        "full": (4.78, 4.62, 4.54, 4.53),
                        "pose": (4.79, 4.63, 4.55, 4.55),
                    },
                ),
            ),
            variants={arm: {} for arm in (*BASELINES, "full", "pose", "short")},
            claims=(
                Lower("pose", "full", 1.03),
                Lower("pose", "pi-only"),
                Lower("pi-only", "original", beyond=True),
            ),
        ),
        Exhibit(
            name="passkey",
            title="Passkeys found",
            source="Figure 4b",
            settings=(Setting("yarn", 8),),
            variants={arm: {} for arm in (*BASELINES, *TRAINED)},
            claims=(
                Finds("pose", least=0.9),
                Finds("full", least=0.9),
                Finds("original", most=0.1, beyond=True),
            ),
            evaluation={"evaluation.passkey_trials": 50},
        ),
        Exhibit(
            name="content",
            title="Which text the chunks hold",
            source="Table 3",
            settings=(
                Setting(
                    "yarn",
                    8,
                    {
                        "v uniform": (4.84, 4.68, 4.60, 4.60),
                        "v = 0": (4.85, 4.72, 4.64, 4.68),
                        "v = u": (4.84, 4.68, 4.60, 4.60),
                    },
                ),
            ),
            variants={
                "v uniform": {"positions.content": "uniform"},
                "v = 0": {"positions.content": "zero"},
                "v = u": {"positions.content": "aligned"},
            },
            claims=(Lower("v = 0", "v uniform", 1.03), Lower("v = u", "v uniform", 1.03)),
        ),
        Exhibit(
            name="chunks",
            title="How many chunks, and which skips",
            source="Table 4 (Proof-pile)",
            settings=(
                Setting(
                    "yarn",
                    8,
                    {
                        "N = 1": (2.83, _INF, _INF, _INF),
                        "N = 2": (2.95, 2.74, 2.61, 2.60),
                        "N = 3": (2.93, 2.72, 2.60, 2.59),
                        "N = L_c": (7.26, 6.83, 6.76, 7.73),
                    },
                ),
            ),
            variants={
                "N = 1": {"positions.scheme": "short"},
                "N = 2": {},
                "N = 3": {"positions.chunks": 3},
                "N = L_c": {"positions.scheme": "randpos"},
                "N = 2, end-anchored": {"positions.skips": "end_anchored"},
            },
            claims=(Lower("N = 3", "N = 2", 1.01), Lower("N = 2", "N = L_c")),
        ),
    )
}


def find_exhibit(name: str) -> Exhibit:
    """The exhibit called ``name``.

    Raises:
        RecipeError: there is none; names the nearest and lists all.
    """
    if name not in EXHIBITS:
        raise RecipeError(
            f"exhibit {name!r} is unknown{nearest(name, EXHIBITS)}; there are {', '.join(EXHIBITS)}, and all"
        )
    return EXHIBITS[name]

"""What each exhibit compares, what the paper reports for it, and which of its claims are tested.

An exhibit is a table: rows (variants of one recipe), measured alike in blocks (settings), and the paper's claims as rules.
``runs.py`` makes run folders of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reproduction import paper
from reproduction.claims import Claim, Falls, Finds, FindsMore, Holds, Keeps, Lower, Reads, Recovers, arms_of
from skipwise.recipes.names import BASELINES
from skipwise.recipes.schema import Recipe

Changes = Mapping[str, Any]
Segments = tuple[Literal["original", "target"], ...]

TRAINED = ("full", "randpos", "pose", "short", "cream")
SCHEME_OF = {"skipwise": "pose", "skipwise-short": "short"}  # of arms that are a method, not a scheme


@dataclass(frozen=True)
class Setting:
    """One block of an exhibit's table, and the paper's figures for it.

    Attributes:
        interpolation: a name of ``skipwise.method.interpolation.NAMES``, where a variant does not choose its own.
        factor: target over original length.
        published: text -> variant -> what the paper reports at 1, 2, 4, ... times the original length.
        retrieved: variant -> the share of passkeys that the paper reports, at the exhibit's lengths.
        family: a family of models, in place of the recipe's own.
        miniature: there is no such block at the paper's scale.
        windows: of perplexity, and lengths of prompts, as multiples of the original length; default: doubled up to the
            target, and the exhibit's.
        only: the variants of this block; default: all.
        segments: lengths at which loss by position is measured; default: the exhibit's.
        name: of the block, where interpolation and factor do not say what is special about it.
        changes: to the recipe of every run of the block, over what the user changes.
    """

    interpolation: str
    factor: int
    published: paper.Published = field(default_factory=dict)
    retrieved: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    family: str | None = None
    miniature: bool = False
    windows: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    segments: Segments = ()
    name: str = ""
    changes: Changes = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As the table names it: ``yarn, 8x``."""
        return self.name or self.family or f"{self.interpolation}, {self.factor}x"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper.

    Attributes:
        name: as on the command line.
        title: what it shows.
        source: where the paper shows it.
        settings: the blocks of the table.
        variants: row label -> dotted recipe changes, or a function that makes them of the recipe and the original
            length; a label that is an arm's name stands for that arm.
        claims: what the paper says, as rules.
        changes: to the recipe of every run.
        full_size: further changes at the paper's scale.
        segments: lengths at which loss by position is measured.
        by_step: perplexity is measured during training too.
        passkey: lengths at which 50 passkeys are asked for, as multiples of the original length.
        texts: the paper's, by the last part of their names; if a user gives such a text, no other is measured on.
        show: the tables that are made of the records.
        compared: the row whose perplexity is compared with every other's, seed by seed.
        against: in the table of ratios, the row that a row is compared with where it is not ``full``.
        drawn: the rows that figures show, where all would be too many to tell apart.
    """

    name: str
    title: str
    source: str
    settings: tuple[Setting, ...] = ()
    variants: Mapping[str, Changes | Callable[[Recipe, int], Changes]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    full_size: Mapping[str, Any] = field(default_factory=dict)
    segments: Segments = ()
    by_step: bool = False
    passkey: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    show: tuple[str, ...] = ("perplexity", "by-position", "passkey")
    compared: str | None = None
    against: Mapping[str, str] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()

    def claims_in(self, setting: Setting) -> list[Claim]:
        """The claims about the variants that a block has."""
        rows = set(setting.only or self.variants)
        return [claim for claim in self.claims if set(arms_of(claim)) <= rows]


def arm_changes(arm: str, base: Recipe, target: int, train: int) -> dict[str, Any]:
    """What an arm changes in the base recipe; all arms train on equally many tokens in equally many steps.

    ``full`` has windows of ``target`` tokens, so fewer of them make a step, but at least one.
    ``selection.require_same_budget`` refuses a step of more tokens than the other arms have.
    """
    if arm in BASELINES:
        return {"evaluation.arms": [arm]}
    changes: dict[str, Any] = {"evaluation.arms": ["trained"], "positions.scheme": SCHEME_OF.get(arm, arm)}
    if arm == "full":
        windows = max(1, base.training.batch_size * train // target)
        micro = max(1, base.training.per_device_train_batch_size * train // target)
        changes |= {"training.batch_size": windows, "training.per_device_train_batch_size": micro}
    return changes


def _lever(
    scheme: str, *, rate: float = 1.0, steps: int = 1, context: float = 0.0, **positions: Any
) -> Callable[[Recipe, int], Changes]:
    """A scheme with its learning rate and steps multiplied, and without the labels that have less of their own text
    before them than ``context`` times the original length."""
    return lambda recipe, original: {
        "positions.scheme": scheme,
        "training.learning_rate": rate * recipe.training.learning_rate,
        "training.max_steps": steps * recipe.training.max_steps,
        "data.min_context": max(recipe.data.min_context, int(context * original)),
        **{f"positions.{name}": value for name, value in positions.items()},
    }


def _wider(times: int, **changes: Any) -> Callable[[Recipe, int], Changes]:
    """Windows several times as long and as many times fewer, so that a step has the same tokens; and other changes."""
    return lambda recipe, original: {
        **changes,
        "train_length": times * recipe.train_length_of(original),
        "training.batch_size": max(1, recipe.training.batch_size // times),
        "training.per_device_train_batch_size": max(1, recipe.training.per_device_train_batch_size // times),
    }


_YARN = Setting("yarn", 8, paper.YARN_16K)
_RIVALS = ("original", "pose", "short", "skipwise")
_TASKS = ["passkey", "keys", "lines"]
# As nano-pose has it; an arm with longer windows leaves shorter documents out.
_LIBRARY = {"data.source": "stdlib", "data.held_out": 0.1, "data.min_tokens": 256}
# As many tokens a step of a base with a window twice as long.
_HALF_BATCH = {"training.batch_size": 8, "training.per_device_train_batch_size": 8}
_PAPERS_ORDER = (
    Lower("pose", "full", 1.03),
    Lower("pose", "pi-only", 0.97, beyond=True),
    Lower("full", "pi-only", 0.97, beyond=True),
    Lower("pi-only", "original", 0.5, beyond=True),
    Recovers("pose"),
)
_PLAIN = {"linear": {"interpolation": "linear"}, "ntk": {"interpolation": "ntk"}, "yarn": {"interpolation": "yarn"}}

EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            name="main",
            title="Perplexity by way of training",
            source="Table 1",
            settings=(Setting("linear", 8, paper.LINEAR_16K), Setting("linear", 16, paper.LINEAR_32K)),
            variants={arm: {} for arm in (*BASELINES, *TRAINED)},
            claims=(*_PAPERS_ORDER, Falls("pose"), Lower("pose", "randpos"), Reads("pose", "short")),
            segments=("target",),
        ),
        Exhibit(
            name="interpolation",
            title="The three interpolations",
            source="Table 6",
            settings=(Setting("linear", 8, paper.LINEAR_16K), Setting("ntk", 8, paper.NTK_16K), _YARN),
            variants={arm: {} for arm in (*BASELINES, "full", "pose")},
            claims=_PAPERS_ORDER,
        ),
        Exhibit(
            name="passkey",
            title="Passkeys found",
            source="Figure 2b",
            settings=(Setting("linear", 8, retrieved=paper.PASSKEY), Setting("yarn", 8, retrieved=paper.PASSKEY)),
            variants={arm: {} for arm in (*BASELINES, *TRAINED)},
            claims=(
                Finds("pose", least=0.9),
                Finds("full", least=0.9),
                *(Finds(arm, most=0.1, beyond=True) for arm in ("original", "pi-only", "randpos")),
                FindsMore("pose", "short"),
                Reads("pose", "short"),
                Lower("pose", "randpos"),
            ),
            segments=("target",),
            passkey=(1, 2, 4, 8, 12, 16),
        ),
        Exhibit(
            name="efficiency",
            title="Memory and time by target, perplexity by step",
            source="Figure 3",
            settings=(Setting("yarn", 8),),
            variants={"full": {}, "pose": {}},
            by_step=True,
            show=("costs", "steps"),
        ),
        Exhibit(
            name="families",
            title="Families and interpolations, on the first tokens of a text",
            source="Figure 4",
            settings=tuple(Setting("yarn", 8, family=family) for family in paper.FAMILIES),
            variants={"original": {}, **_PLAIN, "short": {}},
            claims=(
                Holds("original", least=2.0),
                Holds("linear", most=1.0),
                Holds("yarn", most=1.0),
                Holds("ntk", most=1.0),
            ),
            segments=("target",),
            show=("curves",),
        ),
        Exhibit(
            name="extreme",
            title="48 and 64 times the window",
            source="Table 2",
            settings=(
                Setting("yarn", 48, paper.EXTREME_96K, windows=(16, 32, 48)),
                Setting("yarn", 64, paper.EXTREME_128K, windows=(16, 32, 48, 64)),
            ),
            variants={**{arm: {} for arm in BASELINES}, **_PLAIN, "short": {}},
            claims=(Lower("yarn", "linear"), Lower("yarn", "ntk", beyond=True), Lower("yarn", "pi-only")),
            changes={"evaluation.documents": 2},
            full_size={"evaluation.documents": 20, "evaluation.stride": 16 * 1024},
            texts=("books",),
        ),
        Exhibit(
            name="original-ability",
            title="What extension costs inside the original window",
            source="Table 3",
            settings=(
                *(Setting(name, 8, windows=(1,)) for name in _PLAIN),
                Setting("yarn", 64, windows=(1,), only=("original", "pose")),
            ),
            variants={"original": {}, "full": {}, "pose": {}},
            claims=(Keeps("full", "original"), Keeps("pose", "original")),
            changes={"evaluation.segments": 256},
            segments=("original",),
            show=("ability",),
        ),
        Exhibit(
            name="content",
            title="Which text the chunks hold",
            source="Table 4",
            settings=(Setting("linear", 8, paper.CONTENT),),
            variants={
                "v uniform": {"positions.content": "even"},
                "v = 0": {"positions.content": "zero"},
                "v = u": {"positions.content": "aligned"},
            },
            claims=(Lower("v = 0", "v uniform", 1.03), Lower("v = u", "v uniform", 1.03)),
            segments=("target",),
            passkey=(1, 2, 4, 8),
        ),
        Exhibit(
            name="chunks",
            title="How many chunks, and which skips",
            source="Table 5",
            settings=(Setting("linear", 8, paper.CHUNKS),),
            variants={
                "original": {},
                "N = 1": {"positions.scheme": "short"},
                "N = 2": {},
                "N = 3": {"positions.chunks": 3},
                "N = L_c": {"positions.scheme": "randpos"},
                "N = 2, end-anchored": {"positions.skips": "end_anchored"},
            },
            claims=(
                Lower("N = 3", "N = 2", 1.01),
                Lower("N = 2", "N = L_c"),
                Lower("N = 2", "original", 0.5, beyond=True),
                FindsMore("N = 2", "N = 1"),
                Reads("N = 2", "N = 1"),
                FindsMore("N = 2, end-anchored", "N = 2"),
                Reads("N = 2, end-anchored", "N = 2"),
            ),
            segments=("target",),
            passkey=(1, 2, 4, 8),
        ),
        Exhibit(
            name="gap",
            title="The gap between PoSE and full-length training, and what changes it",
            source="claim that PoSE matches full-length training (Table 1)",
            settings=(
                Setting("yarn", 8),
                *(
                    Setting("yarn", 8, family=base, miniature=True, only=("full", "short", "pose"))
                    for base in ("2.6M on 2M tokens", "2.6M on 8M tokens", "12M on 8M tokens")
                ),
            ),
            variants={
                "full": {},
                "short": {},
                "pose": {},
                "pose, end-anchored": _lever("pose", skips="end_anchored"),
                "pose, 3 chunks": _lever("pose", chunks=3),
                "pose, aligned content": _lever("pose", content="aligned"),
                "pose, labels with context": _lever("pose", context=0.25),
                "pose, half the rate": _lever("pose", rate=0.5),
                "pose, these three": _lever("pose", content="aligned", context=0.25, rate=0.5),
                "short, the last two": _lever("short", context=0.25, rate=0.5),
                "full, half the rate": _lever("full", rate=0.5),
                "pose, twice the steps": _lever("pose", steps=2),
                "full, twice the steps": _lever("full", steps=2),
                "pose, windows twice as long": _wider(2),
                "pose, windows 4 times as long": _wider(4),
            },
            claims=(
                Lower("pose", "full", 1.03),
                Lower("pose, these three", "full, half the rate", 1.03),
                Reads("pose, these three", "short, the last two"),
                FindsMore("pose, these three", "short, the last two"),
                Lower("pose, twice the steps", "full, twice the steps", 1.03),
                Lower("pose, windows twice as long", "full", 1.03),
                Lower("pose, windows 4 times as long", "full", 1.03),
            ),
            segments=("target",),
            passkey=(8,),
            show=("ratios", "perplexity", "by-position", "passkey"),
            against={"pose, twice the steps": "full, twice the steps"},
            drawn=(
                "full",
                "short",
                "pose",
                "pose, these three",
                "pose, windows twice as long",
                "pose, windows 4 times as long",
            ),
        ),
        Exhibit(
            name="better",
            title="Skipwise's own method beside PoSE",
            source="main experiment (Table 1) with our own settings",
            settings=(
                Setting(
                    "yarn",
                    8,
                    name="trained on the library",
                    only=(*_RIVALS, "short, windows 4 times as long", "Skipwise without skips"),
                    miniature=True,
                    changes=_LIBRARY | {"evaluation.tasks": _TASKS},
                ),
                Setting(
                    "yarn", 8, name="trained on the mixture", only=(*_RIVALS, "cream", "full"), segments=("target",)
                ),
                *(
                    Setting(
                        "yarn",
                        factor,
                        name=f"trained on the library, {factor}x",
                        windows=(1, factor),
                        only=("original", "pose", "skipwise", "Skipwise without skips"),
                        segments=("original",),
                        miniature=True,
                        changes=_LIBRARY | {"evaluation.documents": 2},
                    )
                    for factor in (16, 64)
                ),
                Setting(
                    "yarn",
                    8,
                    name="another base, trained on the library",
                    family="LLaMA2",
                    only=(*_RIVALS, "short, windows 4 times as long", "Skipwise without skips"),
                    miniature=True,
                    changes=_LIBRARY | _HALF_BATCH,
                ),
            ),
            variants={
                **{arm: {} for arm in (*_RIVALS, "cream", "full")},
                "skipwise": _wider(4, method="skipwise"),  # as the recipe nano has it
                "short, windows 4 times as long": _wider(4, **{"positions.scheme": "short"}),
                "Skipwise without skips": _wider(4, method="skipwise", **{"positions.scheme": "short"}),
            },
            claims=(
                FindsMore("pose", "short"),
                Lower("skipwise", "short"),
                Lower("skipwise", "short, windows 4 times as long"),
                Lower("skipwise", "pose"),
                Lower("skipwise", "full", 1.03),
                Keeps("skipwise", "original"),
                Finds("skipwise", least=0.98),
                FindsMore("skipwise", "short"),
                Lower("skipwise", "Skipwise without skips"),
                FindsMore("skipwise", "Skipwise without skips"),
            ),
            segments=("original", "target"),
            passkey=(1, 2, 4, 8),
            compared="skipwise",
            show=("perplexity", "by-position", "ability", "passkey"),
        ),
        Exhibit(
            name="coverage", title="Which relative distances one example trains", source="Figure 5", show=("coverage",)
        ),
    )
}

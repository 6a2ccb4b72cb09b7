"""What each exhibit compares, what the paper reports for it, and which of its claims are tested.

An exhibit is a table: rows (variants of one recipe), measured alike in blocks, and the paper's claims as rules. ``runs.py``
makes its run folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reproduction import paper
from reproduction.claims import Claim, Falls, Finds, FindsMore, Holds, Keeps, Lower, rows_of
from skipwise.recipes.names import BASELINES

TRAINED = ("full_length", "randpos", "pose", "no_skip")


@dataclass(frozen=True)
class Row:
    """A row of a table: an arm, and what else it changes in the block's recipe."""

    arm: str  # of BASELINES, which are not trained, or of TRAINED, position schemes
    interpolation: str = ""
    positions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """One block of an exhibit's table, and the paper's figures for it."""

    interpolation: str  # where a row does not choose its own; empty: all do
    factor: int  # target over original length
    published: paper.Published = field(default_factory=dict)  # at ``windows``
    retrieved: paper.Retrieved = field(default_factory=dict)  # passkeys, at the exhibit's lengths
    family: str = ""  # of models, in place of the recipe's own
    windows: tuple[int, ...] = ()  # of perplexity, over the original length; default: doubled up to the target
    only: tuple[str, ...] = ()  # the rows of this block; default: all

    @property
    def label(self) -> str:
        """As the table names it: ``yarn, 8x``."""
        return self.family or (f"{self.interpolation}, " if self.interpolation else "") + f"{self.factor}x"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper; lengths are multiples of the original length."""

    name: str
    title: str
    source: str  # where the paper shows it
    blocks: tuple[Block, ...] = ()
    rows: Mapping[str, Row] = field(default_factory=dict)  # by label
    claims: tuple[Claim, ...] = ()
    seeds: int = 1  # of the trained rows; default of the command
    segments: Literal["original", "target"] | None = None  # the length at which loss by position is measured
    by_step: bool = False  # perplexity is measured during training too
    passkey: tuple[int, ...] = ()  # lengths of 50 passkey prompts each
    stride: int = 0  # of the windows; default: half the original length
    documents: int = 0  # the largest number of each text; default: the recipe's
    show: Literal["perplexity", "passkey", "costs", "curves", "ability", "coverage"] = "perplexity"

    def rows_in(self, block: Block) -> tuple[str, ...]:
        """The rows that a block has."""
        return block.only or tuple(self.rows)

    def claims_in(self, block: Block) -> list[Claim]:
        """The claims about the rows that a block has."""
        return [claim for claim in self.claims if rows_of(claim) <= set(self.rows_in(block))]


def _arms(*names: str) -> dict[str, Row]:
    return {name: Row(name) for name in names}


_PLAIN = {name: Row("pose", name) for name in ("linear", "ntk", "yarn")}
_BEYOND = (Lower("pose", "original", 0.5, beyond=True), Lower("pose", "no_skip", beyond=True))

EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            name="main",
            title="Perplexity by way of training",
            source="Table 1; YaRN: Table 6",
            blocks=(
                Block("linear", 8, paper.LINEAR_16K),
                Block("linear", 16, paper.LINEAR_32K, only=("original", "randpos", "pose", "no_skip")),
                Block("yarn", 8, paper.YARN_16K, only=("original", "full_length", "pose", "no_skip")),
            ),
            rows=_arms("original", "full_length", "randpos", "pose", "no_skip"),
            claims=(Lower("pose", "full_length", 1.03), Falls("pose"), Lower("pose", "randpos"), *_BEYOND),
            seeds=3,
        ),
        Exhibit(
            name="passkey",
            title="Passkeys found",
            source="Figure 2b",
            blocks=(
                Block("linear", 8, retrieved=paper.PASSKEY_16K),
                Block("linear", 16, retrieved=paper.PASSKEY_32K, only=("original", "pose", "no_skip")),
                Block("yarn", 8, only=("original", "untrained", "full_length", "pose", "no_skip")),
            ),
            rows=_arms(*BASELINES, "full_length", "randpos", "pose", "no_skip"),
            claims=(
                Finds("pose", least=0.9),
                Finds("full_length", least=0.9),
                *(Finds(row, most=0.1, beyond=True) for row in ("original", "untrained", "randpos")),
                FindsMore("pose", "no_skip"),
            ),
            seeds=3,
            passkey=(1, 2, 4, 8, 12, 16),
            show="passkey",
        ),
        Exhibit(
            name="efficiency",
            title="Memory and time by target, perplexity by step",
            source="Figure 3",
            blocks=(Block("linear", 8),),
            rows=_arms("full_length", "pose"),
            by_step=True,
            show="costs",
        ),
        Exhibit(
            name="families",
            title="Families and interpolations, on the first tokens of a text",
            source="Figure 4",
            blocks=tuple(Block("", factor, family=family, windows=(1,)) for family, factor in paper.FACTORS.items()),
            rows=_arms("original") | _PLAIN,
            claims=(
                Holds("original", least=2.0),
                Holds("linear", most=1.0),
                Holds("yarn", most=1.0),
                Holds("ntk", most=1.0),
            ),
            segments="target",
            show="curves",
        ),
        Exhibit(
            name="extreme",
            title="48 and 64 times the window",
            source="Table 2 (96k, 128k)",
            blocks=(
                Block("", 48, paper.EXTREME_96K, windows=(16, 32, 48)),
                Block("", 64, paper.EXTREME_128K, windows=(16, 32, 48, 64)),
            ),
            rows={
                **_arms("original"),
                **{f"no training, {name}": Row("untrained", name) for name in ("linear", "yarn")},
                **_PLAIN,
                "yarn-revised": Row("pose", "yarn-revised"),
                **{f"no skips, {name}": Row("no_skip", name) for name in ("linear", "yarn")},
            },
            claims=(
                Lower("yarn", "linear"),
                Lower("yarn", "ntk"),
                Lower("yarn-revised", "linear"),
                Lower("yarn-revised", "ntk"),
                Lower("yarn", "no training, yarn"),
                Lower("linear", "no training, linear"),
                Lower("yarn", "no skips, yarn"),
                Lower("linear", "no skips, linear"),
            ),
            seeds=3,
            stride=8,
            documents=20,
        ),
        Exhibit(
            name="original-ability",
            title="What extension costs inside the original window",
            source="Table 3 (BoolQ, PIQA, ...)",
            blocks=(
                *(Block(name, 8, windows=(1,)) for name in _PLAIN),
                *(Block(name, 64, windows=(1,), only=("original", "pose")) for name in _PLAIN),
            ),
            rows=_arms("original", "full_length", "pose"),
            claims=(Keeps("full_length", "original"), Keeps("pose", "original")),
            segments="original",
            show="ability",
        ),
        Exhibit(
            name="content",
            title="Which text the chunks hold",
            source="Table 4",
            blocks=(Block("linear", 8, paper.CONTENT),),
            rows={
                "v uniform": Row("pose"),
                "v = 0": Row("pose", positions={"content": "zero"}),
                "v = u": Row("pose", positions={"content": "aligned"}),
            },
            claims=(Lower("v = 0", "v uniform", 1.03), Lower("v = u", "v uniform", 1.03)),
        ),
        Exhibit(
            name="chunks",
            title="How many chunks",
            source="Table 5",
            blocks=(Block("linear", 8, paper.CHUNKS),),
            rows={
                **_arms("original", "no_skip"),
                "N = 2": Row("pose"),
                "N = 3": Row("pose", positions={"chunks": 3}),
                "N = L_c": Row("randpos"),
            },
            claims=(
                Lower("N = 3", "N = 2", 1.01),
                Lower("N = 2", "N = L_c"),
                Lower("N = 2", "original", 0.5, beyond=True),
                Lower("N = 2", "no_skip", beyond=True),
            ),
        ),
        Exhibit(
            name="interpolation",
            title="The interpolations",
            source="Table 6",
            blocks=(
                Block("linear", 8, paper.LINEAR_16K),
                Block("ntk", 8, paper.NTK_16K),
                Block("yarn", 8, paper.YARN_16K),
                Block("yarn-revised", 8, paper.YARN_16K),
            ),
            rows=_arms(*BASELINES, "full_length", "pose"),
            claims=(
                Lower("pose", "full_length", 1.03),
                Lower("pose", "untrained", 0.97, beyond=True),
                Lower("full_length", "untrained", 0.97, beyond=True),
                Lower("untrained", "original", 0.5, beyond=True),
            ),
            seeds=3,
        ),
        Exhibit(
            name="coverage",
            title="Which relative distances one example trains",
            source="Figures 5 and 6",
            show="coverage",
        ),
    )
}

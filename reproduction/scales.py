"""The two sizes at which the same code runs every exhibit: in miniature, and with the paper's models on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ScaleName = Literal["nano", "paper"]


@dataclass(frozen=True)
class Shape:
    """What decides a model's cost: parameters, layers, width, vocabulary; and its window in tokens."""

    parameters: float
    layers: int
    width: int
    vocabulary: int
    window: int


# As their configurations on the hub say (parameters counted from them).
MODELS = {
    "huggyllama/llama-7b": Shape(6.74e9, 32, 4096, 32_000, 2048),
    "meta-llama/Llama-2-7b-hf": Shape(6.74e9, 32, 4096, 32_000, 4096),
    "EleutherAI/gpt-j-6b": Shape(6.05e9, 28, 4096, 50_400, 2048),
    "baichuan-inc/Baichuan2-7B-Base": Shape(7.51e9, 32, 4096, 125_696, 4096),
}


@dataclass(frozen=True)
class Scale:
    """A size to reproduce at.

    Attributes:
        name: as on the command line.
        recipe: that every arm changes.
        window: original length that the exhibits are written for; another base is measured at its own multiples.
        families: model of each family; those missing are the recipe's own, or small bases trained here.
        texts: what the exhibits are measured on where the user gives none.
        steps: of training, at which the efficiency exhibit measures perplexity.
        family_target: target of every family, whatever its window; None: the exhibit's factor times the window.
        bases: folders of small bases by name, where they are known although their text is not here.
    """

    name: ScaleName
    recipe: str
    window: int
    families: Mapping[str, str]
    texts: tuple[str, ...]
    steps: tuple[int, ...]
    family_target: int | None = None
    bases: Mapping[str, str] = field(default_factory=dict)


SCALES = {
    "nano": Scale("nano", "nano-pose", 256, {}, ("stdlib", "pydoc"), (10, 30, 100, 200, 300, 400)),
    "paper": Scale(
        "paper",
        "llama-7b-16k",
        2048,
        {
            "LLaMA": "huggyllama/llama-7b",
            "LLaMA2": "meta-llama/Llama-2-7b-hf",
            "GPT-J": "EleutherAI/gpt-j-6b",
            "Baichuan2": "baichuan-inc/Baichuan2-7B-Base",
        },
        (),
        (10, 30, 100, 300, 1000),
        family_target=16 * 1024,
    ),
}

"""The run's configuration: typed, validated, and written out whole into every run folder.

A recipe is YAML with the fields below; an unknown key is an error that names the nearest valid one. One that begins from
another names it by ``like`` and says what differs.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from skipwise.errors import RecipeError
from skipwise.lengths import parse_length

Interpolation = Literal["none", "linear", "ntk", "yarn", "yarn-revised"]
Scheme = Literal["pose", "randpos", "cream", "full", "short"]
Arm = Literal["original", "pi-only", "trained"]

_MOST = 2**31 - 1  # of steps and of examples
_LAST_SEED = 2**32 - 1  # numpy takes no more
_LORA_RATE = 2e-4  # ten times that of all weights


def _length(value: Any) -> Any:
    """Let pydantic report our length error as its own."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number of tokens, as 2048 or 2k")
    try:
        return parse_length(value)
    except RecipeError as error:
        raise ValueError(str(error)) from error


def _no_truth(value: Any) -> Any:
    """Keep pydantic from reading true as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _listed(value: Any) -> Any:
    """Read one text as a list of one."""
    return [value] if isinstance(value, str) else value


def _layers(value: Any) -> Any:
    """Read one name as a list of one."""
    return [value] if isinstance(value, str) and value != "all-linear" else value


Whole = Annotated[int, BeforeValidator(_no_truth)]
Real = Annotated[float, BeforeValidator(_no_truth)]
Length = Annotated[int, BeforeValidator(_length), Field(gt=0)]


class Section(BaseModel):
    """A part of the recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class Positions(Section):
    """Which positions the training examples get (``skipwise.positions``)."""

    scheme: Scheme = Field("pose", description="pose, or a rival or control: randpos, cream, full, short")
    chunks: Whole = Field(2, ge=1, description="N, the number of chunks (pose)")
    lengths: Literal["paper", "released"] = Field("paper", description="how chunk lengths are drawn (pose)")
    skips: Literal["uniform", "end_anchored"] = Field(
        "uniform",
        description="how skips are drawn: uniform (the paper), end_anchored (even coverage to L_t - 1)",
    )
    content: Literal["uniform", "zero", "aligned"] = Field(
        "uniform", description="content offsets v_i: uniform, zero (contiguous text), or aligned (v_i = u_i)"
    )


class Data(Section):
    """Which text is trained on and what is held out."""

    source: str = Field(
        "stdlib", description="a file or folder, a Hugging Face data set name or folder, or stdlib"
    )
    split: str = Field("train", description="the split of a Hugging Face data set")
    subset: str | None = Field(None, description="its subset (configuration) on the hub; default: its own")
    stream: bool = Field(
        False, description="read a data set of the hub as it comes, not fetched whole; up to max_tokens"
    )
    max_tokens: Length | None = Field(
        None, description="read no document after the one that reaches so many tokens; default: all"
    )
    text_field: str = Field(
        "text", description="the field of JSON Lines, Parquet or a data set that holds the text"
    )
    min_tokens: Length | None = Field(None, description="shortest document kept; default: the train length")
    held_out: Real = Field(
        0.1, ge=0, lt=1, description="share of documents held out, by a hash of their name"
    )
    passkey: Real = Field(0.0, ge=0, le=1, description="share of examples that are passkey prompts")
    train_jumps: bool = Field(False, description="train the label that follows a jump of the content")
    min_context: Whole = Field(
        0, ge=0, description="train no label before which fewer tokens of its own text stand"
    )
    cache: str | None = Field(None, description="token cache folder; default: the user's cache folder")
    workers: Whole | None = Field(None, ge=1, description="threads that tokenise; default: all cores")

    @property
    def reading(self) -> dict[str, Any]:
        """What decides the documents beside the source: options of ``open_corpus``."""
        return self.model_dump(include={"text_field", "split", "subset", "stream"})

    @property
    def tokenising(self) -> dict[str, Any]:
        """Options of ``build_token_store``."""
        return self.reading | self.model_dump(include={"max_tokens", "cache", "workers"})

    @model_validator(mode="after")
    def _stream_ends(self) -> "Data":
        if self.stream and self.max_tokens is None:
            raise ValueError(
                f"data.stream reads {self.source} from its beginning and must know where to stop: set data.max_tokens; "
                "a run trains on training.max_steps x training.batch_size x train_length tokens"
            )
        return self


class Training(BaseModel):
    """Any field of ``transformers.TrainingArguments``, with the paper's settings as defaults.

    ``batch_size`` is the global batch in examples: gradient accumulation follows from it, the micro-batch
    and the number of processes, so that one GPU and eight see the same examples in each step.
    """

    model_config = ConfigDict(extra="allow", validate_default=True, allow_inf_nan=False)

    max_steps: Whole = Field(1000, gt=0, le=_MOST, description="optimizer steps")
    batch_size: Whole = Field(64, gt=0, le=_MOST, description="examples in each step, over all processes")
    per_device_train_batch_size: Whole = Field(1, gt=0, le=_MOST, description="examples in one forward pass")
    learning_rate: Real = Field(2e-5, gt=0)
    lr_scheduler_type: str = "linear"
    warmup_steps: Real = Field(10, ge=0, le=_MOST, description="steps, or below 1 a share of max_steps")
    optim: str = "adamw_torch"
    precision: Literal["auto", "bf16", "fp16", "float32"] = Field(
        "auto", description="auto takes bf16 autocast where the machine is fast at it"
    )
    save_steps: Whole = Field(100, gt=0, le=_MOST, description="steps between checkpoints")
    save_total_limit: Whole = Field(2, gt=0, le=_MOST, description="complete checkpoints kept")
    logging_steps: Whole = Field(10, gt=0, le=_MOST)


class Lora(Section):
    """Train low-rank additions to frozen weights in place of all weights (``skipwise.model.lora``)."""

    rank: Whole = Field(16, ge=1, description="r, the rank of each addition")
    alpha: Real | None = Field(
        None, gt=0, description="an addition counts alpha / rank times; default: twice the rank"
    )
    dropout: Real = Field(0.0, ge=0, lt=1)
    targets: Annotated[Literal["all-linear"] | list[str], BeforeValidator(_layers)] = Field(
        "all-linear", description="names of layers, or all-linear: all but the output layer"
    )
    also: list[Literal["embeddings", "norms"]] = Field(
        [], description="trained whole besides: embeddings, norms"
    )
    base: Literal["auto", "float32", "4bit"] = Field(
        "auto",
        description="how the frozen weights are held in training; auto: as training.precision computes",
    )
    saved: Literal["merged", "adapter"] = Field(
        "merged", description="what is saved: merged, a stock checkpoint; or the adapter alone"
    )


class Evaluation(Section):
    """What is measured after training, on held-out documents."""

    arms: list[Arm] = Field(
        ["original", "pi-only", "trained"], min_length=1, description="which models are measured"
    )
    source: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)] | None = Field(
        None, description="other text to measure on, one or a list; default: what data held out"
    )
    windows: list[Length] | None = Field(
        None,
        min_length=1,
        description="sliding windows; default: the original length, doubled up to the target",
    )
    stride: Length | None = Field(
        None,
        description="default: half the original length as in the paper, for far targets target / 16; at most half the window",
    )
    documents: Whole = Field(8, gt=0, description="how many documents at the most")
    tokens_per_document: Length | None = Field(None, description="default: twice the largest window")
    passkey_lengths: list[Length] | None = Field(None, min_length=1, description="default: the windows")
    passkey_trials: Whole = Field(50, ge=0, description="prompts a length; 0 leaves passkey out")
    segment_lengths: list[Length] | None = Field(
        None, min_length=1, description="read segments of these lengths, for loss by position; default: none"
    )
    segments: Whole = Field(32, gt=0, description="how many segments of each length at the most")
    steps: list[Annotated[Whole, Field(gt=0)]] | None = Field(
        None,
        description="training steps after which perplexity of the first text at the largest window is measured too",
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="whose weights are saved: the last step's, or of it and steps the one that reads far text best",
    )


class Recipe(Section):
    """One extension: a model, a target, the method and the text.

    Raises:
        RecipeError: through ``load_recipe``; names the key, its rule and the nearest valid name.
    """

    model: str = Field("nano", description="nano (embedded), a folder, or a model name on the hub")
    target: Length | None = Field(None, description="target length L_t; default: 8 times the original")
    original_length: Length | None = Field(None, description="L_c; default: what the model's config says")
    train_length: Length | None = Field(None, description="window trained on; default: the original length")
    interpolation: Interpolation = "yarn"
    existing_rope: Literal["refuse", "replace"] = Field(
        "refuse", description="what to do with a model whose config is scaled already"
    )
    seed: Whole = Field(0, ge=0, le=_LAST_SEED)
    positions: Positions = Positions()
    data: Data = Data()
    training: Training = Training()
    lora: Lora | None = Field(None, description="train low-rank additions only; default: all weights")
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.lora and "learning_rate" not in self.training.model_fields_set:
            self.training.learning_rate = _LORA_RATE
        if self.train_length and self.positions.chunks > self.train_length:
            raise ValueError(
                f"positions.chunks {self.positions.chunks} must not exceed train_length {self.train_length}: "
                "a chunk has at least one token"
            )
        rule, last = self.evaluation, self.training.max_steps
        if rule.keep == "best" and not any(step < last for step in rule.steps or []):
            raise ValueError(
                f"evaluation.keep 'best' compares the last step, {last:,}, with those of evaluation.steps, of which none "
                f"is before it ({rule.steps}); give such steps, or set evaluation.keep=last"
            )
        return self


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package, for ``--recipe NAME``."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in resources.files("skipwise").joinpath("recipes").iterdir()
        if entry.name.endswith(".yaml")
    )


def load_recipe(source: str | Path | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from a YAML file or by its shipped name, then apply dotted ``changes``.

    Args:
        source: a path, a shipped name (``nano``, or ``recipes/nano.yaml``), or None for the defaults above.
        changes: ``{"training.learning_rate": 1e-5, ...}``; each wins over the file.

    Raises:
        RecipeError: the file is missing or not YAML, a key is unknown, a value breaks its rule.
    """
    read = {} if source is None else _read_yaml(source)
    values = {key: value for key, value in read.items() if value is not None}
    for key, value in (changes or {}).items():
        _set_dotted(values, key, value)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_explain(error)) from None


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Read ``key=value`` words; the value is YAML, so ``1e-5``, ``true`` and ``[1k, 2k]`` mean what they say.

    Raises:
        RecipeError: a word has no ``=`` or its value is not YAML.
    """
    changes = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {word!r} must be KEY=VALUE, as training.learning_rate=1e-5")
        try:
            changes[key.strip()] = _number(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise RecipeError(f"--set {key}: {text!r} is not a YAML value ({error})") from None
    return changes


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write every setting, defaults included, as YAML that ``load_recipe`` reads back equal."""
    path.write_text(
        yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True), encoding="utf-8"
    )


def nearest(name: str, valid: Iterable[str]) -> str:
    """`` (did you mean x?)`` for the valid name closest to ``name``, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _read_yaml(source: str | Path, behind: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys of a recipe over those that it is like; ``behind`` are the recipes that led here."""
    path = Path(source)
    name = str(source).removeprefix("recipes/").removesuffix(".yaml")
    if not path.is_file() and name in shipped_recipes():
        path = Path(str(resources.files("skipwise").joinpath("recipes", f"{name}.yaml")))
    if not path.is_file():
        shipped = shipped_recipes()
        raise RecipeError(
            f"recipe {str(source)!r} is neither a file nor shipped{nearest(path.stem, shipped)}; "
            f"shipped: {', '.join(shipped)}"
        )
    try:
        values = _number(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RecipeError(f"{path} must hold keys and values, not a {type(values).__name__}")
    like = values.pop("like", None)
    if like is None:
        return values
    if not isinstance(like, str) or path in behind:
        raise RecipeError(f"{path}: like = {like!r} must name another recipe, a file or one that is shipped")
    beside = path.parent / like
    return _merged(_read_yaml(beside if beside.is_file() else like, (*behind, path)), values)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, section by section."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], value) if both else value
    return merged


def _number(value: Any) -> Any:
    """YAML 1.1 reads ``1e-5`` as text; read it as the number that it is, everywhere in a recipe."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    section = values
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            raise RecipeError(f"{key}: {parent} is a value, not a section")
    section[leaf] = value


def _explain(error: ValidationError) -> str:
    """One line a problem: the key, the value met, the rule, the nearest valid name."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "recipe"
        if problem["type"] == "extra_forbidden":
            valid = _fields_at(problem["loc"][:-1])
            lines.append(
                f"unknown key {key}{nearest(str(problem['loc'][-1]), valid)}; valid here: {', '.join(valid)}"
            )
        else:
            rule = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{key} = {problem['input']!r}: {rule}" if problem["loc"] else rule)
    return "\n".join(lines)


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in location:
        annotation = section.model_fields[str(part)].annotation
        kinds = get_args(annotation) or (annotation,)  # Lora | None
        section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(section.model_fields)

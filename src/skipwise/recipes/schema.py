"""All settings of a run, typed and validated; ``skipwise.recipes.loading`` reads them from a file."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from skipwise.errors import one_of
from skipwise.method import interpolation
from skipwise.method.lengths import LAST_SEED, LONGEST, MOST_CHUNKS, MOST_TRIALS, SHORT_WINDOW, WINDOW, parse_length
from skipwise.method.positions import PAPER, SCHEMES, ChunkRules, ContentRule, LengthRule, SkipRule
from skipwise.recipes.names import expanded, refuse_secrets

FITTED, AUTO = "fitted", "auto"  # auto: fitted where the factor is large, else YaRN
RATES = {False: 2e-5, True: 2e-4}  # default learning rate without and with LoRA

Method = Literal["pose", "paper"]
DEFAULT: Method = "pose"
METHODS: dict[str, dict[str, Any]] = {  # settings that belong together; a recipe's own settings override them
    "pose": {  # docs/method.md has the reasons
        "positions": {"content": "even", "no_skip_share": 0.0},
        "data": {"train_chunk_starts": False},
        "training": {"adam_beta2": 0.95},
    },
    "paper": {  # PoSE to the letter (Zhu et al., ICLR 2024)
        "positions": {"skips": "uniform", "content": "paper", "no_skip_share": 0.0},
        "data": {"train_chunk_starts": True},
        "training": {"adam_beta2": 0.999},
    },
}


def _interpolation(name: str) -> str:
    if name.endswith(".json"):
        return expanded(name)
    if name not in interpolation.INTERPOLATIONS and os.path.isfile(fit := os.path.join(name, "fit.json")):
        return fit  # in the folder of a fit
    return one_of("interpolation", name, (*interpolation.INTERPOLATIONS, FITTED, AUTO))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``, section by section."""
    sections = {key for key, value in changes.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    return base | changes | {key: merged(base[key], changes[key]) for key in sections}


def _listed(value: Any) -> Any:
    """Read a single string as a list of one."""
    return [value] if isinstance(value, str) and value != "all-linear" else value


_ONCE = AfterValidator(lambda values: list(dict.fromkeys(values)))
Tokens = Annotated[int, BeforeValidator(parse_length), Field(gt=0)]
Length = Annotated[Tokens, Field(le=LONGEST)]
Lengths = Annotated[list[Length], Field(min_length=1), _ONCE]
Target = Annotated[int | str, BeforeValidator(lambda value: value if value == WINDOW else parse_length(value))]
Name = Annotated[
    str, BeforeValidator(lambda name: str(name) if isinstance(name, Path) else name), AfterValidator(expanded)
]
Texts = Annotated[list[Name], BeforeValidator(_listed), Field(min_length=1)]
Micro = Annotated[Annotated[int, Field(gt=0)] | None, BeforeValidator(lambda value: None if value == "auto" else value)]
Baseline = Literal["original", "untrained", "trained"]


class Section(BaseModel):
    """A part of the recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class Rope(Section):
    """Settings of the interpolation (``skipwise.method.interpolation``)."""

    rope_theta: float | None = Field(None, description="the base, above the model's own (theta, which needs it)")
    beta_fast: float | None = Field(None, description="turns from which a pair stays [32] (yarn, yarn-revised)")
    beta_slow: float | None = Field(None, description="turns to which a pair gets the whole factor [1; power: 0.6]")
    power: float | None = Field(None, description="how late the divisor rises to the factor [2] (power)")
    attention_factor: float | None = Field(None, description="of cos and sin [by the target]")
    factors: tuple[float, ...] | None = Field(
        None, description="divisor of each pair's frequency (factors, which needs it)"
    )

    @property
    def settings(self) -> interpolation.RopeSettings:
        """The settings as arguments of the formulas."""
        return interpolation.RopeSettings(**self.model_dump())


class Positions(Section):
    """Positions of the training examples (``skipwise.method.positions``)."""

    scheme: Annotated[str, AfterValidator(lambda name: one_of("scheme", name, SCHEMES))] = "pose"
    chunks: int = Field(PAPER.chunks, ge=1, le=MOST_CHUNKS, description="number of chunks N (pose)")
    lengths: LengthRule = Field(PAPER.lengths, description="how chunk lengths are drawn (pose)")
    skips: SkipRule = Field(PAPER.skips, description="how skips u_i are drawn (pose)")
    content: ContentRule = Field("even", description="how content offsets v_i are drawn (pose)")
    no_skip_share: float = Field(PAPER.no_skip_share, ge=0, le=1, description="share of examples without skips (pose)")

    @property
    def rules(self) -> ChunkRules:
        """The options of ``scheme``."""
        return ChunkRules(self.chunks, self.lengths, self.skips, self.content, self.no_skip_share)


class Data(Section):
    """The text, and its use in training."""

    source: Name = Field("stdlib", description="a file, a folder, a Hugging Face data set, or stdlib")
    split: str = Field("train", description="split of a Hugging Face data set")
    subset: str | None = Field(None, description="subset (configuration) on the hub; default: its own")
    streaming: bool = Field(False, description="stream from the hub instead of downloading; needs max_train_tokens")
    max_train_tokens: Tokens | None = Field(None, description="stop after the document that reaches it [all]")
    text_field: str = Field("text", description="field of a record or data set row that holds the text")
    assistant_only_loss: bool = Field(False, description="of conversations, train only the assistant's turns")
    min_tokens: Length | None = Field(None, description="shortest document [train length; all conversations]")
    held_out: float = Field(0.1, ge=0, lt=1, description="share of documents held out, by a hash of the name")
    train_chunk_starts: bool = Field(False, description="train the first label of each chunk too")

    @classmethod
    def of(cls, source: "str | Path | Data") -> "Data":
        """Return the section itself, or the defaults with this source."""
        return source if isinstance(source, Data) else cls(source=str(source))

    @property
    def reading(self) -> dict[str, Any]:
        """The settings besides ``source`` that decide the documents."""
        return self.model_dump(include={"text_field", "split", "subset", "streaming"})

    @model_validator(mode="after")
    def _stream_ends(self) -> "Data":
        if self.streaming and self.max_train_tokens is None:
            raise ValueError("data.streaming needs a limit; set data.max_train_tokens")
        return self


class Training(Section):
    """Any field of ``transformers.TrainingArguments``, with the paper's settings as defaults.

    Gradient accumulation follows from the global batch, so one GPU and eight GPUs see the same examples in each step.
    """

    model_config = ConfigDict(extra="allow")

    max_steps: int = Field(400, gt=0, description="optimizer steps")
    global_batch_size: int = Field(16, gt=0, description="examples in each step, over all processes")
    per_device_train_batch_size: Micro = Field(None, description="examples in one pass; auto: what fits and is fast")
    learning_rate: float = Field(RATES[False], gt=0)
    warmup_steps: float = Field(10, ge=0, description="below 1: a share of max_steps")
    optim: str = "adamw_torch"
    precision: Literal["auto", "bf16", "fp16", "float32"] = Field("auto", description="auto: bf16 where it is fast")
    save_steps: int = Field(100, gt=0, description="steps between checkpoints")
    save_total_limit: int = Field(2, gt=0, description="complete checkpoints kept")
    save_dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the saved model's weights")
    logging_steps: int = Field(10, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, values: Any) -> Any:
        """Read transformers' newer name of gradient checkpointing."""
        if not isinstance(values, dict):
            return values
        return {key.replace("activation_check", "gradient_check"): value for key, value in values.items()}


class Lora(Section):
    """LoRA: train low-rank additions to frozen weights (``skipwise.model.lora``)."""

    r: int = Field(16, ge=1, le=2**16, description="rank of each addition")
    lora_alpha: float | None = Field(None, gt=0, description="additions count lora_alpha / r times; default: 2 r")
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Annotated[Literal["all-linear"] | list[str], BeforeValidator(_listed)] = "all-linear"
    modules_to_save: list[str] = Field([], description="layers trained in full: embeddings, norms, or names")
    load_in_4bit: bool = Field(False, description="train on a base in 4 bits (QLoRA)")
    save_as: Literal["merged", "adapter"] = Field("merged", description="a stock checkpoint or the adapter alone")


class Evaluation(Section):
    """Measurements after training, on held-out documents."""

    models: Annotated[list[Baseline], Field(min_length=1), _ONCE] = Field(
        ["original", "untrained", "trained"], description="models measured"
    )
    source: Texts | None = Field(None, description="one text or several; default: the held-out documents of data")
    windows: Lengths | None = Field(None, description="default: the original length, doubled up to the target")
    stride: Length | None = Field(None, description="of sliding windows [max(original / 2, target / 16)]")
    documents: int = Field(8, gt=0, description="largest number of documents")
    tokens_per_document: Length | None = Field(None, description="default: the largest window")
    tasks: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)] = ["passkey"]  # docs/recipes.md
    ruler_data: Name | None = Field(None, description="folder with RULER's essays and questions")
    prompt_lengths: Lengths | None = Field(None, description="of the prompts of every task; default: the windows")
    num_prompts: int = Field(50, ge=0, le=MOST_TRIALS, description="prompts per task and length")
    load_in_4bit: bool = Field(False, description="measure with weights in 4 bits, where 16 do not fit")
    other_texts: bool = Field(True, description="also measure shipped text of other kinds in the original window")
    eval_steps: Annotated[list[Annotated[int, Field(gt=0)]], _ONCE] | None = Field(
        None, description="training steps after which perplexity is also measured"
    )
    save_best: bool = Field(False, description="save the best of eval_steps and the last step, not the last")


class Recipe(Section):
    """One extension: a model, a target length, the method and the text."""

    model: Name = Field("nano", description="nano (embedded), smollm2 (an extra), a folder, or a model name on the hub")
    target: Target | None = Field(
        None, description="target length L_t [8 times the original]; window: keep the model's own"
    )
    original_length: Length | None = Field(None, description="L_o; default: from the model's config")
    train_length: Length | None = Field(None, description="training window; default: the original length, at most 4k")
    interpolation: Annotated[str, AfterValidator(_interpolation)] = Field(
        "auto", description="auto: fitted from 8 times the window on, else yarn"
    )
    rope: Rope = Rope()
    attn_implementation: str | None = Field(
        None, description="of transformers, in training, e.g. flash_attention_2 [its choice]"
    )
    seed: int = Field(0, ge=0, le=LAST_SEED)
    method: Method = Field(DEFAULT, description="a named set of positions, data and training settings")
    positions: Positions = Positions()
    data: Data = Data()
    training: Training = Training()
    lora: Lora | None = Field(None, description="train low-rank additions only; default: train all weights")
    evaluation: Evaluation = Evaluation()

    @property
    def is_fitted(self) -> bool:
        """Whether the interpolation is to be fitted, or read from a fit."""
        return self.interpolation in (FITTED, AUTO) or self.interpolation.endswith(".json")

    @property
    def measured_sources(self) -> list[str]:
        """The texts of the evaluation, each once; the best step is chosen on the first."""
        return list(dict.fromkeys(self.evaluation.source or [self.data.source]))

    @property
    def measured_steps(self) -> list[int]:
        """The training steps after which the model is measured, with the last one if the best is kept."""
        steps = self.evaluation.eval_steps or []
        return sorted({*steps, self.training.max_steps}) if self.evaluation.save_best else steps

    @property
    def compared_steps(self) -> list[int]:
        """The steps among which the best is kept; each has a checkpoint."""
        return self.measured_steps if self.evaluation.save_best else []

    @model_validator(mode="before")
    @classmethod
    def _without_secrets(cls, values: Any) -> Any:
        refuse_secrets(values)
        return values

    @model_validator(mode="before")
    @classmethod
    def _of_method(cls, values: Any) -> Any:
        """Take missing settings from the method."""
        if not isinstance(values, dict):
            return values
        values = {k: v.model_dump(exclude_unset=True) if isinstance(v, BaseModel) else v for k, v in values.items()}
        method = values.get("method", DEFAULT)
        return merged(METHODS[str(method)], values) if method in get_args(Method) else values

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        interpolation.check_settings("none" if self.is_fitted else self.interpolation, self.rope.settings)
        if self.lora and "learning_rate" not in self.training.model_fields_set:
            self.training.learning_rate = RATES[True]
        steps, last = self.evaluation.eval_steps, self.training.max_steps
        if beyond := [step for step in steps or [] if step > last]:
            raise ValueError(
                f"evaluation.eval_steps {beyond} must not exceed training.max_steps {last:,}; lower them, or raise max_steps"
            )
        if self.evaluation.save_best and not any(step < last for step in steps or []):
            raise ValueError(
                f"evaluation.save_best needs a step below {last:,} in evaluation.eval_steps {steps}; add one, or leave it out"
            )
        return self

    def train_length_of(self, original: int) -> int:
        """Return L_c in tokens for a model of the ``original`` length."""
        return self.train_length or min(original, SHORT_WINDOW)

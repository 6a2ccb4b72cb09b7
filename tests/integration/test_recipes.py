"""Every shipped recipe trains a tiny random model of its architecture for two steps, with its lengths scaled down."""

from pathlib import Path

import pytest
from rich.console import Console

from skipwise.extend import extend
from skipwise.recipes.loading import load_recipe, shipped_recipes
from skipwise.recipes.schema import Recipe
from skipwise.results.records import ReadingRecord, TrainingRecord, read_records
from tests import families
from tests.tiny import corpus

# The recipe's name starts with -> family of the tiny model, window of the real one (Llama 3.1: before its llama3 scaling).
ARCHITECTURES = {
    "nano": ("llama", 256),
    "smollm2": ("llama", 8192),
    "llama-7b": ("llama", 2048),
    "llama2-7b": ("llama2", 4096),
    "gptj-6b": ("phi", 2048),
    "baichuan2-7b": ("llama2", 4096),
    "qwen3-8b": ("qwen3", 32768),
    "llama-3.1-8b": ("llama3", 8192),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents as long as the longest scaled target."""
    return corpus(tmp_path_factory.mktemp("text"), documents=8, words=1500)


def small(name: str, model: Path, text: Path, window: int, real: int) -> Recipe:
    """The recipe with every length scaled by window / real."""
    recipe = load_recipe(name)
    values = recipe.model_dump()

    def scaled(tokens: int | None) -> int | None:
        return tokens and tokens * window // real

    for key in ("target", "original_length", "train_length"):
        values[key] = scaled(values[key])
    values["model"] = str(model)
    values["data"] |= {"source": str(text), "min_tokens": scaled(values["data"]["min_tokens"]), "held_out": 0.3}
    values["training"] |= {"max_steps": 2, "global_batch_size": 2, "per_device_train_batch_size": 1, "logging_steps": 1}
    windows = [scaled(length) for length in recipe.evaluation.windows or [recipe.target]]
    values["evaluation"] |= dict.fromkeys(("stride", "tokens_per_document", "prompt_lengths"))
    values["evaluation"] |= {"windows": windows[:1], "documents": 1, "num_prompts": 0}
    values["evaluation"] |= {"models": ["trained"], "other_texts": False}
    return Recipe.model_validate(values)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_trains_on_a_tiny_model_of_its_architecture(name: str, text: Path, tmp_path: Path) -> None:
    begins = max((key for key in ARCHITECTURES if name.startswith(key)), key=len)
    family, real = ARCHITECTURES[begins]
    model = families.checkpoint(tmp_path / "base", family)
    window = families.WINDOW // 4 if family == "llama3" else families.WINDOW
    recipe = small(name, model, text, window, real)
    run = extend(recipe, out=tmp_path / "run", resume=False, console=Console(quiet=True))
    records = read_records(run.results)
    assert [record.step for record in records if isinstance(record, TrainingRecord)] == [1, 2]
    readings = [record for record in records if isinstance(record, ReadingRecord)]
    assert [record.window for record in readings] == recipe.evaluation.windows
    assert (run.model / "model.safetensors").exists()

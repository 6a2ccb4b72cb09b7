"""A run cut short and resumed ends in the same bits as one that was not."""

import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from skipwise.errors import RunError
from skipwise.recipes import schema as recipe
from skipwise.training import checkpoints
from skipwise.training import trainer as training

pytestmark = pytest.mark.usefixtures("frozen_imports")
STEPS = 10


def tiny_model() -> LlamaForCausalLM:
    """A Llama whose dropout draws from the global generator, which resume must bring back."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=0.2,
    )
    return LlamaForCausalLM(config)


class Keyed(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(i))
        positions = torch.arange(8)
        return {
            "input_ids": ids,
            "labels": ids,
            "position_ids": positions,
            "attention_mask": torch.ones_like(positions),
        }


class Unkeyed(Keyed):
    """The mutation: examples from a global generator are others after a resume."""

    def __getitem__(self, i):
        return {**super().__getitem__(i), "position_ids": torch.randperm(64)[:8].sort().values}


def collate(examples):
    return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}


class CutError(Exception):
    """Stands for whatever ends a process."""


def run(folder, *, resume=False, cut_at=None, dataset=None, passes=None, **changes):
    model = tiny_model()
    if passes is not None:
        model.register_forward_hook(lambda *args: passes.append(1))

    def on_log(record):
        if record["step"] == cut_at:
            raise CutError

    settings = {
        "max_steps": STEPS,
        "batch_size": 4,
        "per_device_train_batch_size": 2,
        "precision": "float32",
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "save_steps": 3,
        "logging_steps": 1,
    }
    summary = training.train(
        model,
        dataset or Keyed(),
        collate,
        recipe.Training(**{**settings, **changes}),
        folder=folder,
        seed=0,
        resume=resume,
        on_log=on_log,
        progress=False,
    )
    return model.state_dict(), summary


def cut_and_resumed(folder, cut_at, **changes):
    with pytest.raises(CutError):
        run(folder, cut_at=cut_at, **changes)
    return run(folder, resume=True, **changes)


def different(a, b) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("cuts", "workers"), [((2,), 0), ((3,), 0), ((5, 8), 0), ((10,), 0), ((8,), 2)])
def test_resumed_weights_are_bit_identical(tmp_path, uninterrupted, cuts, workers):
    for place, cut_at in enumerate(cuts):
        with pytest.raises(CutError):
            run(tmp_path, cut_at=cut_at, resume=place > 0, dataloader_num_workers=workers)
    weights, summary = run(tmp_path, resume=True, dataloader_num_workers=workers)
    assert different(weights, uninterrupted[0]) == []
    assert (summary.steps, summary.tokens) == (STEPS, STEPS * 4 * 8)
    assert summary.loss == uninterrupted[1].loss


def test_random_state_lost_would_be_seen(tmp_path, uninterrupted, monkeypatch):
    whole, _ = run(tmp_path / "whole", dataset=Unkeyed())
    assert different(cut_and_resumed(tmp_path / "cut", 8, dataset=Unkeyed())[0], whole)
    monkeypatch.setattr(training._Trainer, "_load_rng_state", lambda *args: None)
    assert different(cut_and_resumed(tmp_path / "lost", 8)[0], uninterrupted[0])


def test_a_finished_run_trains_no_step_more(tmp_path, uninterrupted):
    run(tmp_path)
    passes = []
    weights, summary = run(tmp_path, resume=True, passes=passes)
    assert passes == []
    assert different(weights, uninterrupted[0]) == []
    assert (summary.steps, summary.loss) == (STEPS, uninterrupted[1].loss)


def test_state_files_are_required_and_an_incomplete_checkpoint_is_overwritten(tmp_path, uninterrupted):
    with pytest.raises(CutError):
        run(tmp_path, cut_at=8)  # leaves checkpoints 3 and 6
    incomplete = shutil.copytree(tmp_path / "checkpoint-6", tmp_path / "checkpoint-9")
    for name in (checkpoints.MARKER, "optimizer.pt", "trainer_state.json"):
        (incomplete / name).unlink()
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth"):
        content = (tmp_path / "checkpoint-6" / name).read_bytes()
        (tmp_path / "checkpoint-6" / name).unlink()
        passes = []
        with pytest.raises(RunError, match=name):
            run(tmp_path, resume=True, passes=passes)
        assert passes == []
        (tmp_path / "checkpoint-6" / name).write_bytes(content)
    weights, _ = run(tmp_path, resume=True)
    assert different(weights, uninterrupted[0]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9"]
    checkpoints.verify(incomplete)

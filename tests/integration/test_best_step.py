"""The best step by its far text is saved, also after kills: to the same bits as in a run that was never stopped."""

import gc
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skipwise.evaluation.plan import Readings
from skipwise.results.records import ReadingRecord
from tests.command_line import refused, run
from tests.integration.test_extend import command, files, of_kind  # noqa: F401

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
FAR = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5}  # of the best step least
NEAR = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}  # falls on, as the loss of training may
CHANGES = {
    "target": 800,
    "evaluation.models": "[trained]",
    "evaluation.windows": "[400]",
    "evaluation.num_prompts": 0,
    "evaluation.eval_steps": "[1, 2, 3]",
    "evaluation.save_best": True,
    "training.save_total_limit": 1,
}


class CutError(BaseException):
    """Stands for whatever ends a process."""


def score_by_script(setattr, far: dict[int, float], near: dict[int, float]) -> None:
    """Let every step score what is written down for it; finished models are read as they are."""
    read = Readings.answers

    def scripted(self, model, on_progress=None) -> Iterator[ReadingRecord]:
        if self.requests[0].step is None:
            yield from read(self, model, on_progress)
            return
        for request in self.requests:
            nats = (far if request.mode == "segment" else near)[request.step]
            sizes = [high - low for low, high in pairwise(request.edges)]
            yield replace(request, nll=[nats * size for size in sizes], hits=[0] * len(sizes))

    setattr(Readings, "answers", scripted)


def losses_of(folder: Path, mode: str = "segment") -> dict[int, float]:
    """Mean loss of each step's readings, by the formula: of segments beyond the original window."""
    sums: dict[int, list[tuple[float, int]]] = {}
    for record in of_kind(folder, ReadingRecord):
        if record.step is not None and record.mode == mode:
            for nll, (low, high) in zip(record.nll, pairwise(record.edges), strict=True):
                if low >= 400 or mode == "sliding":
                    sums.setdefault(record.step, []).append((nll, high - low))
    return {step: sum(nll for nll, _ in read) / sum(size for _, size in read) for step, read in sums.items()}


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A run that was never stopped, with checkpoints of the steps 2 and 4."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipwise.report.page.draw_figures", lambda *_: [])
        score_by_script(patch.setattr, FAR, NEAR)
        run(patch, *command(*files, out, **CHANGES))
    return out


def weights(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / name)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_the_step_that_reads_far_text_best_is_saved_though_its_loss_is_not_the_least(whole) -> None:
    saved = weights(whole / "model")
    kept = {path.name: same(saved, weights(path)) for path in (whole / "checkpoints").iterdir()}
    assert kept == {"checkpoint-2": True, "checkpoint-4": False}
    assert losses_of(whole) == FAR
    near = losses_of(whole, "sliding")
    assert min(near, key=lambda step: near[step]) == 4
    assert json.loads((whole / "run.json").read_text())["kept"] == {"step": 2, "of": 4, "far_loss": 1.0}


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("skipwise.results.records.append_record", 2),  # the best has no record yet
        ("skipwise.training.checkpoints.mark_complete", 2),  # it has, and its checkpoint is torn
        ("skipwise.training.run.save_trained", 0),  # the model has its weights, and is not saved
    ],
)
def test_a_run_cut_anywhere_ends_in_the_same_bits(files, whole, tmp_path, monkeypatch, place, at) -> None:  # noqa: F811
    out = tmp_path / "run"
    score_by_script(monkeypatch.setattr, FAR, NEAR)
    calls: list[int] = []
    with monkeypatch.context() as patch:
        module, name = place.rsplit(".", 1)
        real = getattr(sys.modules[module], name)

        def cut(*args, **options) -> None:
            calls.append(1)
            if name == "save_trained" or (len(calls) == at):
                raise CutError
            real(*args, **options)

        patch.setattr(place, cut)
        with pytest.raises(CutError):
            run(patch, *command(*files, out, **CHANGES))
    gc.collect()  # the lock of the run that was cut
    run(monkeypatch, "extend", "--resume", "--out", out)
    assert same(weights(out / "model"), weights(whole / "model"))
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-4"]
    assert losses_of(out) == FAR
    assert json.loads((out / "run.json").read_text())["kept"]["step"] == 2


def test_a_best_checkpoint_that_is_gone_and_other_steps_are_refused(whole, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    change = ["--set", "evaluation.eval_steps=[1, 3]"]
    assert "evaluation.eval_steps" in refused(monkeypatch, capsys, "extend", "--resume", "--out", copy, *change)
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints" / "checkpoint-2")
    assert "checkpoint-2" in refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)


def test_with_lora_the_additions_of_the_best_step_are_saved(files, monkeypatch, tmp_path) -> None:  # noqa: F811
    out = tmp_path / "run"
    score_by_script(monkeypatch.setattr, FAR, NEAR)
    run(monkeypatch, *command(*files, out, **CHANGES, **{"lora.save_as": "adapter"}))
    of_step = {n: weights(out / "checkpoints" / f"checkpoint-{n}", "adapter_model.safetensors") for n in (2, 4)}
    assert not same(of_step[2], of_step[4])
    assert same(weights(out / "model", "adapter_model.safetensors"), of_step[2])

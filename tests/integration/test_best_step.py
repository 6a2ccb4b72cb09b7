"""The best step by its far text is saved, also after kills: to the same bits as in a run that was never stopped.

Run as a module, this file is the sweep: each child measures the steps of a model whose weights tell the step, and is killed
at one more change of the disk than the child before it.
"""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skipwise import extend
from skipwise.evaluation.batches import Readings
from skipwise.results.records import ReadingRecord, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.training import best_checkpoint
from tests.command_line import refused, run
from tests.integration.test_extend import command, of_kind
from tests.integration.test_kill import Executioner
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
FAR = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5}  # of the best step least
NEAR = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}  # falls on, as the loss of training may
CHANGES = {
    "target": 800,
    "evaluation.arms": "[trained]",
    "evaluation.windows": "[400]",
    "evaluation.prompt_trials": 0,
    "evaluation.steps": "[1, 2, 3]",
    "evaluation.keep": "best",
}
SWEPT = (5.0, 4.0, 6.0, 3.0, 3.0)  # far losses of the sweep's steps: 1, 2 and 4 are the best when they come


class CutError(Exception):
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
    """Mean loss of each step's readings, by the formula."""
    steps: dict[int, list[ReadingRecord]] = {}
    for record in of_kind(folder, ReadingRecord):
        if record.step is not None and record.mode == mode:
            steps.setdefault(record.step, []).append(record)
    first = 400 if mode == "segment" else 1
    return {step: mean_beyond(read, first) for step, read in steps.items()}


def mean_beyond(read: list[ReadingRecord], first: int) -> float:
    sums = [
        (nll, high - low)
        for record in read
        for nll, (low, high) in zip(record.nll, pairwise(record.edges), strict=True)
        if low >= first
    ]
    return sum(nll for nll, _ in sums) / sum(size for _, size in sums)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    os.environ["SKIPWISE_CACHE"] = str(folder / "cache")
    return checkpoint(folder / "base", window=400), corpus(folder / "text", documents=24, words=200)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    assert same(saved, weights(whole / "checkpoints" / "checkpoint-2"))
    assert not same(saved, weights(whole / "checkpoints" / "checkpoint-4"))
    assert losses_of(whole) == FAR
    near = losses_of(whole, "sliding")
    assert min(near, key=lambda step: near[step]) == 4
    facts = json.loads((whole / "run.json").read_text())
    assert facts["kept"] == {"step": 2, "of": 4, "far_loss": 1.0}
    card = (whole / "model" / "README.md").read_text()
    assert "- step: 2 of 4, chosen by the loss beyond 400 tokens on held-out documents of " in card
    kept_beside = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert kept_beside == ["best-2", "checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("skipwise.training.best_checkpoint.save_file", 2),  # the best is being written
        ("skipwise.extend.append_record", 2),  # it is, and has no record yet
        ("skipwise.training.best_checkpoint.drop_others", 2),  # it has, and the one before it still lies there
        ("skipwise.extend.append_record", 3),
        ("skipwise.extend.save_trained", 0),  # the best is in the model, and not saved
    ],
)
def test_a_run_cut_anywhere_ends_in_the_same_bits(files, whole, tmp_path, monkeypatch, place, at) -> None:
    out = tmp_path / "run"
    score_by_script(monkeypatch.setattr, FAR, NEAR)
    with monkeypatch.context() as patch:
        module, name = place.rsplit(".", 1)
        real = getattr(sys.modules[module], name)

        def cut(*args, **options) -> None:
            told = any(at == (v.step if isinstance(v, ReadingRecord) else v) for v in args if not isinstance(v, dict))
            if at == 0 or told or f"best-{at}" in str(args):
                raise CutError
            real(*args, **options)

        patch.setattr(place, cut)
        with pytest.raises(CutError):
            run(patch, *command(*files, out, **CHANGES))
    gc.collect()  # the lock of the run that was cut
    run(monkeypatch, "extend", "--resume", "--out", out)
    assert same(weights(out / "model"), weights(whole / "model"))
    assert [path.name for path in (out / "checkpoints").glob("best-*")] == ["best-2"]
    assert losses_of(out) == FAR


def test_weights_that_are_gone_are_missed_before_training_goes_on(whole, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints" / "best-2")
    monkeypatch.setattr(extend, "train_run", None)
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    assert "best-2, the best checkpoint by the records, is missing or incomplete" in message


def test_a_record_that_is_gone_is_missed_before_training_goes_on(whole, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(copy / "model")
    (copy / "results.jsonl").unlink()
    monkeypatch.setattr(extend, "train_run", None)
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    assert "results.jsonl has no record of step 1, and the best step is chosen by it" in message


def test_what_chooses_may_not_change(whole, monkeypatch, capsys) -> None:
    change = ["--set", "evaluation.steps=[1, 3]"]
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", whole, *change)
    assert "evaluation.steps = [1, 2, 3]" in message
    assert "[1, 3]" in message


def test_the_last_step_is_kept_where_it_is_the_best(files, whole, monkeypatch, capsys, tmp_path) -> None:
    score_by_script(monkeypatch.setattr, {**FAR, 4: 0.5}, NEAR)
    run(monkeypatch, *command(*files, tmp_path / "run", **CHANGES))
    printed = " ".join(capsys.readouterr().out.split())
    assert "the best step is 4 of 4: mean loss 0.5000 nats beyond 400 tokens, 0.5000 after the last step" in printed
    assert same(weights(tmp_path / "run" / "model"), weights(whole / "checkpoints" / "checkpoint-4"))


@pytest.mark.parametrize("saved", ["merged", "adapter"])
def test_with_lora_the_additions_of_the_best_step_are_saved(files, monkeypatch, tmp_path, saved) -> None:
    out = tmp_path / "run"
    score_by_script(monkeypatch.setattr, FAR, NEAR)
    run(monkeypatch, *command(*files, out, **CHANGES, **{"lora.saved": saved}))
    of_step = {n: weights(out / "checkpoints" / f"checkpoint-{n}", "adapter_model.safetensors") for n in (2, 4)}
    assert not same(of_step[2], of_step[4])
    if saved == "adapter":
        assert same(weights(out / "model", "adapter_model.safetensors"), of_step[2])
        return
    resumed = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(resumed / "model")
    run(monkeypatch, "extend", "--resume", "--out", resumed)
    assert same(weights(resumed / "model"), weights(out / "model"))


def test_without_a_script_the_step_of_the_least_far_loss_is_kept(files, monkeypatch, tmp_path) -> None:
    out = tmp_path / "run"
    run(monkeypatch, *command(*files, out, **{**CHANGES, "evaluation.steps": "[1]", "evaluation.segments": 2}))
    losses = losses_of(out)
    assert list(losses) == [1, 4]
    kept = json.loads((out / "run.json").read_text())["kept"]
    assert kept == {
        "step": min(losses, key=lambda step: losses[step]),
        "of": 4,
        "far_loss": pytest.approx(min(losses.values())),
    }


def model_of(step: int) -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, step)
    return model


def child(evaluation, folder: Path, kill_at: int) -> None:
    """Measure every step, or up to the kill."""
    os.fsync = lambda descriptor: None  # what is written outlives SIGKILL; only a power cut needs the disk
    executioner = Executioner(folder, kill_at)
    sys.addaudithook(executioner.audit)
    best_checkpoint.save_file = executioner.around(best_checkpoint.save_file, place=1)
    score_by_script(setattr, dict(enumerate(SWEPT, 1)), dict.fromkeys(range(1, 6), 1.0))
    for step in range(1, len(SWEPT) + 1):
        extend._measure_step(evaluation, RunFolder(folder), model_of(step), step)


def in_a_child(*args) -> int:
    """Return how the child ended: the signal that killed it, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(*args)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweep(root: Path) -> None:
    """Kill at the 1st, 2nd, ... change of the disk, until a child comes through; go on from each, and look."""
    from tests.unit.evaluation.test_arms import BEST, planned

    checkpoint(root / "model", window=64)
    corpus(root / "text", documents=24, words=200)
    evaluation = planned(root, **BEST | {"evaluation.steps": [1, 2, 3, 4], "training.max_steps": 5})
    torch.set_num_threads(1)
    gc.freeze()
    for kill_at in range(1, 1000):
        folder = root / f"killed-{kill_at}"
        folder.mkdir()
        code = in_a_child(evaluation, folder, kill_at)
        assert code in (0, -signal.SIGKILL), f"kill {kill_at}: ended with {code}"
        if losses := evaluation.far_losses(read_records(folder / "results.jsonl")):
            best = best_checkpoint.best_step(losses)
            found = model_of(0)
            best_checkpoint.restore(found, folder / "checkpoints", best)
            assert found.weight[0, 0] == best, f"kill {kill_at}: the weights of step {best} are another's"
        assert in_a_child(evaluation, folder, 0) == 0, f"kill {kill_at}: could not go on"
        losses = evaluation.far_losses(read_records(folder / "results.jsonl"))
        assert losses == dict(enumerate(SWEPT, 1))
        best_checkpoint.restore(found := model_of(0), folder / "checkpoints", 4)
        assert found.weight[0, 0] == 4
        shutil.rmtree(folder)
        if code == 0:
            print(kill_at - 1)
            return


def test_every_kill_leaves_the_weights_of_the_best_step(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integration.test_best_step", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 20


if __name__ == "__main__":
    sweep(Path(sys.argv[1]))

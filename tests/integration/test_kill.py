"""SIGKILL at every step of a save and of a rotation: each time a complete checkpoint is resumed from.

Run as a script, this file is the sweep: it forks a child for each kill, so that torch is imported once, away
from pytest's own threads. A child counts what it does to the disk below the run folder and kills itself at
the point it was given; files that native code writes are cut in half at that point first.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STEPS, KILLS = 30, 46  # a save and its rotation change the disk 41 times
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def kill(torn: Path | None = None) -> None:
    if torn and torn.exists():
        os.truncate(torn, torn.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


class Executioner:
    """Counts changes of the disk below ``folder``, and kills this process at number ``at``."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.left = str(folder), at

    def audit(self, event: str, args: tuple) -> None:
        """Python's own changes: see the table of audit events in its documentation."""
        changes = event in CHANGES or (event == "open" and any(c in str(args[1]) for c in "wax+"))
        by_name_alone = event in {"os.remove", "os.rmdir"}  # as rmtree does it, relative to the open folder
        if changes and (by_name_alone or self.folder in str(args[0])):
            self.count()

    def count(self, torn: Path | None = None) -> None:
        self.left -= 1
        if self.left == 0:
            kill(torn)

    def around(self, save: Callable, place: int) -> Callable:
        """A native writer, whose file argument stands at ``place``: killed amid or after it."""

        def wrapped(*args, **options):
            result = save(*args, **options)
            self.count(torn=Path(args[place]))
            self.count()
            return result

        return wrapped


def child(folder: Path, kill_at: int) -> None:
    """Train to the end, or to the kill; what was begun from and what came out go beside the folder."""
    import torch
    import transformers.modeling_utils as modeling
    from transformers import LlamaConfig, LlamaForCausalLM

    from skipwise.recipes import schema as recipe
    from skipwise.training import checkpoints
    from skipwise.training import trainer as training

    class Keyed(torch.utils.data.Dataset):
        def __len__(self):
            return STEPS

        def __getitem__(self, i):
            ids = torch.randint(0, 16, (4,), generator=torch.Generator().manual_seed(i))
            return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}

    begun_from = checkpoints.latest_complete(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, num_hidden_layers=1, attention_dropout=0.1, **size))
    os.fsync = lambda descriptor: None  # what is written outlives SIGKILL; only a power cut needs the disk
    executioner = Executioner(folder, kill_at)
    sys.addaudithook(executioner.audit)
    torch.save = executioner.around(torch.save, place=1)
    modeling.safe_save_file = executioner.around(modeling.safe_save_file, place=1)
    settings = recipe.Training(
        max_steps=STEPS, batch_size=1, precision="float32", learning_rate=1e-2, save_steps=1, save_total_limit=2
    )
    summary = training.train(
        model,
        Keyed(),
        lambda examples: {key: torch.stack([e[key] for e in examples]) for key in examples[0]},
        settings,
        folder=folder,
        seed=0,
        resume=True,
        progress=False,
    )
    result = {
        "begun_from": begun_from and begun_from.name,
        "tokens": summary.tokens,
        "weights": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
    }
    folder.with_suffix(".json").write_text(json.dumps(result))


def in_a_child(folder: Path, kill_at: int) -> int:
    """Return how the child ended: the signal that killed it, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(folder, kill_at)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweep(root: Path) -> None:
    """Kill at the disk's 1st, 2nd, ... change after a resume, past one whole save, always in one folder."""
    import torch
    import transformers  # noqa: F401

    with suppress(ImportError):  # accelerate imports it wherever it is installed; once is enough
        import deepspeed  # noqa: F401
    from skipwise.training import checkpoints
    from skipwise.training import trainer as training  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()
    assert in_a_child(root / "whole", kill_at=0) == 0
    folder = root / "killed"
    in_a_child(folder, kill_at=130)  # leaves two checkpoints, so that each save removes an older one
    newest = first = step_of(checkpoints.latest_complete(folder))
    assert len(checkpoints.complete_checkpoints(folder)) == 2
    for kill_at in range(1, KILLS + 1):
        code = in_a_child(folder, kill_at)
        assert code == -signal.SIGKILL, f"kill {kill_at}: ended with {code}"
        step = step_of(checkpoints.latest_complete(folder))  # verifies every file of it
        assert step >= newest, f"kill {kill_at}: went back from step {newest} to {step}"
        newest = step
        print(kill_at, step, file=sys.stderr)
    assert newest > first + 1, "the sweep did not go past the end of a save"
    assert in_a_child(folder, kill_at=0) == 0
    print(newest)


def step_of(checkpoint: Path | None) -> int:
    return int(checkpoint.name.split("-")[1]) if checkpoint else 0


def test_every_kill_leaves_a_complete_checkpoint(tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole, killed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "killed"))
    assert whole["begun_from"] is None
    assert killed["begun_from"] == f"checkpoint-{done.stdout.split()[-1]}"
    assert killed["weights"] == whole["weights"]
    assert killed["tokens"] == whole["tokens"]
    assert len(list((tmp_path / "killed").iterdir())) == 2


if __name__ == "__main__":
    sweep(Path(sys.argv[1]))

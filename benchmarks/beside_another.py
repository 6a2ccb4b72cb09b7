"""How fast a run is beside another program that computes on every core, and alone: as ``skipwise`` sets OpenMP, and as it is.

    python benchmarks/beside_another.py [--steps 20] [--rounds 3]

Both sides take turns, alone and then beside a loop over torch's matrix products. Each run extends the embedded model by
its own recipe and measures a little. That the losses agree is checked.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OTHER = """
import torch
layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20)))
while True:
    layers(torch.randn(64, 256)).sum().backward()
"""
SIDES = {"skipwise": {}, "OpenMP's default": {"GOMP_SPINCOUNT": "300000"}}
STAGE = re.compile(
    r"^(the base writes text|training|measuring skipwise): 100% done in (\d+):(\d+):(\d+)(.*)$", re.MULTILINE
)


def seconds_of(extra: dict[str, str], steps: int, folder: Path) -> tuple[dict[str, int], str]:
    """Run; return the seconds of each stage by its name, and the last loss."""
    command = [sys.executable, "-m", "skipwise", "extend", "--out", str(folder)]
    for setting in (f"training.max_steps={steps}", "evaluation.models=[trained]", "evaluation.documents=2"):
        command += ["--set", setting]
    left = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**left, **extra})
    found = STAGE.findall(done.stdout + done.stderr)
    stages = {
        stage: 3600 * int(hours) + 60 * int(minutes) + int(seconds) for stage, hours, minutes, seconds, _ in found
    }
    [loss] = [match[1] for *_, more in found if (match := re.search(r"loss ([\d.]+)", more))]
    return stages, loss


def main() -> None:
    """Run and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| | OpenMP | " + " | ".join(["the base writes, s", "training, s", "measuring, s"]) + " |")
    print("|---|---|---|---|---|", flush=True)
    for beside in (False, True):
        other = subprocess.Popen([sys.executable, "-c", OTHER]) if beside else None
        runs: dict[str, list[dict[str, int]]] = {side: [] for side in SIDES}
        losses = set()
        try:
            for _ in range(options.rounds):
                for side, extra in SIDES.items():
                    with tempfile.TemporaryDirectory() as folder:
                        stages, loss = seconds_of(extra, options.steps, Path(folder) / "run")
                    runs[side].append(stages)
                    losses.add(loss)
        finally:
            if other:
                other.kill()
        assert len(losses) == 1, f"losses differ: {losses}"
        for side, stages_of in runs.items():
            columns = [sorted(run[stage] for run in stages_of) for stage in stages_of[0]]
            told = [f"{statistics.median(each):g} ({each[0]} to {each[-1]})" for each in columns]
            print(f"| {'beside another' if beside else 'alone'} | {side} | " + " | ".join(told) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Check what the wheel in sys.argv[1] holds: every file of src/skipwise that git tracks, the license, and nothing else."""

import subprocess
import sys
from zipfile import ZipFile

tracked = subprocess.run(["git", "ls-files", "src"], capture_output=True, text=True, check=True).stdout.split()
wanted = {name.removeprefix("src/") for name in tracked}
held = set(ZipFile(sys.argv[1]).namelist())
about = {name for name in held if ".dist-info/" in name}
if missing := sorted(wanted - held):
    sys.exit(f"{sys.argv[1]} lacks {', '.join(missing)}")
if others := sorted(held - wanted - about):
    sys.exit(f"{sys.argv[1]} holds what is not in src/skipwise: {', '.join(others)}")
for name in ("skipwise/py.typed", "skipwise/assets/nano/model.safetensors", "skipwise/recipes/nano.yaml"):
    assert name in held, name
if not any(name.endswith("/licenses/LICENSE") for name in about):
    sys.exit(f"{sys.argv[1]} lacks the license")
print(f"{sys.argv[1]}: {len(held)} files")

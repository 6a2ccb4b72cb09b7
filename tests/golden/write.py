"""Write golden files, all or those that are named: ``python -m tests.golden.write [NAME ...]``; git shows what changed."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden import compare
from tests.golden.runs import GOLDENS, Commands, workplace

with TemporaryDirectory() as folder, workplace(Path(folder).resolve()):
    commands = Commands()
    for name in sys.argv[1:] or GOLDENS:
        found = json.loads(json.dumps({part: make(commands) for part, make in GOLDENS[name].items()}))
        known = compare.load(name)[0] if (Path(compare.__file__).parent / f"{name}.json").exists() else None
        print(f"{name}.json: {'unchanged' if found == known else 'written'}")
        if found != known:  # one whose values are the same stays as it is
            compare.save(name, found)

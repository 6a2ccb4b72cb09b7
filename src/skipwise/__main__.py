"""``python -m skipwise``, for launchers that start modules.

A launched process that succeeds ends without finalizing Python. A worker thread of the process group may still need
Python's lock to free a tensor, and C++ would abort the process (https://github.com/pytorch/pytorch/issues/38228).
"""

import os
import sys

from skipwise.cli import main

launched = "RANK" in os.environ  # the run itself removes it
try:
    main()
except SystemExit as end:
    if not launched or end.code:
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

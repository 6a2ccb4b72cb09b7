"""``python -m skipwise``, for launchers that start modules.

A process that a launcher started and that succeeds ends without finalizing Python. A worker thread of the process group may
still be about to free a tensor, and needs Python's lock for it. Once Python is being finalized, to ask for the lock ends
the thread, and C++ then aborts the process ("terminate called without an active exception":
https://github.com/pytorch/pytorch/issues/38228 and 190489). The launcher would take a run that is complete for one that
failed. Handlers of ``atexit`` do not run; trackers have ended by then.
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

"""``python -m skipwise``, for launchers that start modules."""

from skipwise.cli import main

main()

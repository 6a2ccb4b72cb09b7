"""The paper's tables and figures, run from a checkout: ``make reproduce ARGS="main"``; docs/architecture.md has the files."""

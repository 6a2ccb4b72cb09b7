"""What is kept of every command, by the name of the golden file that it is kept in."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.golden import examples, read, runs, tables
from tests.golden.runs import Commands

Part = Callable[[Commands], Any]


def _plans(_: Commands) -> Any:
    return examples.plans(Path("plans"))


def _batches(_: Commands) -> Any:
    return examples.batches(Path(runs.TEXT))


def _after(command: str, reader: Callable[[Path], Any], *place: str) -> Part:
    """What ``reader`` finds in a file or folder once the command has been run."""

    def part(commands: Commands) -> Any:
        commands.printed(command)
        return reader(Path(*place))

    return part


def _measured(command: str, folder: str, edges: Sequence[int] = (), window: int | None = None) -> Part:
    return _after(command, lambda file: read.measured(file, edges, window), folder, "results.jsonl")


def _printed(command: str) -> Part:
    return lambda commands: tables.printed_tables(commands.printed(command))


# By golden file, and in it by part.
GOLDENS: dict[str, dict[str, Part]] = {
    "plans": {"plans": _plans},
    "batches": {"batches": _batches},
    "losses": {"extend": _after("extend", read.losses, "demo", "results.jsonl")},
    "results": {
        "extend": _measured("extend", "demo"),
        "extend, best step": _measured("extend, best step", "best"),
        "extend, which step": _after("extend, best step", read.kept, "best"),
        "evaluate": _measured("evaluate", "evaluation"),
        "perplexity, sliding": _measured("perplexity, sliding", "sliding", [1, 1024]),
        "perplexity, truncated": _measured("perplexity, by-position", "by-position", [1, 256, 512], 512),
        "perplexity, by-position": _measured("perplexity, by-position", "by-position", [1, 256, 512]),
        "passkey": _measured("passkey", "passkey"),
    },
    "tables": {
        "extend": _printed("extend"),
        "model card": _after("extend", tables.markdown_table, "demo", "model", "README.md"),
        "evaluate": _printed("evaluate"),
        "numbers of report": _after("report", tables.csv_lines, "report", "numbers.csv"),
    },
}

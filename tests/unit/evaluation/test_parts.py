"""The parts of an evaluation as commands: how to read, by name or number, and what is refused before any work."""

import pytest
from rich.console import Console

from skipwise.errors import RecipeError, RunError
from skipwise.evaluation.parts import SETTINGS, Reading, passkey_command, perplexity_command, reading

NOTHING = {"mode": None, "windows": None, "stride": None, "documents": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": 0}, "documents 0 must be at least 1"),
        ({"stride": 1000, "windows": [32]}, "stride 1000 .*window"),
        ({"mode": "slide"}, r"mode 'slide' is unknown \(did you mean sliding\?\)"),
        ({"mode": "truncated", "stride": 8}, "--stride is of sliding windows, and truncated has none"),
        ({"mode": "truncated", "windows": [1, 8]}, "window 1 must be at least 2 tokens"),
    ],
)
def test_a_reading_that_breaks_its_rule_is_refused(given, message) -> None:
    with pytest.raises(RecipeError, match=message):
        reading(None, **(NOTHING | given))


def test_the_papers_settings_have_names_and_can_be_changed() -> None:
    assert reading("paper", **NOTHING) == Reading("sliding", (2048, 4096, 8192, 16384, 32768), 1024, 50)
    assert reading("paper-far", **NOTHING).stride == 16384
    assert reading("paper-truncated", **NOTHING).windows == tuple(1024 * n for n in range(1, 17))
    assert reading("paper", **(NOTHING | {"documents": 3})).documents == 3
    with pytest.raises(RecipeError, match=r"settings 'papr' are unknown \(did you mean paper\?\)"):
        reading("papr", **NOTHING)
    assert all(how.windows == tuple(sorted(how.windows)) for how in SETTINGS.values())


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("trials", 0, "trials 0 must be at least 1"),
        ("seed", -1, "seed -1 must be at least 0"),
        ("task", "line", r"task 'line' is unknown \(did you mean lines\?\)"),
        (
            "precision",
            "bf61",
            r"precision 'bf61' is unknown \(did you mean bf16\?\); choose one of auto, bf16",
        ),
    ],
)
def test_settings_of_passkey_are_refused_before_a_model_is_sought(setting, value, message) -> None:
    settings = {"task": "passkey", "trials": 1, "seed": 0, "precision": "auto", setting: value}
    with pytest.raises(RecipeError, match=message):
        passkey_command("nowhere", lengths=[400], out=None, console=Console(), **settings)


def test_a_foreign_out_file_is_refused_before_a_model_is_sought(tmp_path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    with pytest.raises(RunError, match="holds no results of skipwise"):
        passkey_command("nowhere", "passkey", [400], 1, 0, "auto", notes, Console())
    with pytest.raises(RunError, match="holds no results of skipwise"):
        perplexity_command("nowhere", "x", SETTINGS["paper"], "auto", notes, Console())
    assert notes.read_text() == "mine"

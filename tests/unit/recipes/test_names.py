import pytest

from skipwise.errors import RecipeError
from skipwise.recipes.names import expanded, model_name, short_name


def test_the_home_folder_and_names_that_are_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert [expanded(name) for name in ("~", "~/a", "a/~", "meta-llama/Llama-2-7b-hf", "")] == [
        "/somewhere",
        "/somewhere/a",
        "a/~",
        "meta-llama/Llama-2-7b-hf",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("~nouser/x", "begins with ~, and this machine has no such user; write the whole path"),
        ("a/" + "é" * 130, "has a part of 260 bytes; file systems hold 255 at most: shorten it"),
        ("odd\udcff", "is not UTF-8, so no record could name it; rename"),
        ("a\x00b", "has a zero byte, which no path may have; leave it out"),
    ],
)
def test_names_that_nothing_can_have(name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        expanded(name)


def test_a_file_may_begin_with_a_tilde(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~draft").touch()
    assert expanded("~draft") == "~draft"


def test_a_run_folder_stands_for_its_model(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    assert model_name("runs/mine") == model_name("runs/mine/model") == "runs/mine/model"
    assert model_name(".") == "."
    (tmp_path / "runs" / "mine" / "config.json").touch()  # a checkpoint with a folder of that name
    assert model_name("runs/mine") == "runs/mine"


def test_a_models_short_name_is_that_of_its_run(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    names = ("runs/mine/model", "runs/mine", "runs/mine/", "meta-llama/Llama-2-7b-hf", "nano")
    assert [short_name(name) for name in names] == ["mine", "mine", "mine", "Llama-2-7b-hf", "nano"]

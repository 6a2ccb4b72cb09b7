import pytest

from skipwise.errors import ModelError
from skipwise.recipes.names import expanded, model_name, short_name


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    names = ("~", "~/a", "a/~", "meta-llama/Llama-2-7b-hf")
    assert [expanded(name) for name in names] == ["/somewhere", "/somewhere/a", "a/~", "meta-llama/Llama-2-7b-hf"]


def test_a_run_folder_is_the_model_in_it(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    assert model_name("runs/mine") == model_name("runs/mine/model") == "runs/mine/model"
    assert model_name("meta-llama/Llama-2-7b-hf") == "meta-llama/Llama-2-7b-hf"
    (tmp_path / "runs" / "mine" / "config.json").touch()  # a checkpoint with a folder of that name
    assert model_name("runs/mine") == "runs/mine"


@pytest.mark.parametrize("name", ["runs/mime", "./mine", "~/mine", "a/b/c"])
def test_a_path_where_nothing_is_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(ModelError, match="runs/mine" if name == "runs/mime" else name):
        model_name(name)


def test_a_models_short_name_is_that_of_its_run(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    names = ("runs/mine/model", "runs/mine", "runs/mine/", "meta-llama/Llama-2-7b-hf", "nano")
    assert [short_name(name) for name in names] == ["mine", "mine", "mine", "Llama-2-7b-hf", "nano"]

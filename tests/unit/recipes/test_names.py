import pytest

from skipwise.errors import ModelError
from skipwise.recipes.names import expanded, is_secret, masked, model_name, refuse_secrets, short_name
from skipwise.recipes.schema import Recipe


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


@pytest.mark.parametrize("name", ["training.hub_token", "HUB_TOKEN", "api_key", "apiKey", "secret", "x.password "])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(ValueError, match="holds a secret"):
        refuse_secrets({"a": [{name: "x"}]})
    refuse_secrets({name: None})


def test_no_setting_of_a_recipe_is_taken_for_a_secret() -> None:
    refuse_secrets(Recipe().model_dump())
    assert not is_secret("data.max_train_tokens")


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("training.hub_token=abc def", "training.hub_token=***"),
        ("--hub-token=abc", "--hub-token=***"),
        ("training={hub_token: abc}", "training={hub_token: ***"),
        ('x={"api_key": "abc"}', 'x={"api_key": ***'),
        (f"note=hf_{34 * 'x'}", "note=***"),
        ("https://me:abc@host/data", "https://me:***@host/data"),
        ("note=hf_oauth_abcdefghij", "note=***"),
        ("note=hf_jwt_eyJabc.def-ghi", "note=***"),
        ("https://me:a@b@host/data", "https://me:***@host/data"),
        ("https://ghp_abc@host/data", "https://***@host/data"),
        ("https://host:80/data", "https://host:80/data"),
        ("data.source=hf_transformersdocs/", "data.source=hf_transformersdocs/"),
        ("data.source=hf_wikitext_103/", "data.source=hf_wikitext_103/"),
        ("data.held_out=0.5", "data.held_out=0.5"),
        ("data.max_train_tokens=5", "data.max_train_tokens=5"),
        ("--tasks=passkey,keys", "--tasks=passkey,keys"),
    ],
)
def test_words_are_recorded_without_secrets(word: str, recorded: str) -> None:
    assert masked(word) == recorded

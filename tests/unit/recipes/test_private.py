"""Secrets are found by the name of a setting, and masked wherever a command line is recorded."""

import pytest

from skipwise.recipes.private import is_secret, masked, refuse_secrets
from skipwise.recipes.schema import Recipe


@pytest.mark.parametrize("name", ["training.hub_token", "HUB_TOKEN", "api_key", "apiKey", "secret", "x.password "])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(ValueError, match="holds a secret"):
        refuse_secrets({"a": [{name: "x"}]})
    refuse_secrets({name: None})


def test_no_setting_of_a_recipe_is_taken_for_a_secret() -> None:
    refuse_secrets(Recipe().model_dump())
    assert not is_secret("data.max_train_tokens")
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

"""Keep secrets out of files and messages: a recipe with a secret is refused, a command line is masked."""

import re
from typing import Any

_ENDING = r"(?i:token|(?<!pass)key|secret|password)"  # a passkey is no secret
_NAMED = re.compile(rf"({_ENDING}['\"]?\s*[=:]\s*)\S.*", re.DOTALL)
_OF_THE_HUB = re.compile(r"\bhf_((oauth|jwt)_[\w.-]{8,}|[A-Za-z0-9]{30,})")  # not a name such as hf_wikitext
_IN_ADDRESS = re.compile(r"(://(?:[^/\s:@]*:)?)[^/\s]+@")  # a password, or a token in place of a user name


def is_secret(name: str) -> bool:
    """Return whether a setting of this name is a secret, e.g. ``hub_token`` or ``api_key``."""
    return re.search(rf"{_ENDING}\s*$", name) is not None


def refusal(name: str) -> str:
    """Return the message for a secret setting, without its value."""
    return (
        f"{name} holds a secret, and every setting is written into the run folder; leave it out, and give a token of the "
        "hub by the environment variable HF_TOKEN"
    )


def refuse_secrets(values: Any, where: str = "") -> None:
    """Refuse secret settings at any depth.

    Raises:
        ValueError: there is one.
    """
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        if isinstance(key, str) and is_secret(key) and value is not None:
            raise ValueError(refusal(f"{where}{key}"))
        refuse_secrets(value, f"{where}{key}.")


def masked(word: str) -> str:
    """Return a word of a command line without its secrets."""
    return without_passwords(_OF_THE_HUB.sub("***", _NAMED.sub(r"\1***", word)))


def without_passwords(text: str) -> str:
    """Return a text without the passwords in its addresses, ``https://name:password@host``."""
    return _IN_ADDRESS.sub(r"\1***@", text)

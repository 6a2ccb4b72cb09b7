"""Tokenise chats by the tokenizer's chat template, and find the tokens of the assistant.

A record without the text field may hold a chat:

    messages: [{role, content}, ...]          OpenAI's API and TRL; a content is a text, or a list of parts of type text
    conversations: [{from, value}, ...]       ShareGPT: human, gpt
    prompt, completion                        two texts, or two lists of messages

The assistant's tokens are those that the template marks with ``{% generation %}``. Most templates mark none. Then the template
is rendered once more for each turn of the assistant, with a placeholder as its content: the text that differs is the turn, with
calls of tools and reasoning. The special token right after it ends the turn, and is trained too.
"""

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from typing import Any

import numpy as np

from skipwise.errors import DataError, reason

FORMS = (("messages",), ("conversations",), ("prompt", "completion"))
TOOLS = "tools"  # field of a record: functions that the assistant may call

_ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    **{"human": "user", "developer": "system"},
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
}
_CALLS = ("tool_calls", "function_call")
_TRAINED = (*_CALLS, "reasoning_content", "reasoning", "thinking")  # fields of an assistant's turn besides its content
_BY_HAND = "give the chat as input_ids with labels"
_MARKED = re.compile(r"\{%-?\s*generation\b")
# Templates such as Llama 3.2's write today's date. A fixed one keeps the tokens of a text the same every day.
_TODAY = date(2025, 1, 1)
_DATE_CALL = re.compile(r"""strftime_now\s*\(\s*(?:format\s*=\s*)?(['"])([^'"\\]*)\1\s*\)""")

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """A chat: messages with the fields of OpenAI's API, or a prompt and a completion as texts."""

    messages: list[Message] = field(default_factory=list)
    prompt_turns: int = 0  # messages that are not trained
    tools: list[Any] = field(default_factory=list)
    texts: tuple[str, str] | None = None

    def __len__(self) -> int:
        """Return the number of characters."""
        return sum(map(len, self.texts or [message["content"] for message in self.messages]))

    @property
    def identity(self) -> bytes:
        turns = self.texts or [(message["role"], message["content"]) for message in self.messages]
        return json.dumps(turns).encode()


def conversation_of(record: Mapping[str, Any], form: tuple[str, ...], where: str) -> Conversation:
    """Return the chat that a record holds in the fields ``form``."""
    if form == ("prompt", "completion") and all(isinstance(record[name], str) for name in form):
        return Conversation(texts=(record["prompt"], record["completion"]))
    lists = [_objects(record[name], f"{where}: {name!r}") for name in form]
    messages = [_message(turn, f"{where}, turn {n}") for n, turn in enumerate(chain(*lists), 1)]
    prompt_turns = len(lists[0]) if len(lists) == 2 else 0
    if not any(message["role"] == "assistant" for message in messages[prompt_turns:]):
        raise DataError(f"{where}: no turn is the assistant's; remove the record, or give it as text")
    return Conversation(messages, prompt_turns, _objects(record.get(TOOLS), f"{where}: {TOOLS}"))


def _message(turn: Mapping[str, Any], where: str) -> Message:
    """Return a turn with the names of OpenAI's API."""
    given = str(turn.get("role", turn.get("from")))
    role = _ROLES.get(given.lower())
    if role is None:
        raise DataError(f"{where}: role {given!r} is unknown; choose one of {', '.join(_ROLES)}")
    more = {name: turn[name] for name in (*_TRAINED, "name", "tool_call_id") if turn.get(name)}
    if "tool_calls" in more:
        more["tool_calls"] = _objects(more["tool_calls"], f"{where}: tool_calls")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text")) for part in content)
    if content is None and any(name in more for name in _CALLS):
        content = ""
    if not isinstance(content, str):
        raise DataError(
            f"{where} ({role}): the content is of type {type(content).__name__}, not text; remove the record"
        )
    return {"role": role, "content": content, **more}


def _objects(value: Any, what: str) -> list[Any]:
    """Return a list of objects, which may be JSON: tables fill the fields that objects lack with null."""
    if isinstance(value, str):
        with suppress(ValueError):  # refused below
            value = json.loads(value or "null")
    if value is None or (isinstance(value, list) and all(isinstance(item, Mapping) for item in value)):
        return value or []
    raise DataError(f"{what} is of type {type(value).__name__}, not a list of objects or its JSON; correct the record")


def chat_encoder(tokenizer: Any) -> Callable[[Conversation, str], tuple[list[int], np.ndarray]]:
    """Return a function from a chat and its name to token ids, and which of them are not the assistant's, bool [tokens]."""
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}

    def encode(chat: Conversation, name: str) -> tuple[list[int], np.ndarray]:
        if chat.texts:
            ids, trained = _encode_texts(*chat.texts, tokenizer)
        else:
            ids, trained = _encode_messages(chat, name, tokenizer, special)
        return ids, ~np.array(trained, dtype=bool)

    return encode


def _encode_texts(prompt: str, completion: str, tokenizer: Any) -> tuple[list[int], list[bool]]:
    encoding = tokenizer(prompt + completion, return_offsets_mapping=True, truncation=False, verbose=False)
    ids, trained = list(encoding["input_ids"]), [begin >= len(prompt) for begin, _ in encoding["offset_mapping"]]
    if (end := tokenizer.eos_token_id) is not None:  # otherwise the model would not learn to stop
        if ids[-1:] != [end]:
            ids, trained = [*ids, end], [*trained, True]
        trained[-1] = True  # the tokenizer's own has the offset 0
    return ids, trained


def _encode_messages(chat: Conversation, name: str, tokenizer: Any, special: set[int]) -> tuple[list[int], list[bool]]:
    template = str(tokenizer.chat_template or "")
    if not template:
        raise DataError(
            f"{name} is a chat, and the tokenizer has no chat template; choose an instruct model, or give text"
        )
    fields = {key for message in chat.messages for key in message if key in _TRAINED}
    for field_name in sorted(fields | ({TOOLS} if chat.tools else set())):
        if not re.search(rf"\b{field_name}\b", template):
            raise DataError(f"{name}: the chat template does not read {field_name!r}; remove the field, or {_BY_HAND}")
    if _MARKED.search(template) and not chat.prompt_turns:
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoding = _apply(tokenizer, chat.messages, chat.tools, name, **options)
        return list(encoding["input_ids"]), list(encoding["assistant_masks"])
    text = _apply(tokenizer, chat.messages, chat.tools, name, tokenize=False)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    ids, begins = encoding["input_ids"], [begin for begin, _ in encoding["offset_mapping"]]
    trained = [False] * len(ids)
    for turn in range(chat.prompt_turns, len(chat.messages)):
        if chat.messages[turn]["role"] != "assistant":
            continue
        first, end = _span(chat, turn, text, name, tokenizer)
        begin, after = bisect_left(begins, first), bisect_left(begins, end)
        if begin < after < len(ids) and begins[after] == end and ids[after] in special:
            after += 1  # it ends the turn
        trained[begin:after] = [True] * (after - begin)
    return ids, trained


def _span(chat: Conversation, turn: int, text: str, name: str, tokenizer: Any) -> tuple[int, int]:
    """Return where a turn begins and ends in the rendered ``text``, by rendering it with a placeholder."""
    placeholder = next(sign for sign in map(chr, range(ord("①"), sys.maxunicode)) if sign not in text)
    message = {key: value for key, value in chat.messages[turn].items() if key not in _TRAINED}
    changed = [*chat.messages[:turn], message | {"content": placeholder}, *chat.messages[turn + 1 :]]
    where = f"{name}, turn {turn + 1} replaced to find its end"
    rendered = _apply(tokenizer, changed, chat.tools, where, tokenize=False)
    if any(key in chat.messages[turn] for key in _CALLS) and not text.endswith(rendered.rpartition(placeholder)[2]):
        raise DataError(f"{where}: the chat template changes later turns; remove the calls of tools, or {_BY_HAND}")
    begin = _common(text, rendered)
    return begin, len(text) - _common(text[begin:][::-1], rendered[begin:][::-1])


def _common(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    return bisect_left(range(min(len(text), len(other))), True, key=lambda last: text[: last + 1] != other[: last + 1])


def _apply(tokenizer: Any, messages: list[Message], tools: list[Any], name: str, **options: Any) -> Any:
    """Render a chat by the template, with a fixed date."""
    template = _DATE_CALL.sub(lambda call: repr(_TODAY.strftime(call[2])), tokenizer.get_chat_template(tools=tools))
    try:
        return tokenizer.apply_chat_template(
            messages, tools, chat_template=template, add_generation_prompt=False, **options
        )
    except Exception as error:  # jinja has its own, and a template may raise any
        raise DataError(
            f"{name}: the chat template refuses this chat ({reason(error)}); correct or remove the record, or {_BY_HAND}"
        ) from error

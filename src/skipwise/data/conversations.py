"""Conversations -> tokens by the tokenizer's own chat template, and which of these the assistant says.

A record that lacks the text field may hold a conversation instead, in one of the forms that are in use:

    messages: [{role, content}, ...]          as in OpenAI's API and TRL; a content is a text, or a list of parts that are texts
    conversations: [{from, value}, ...]       as in ShareGPT: human, gpt
    prompt, completion                        two texts, or two lists of messages

What the assistant says are the tokens that the template marks with ``{% generation %}``. Most templates mark nothing. Then the
template is rendered once more for each turn of the assistant, with a sign in its place: what differs is what it says, calls of
tools and reasoning too, together with the special token right behind it, which ends the turn.
"""

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any

from skipwise.data.spans import Spans, complement, runs
from skipwise.errors import DataError, reason

#: What templates take for today, as Llama 3.2's: with the day of tokenising, the same text would have other tokens each day.
TODAY = date(2025, 1, 1)
FORMS = (("messages",), ("conversations",), ("prompt", "completion"))
TOOLS = "tools"  # of a record: what the assistant may call

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",  # OpenAI's newer name
}
_KNOWN = ("system", "user", "assistant", "tool")
_CALLS = ("tool_calls", "function_call")
_SAYS = (*_CALLS, "reasoning_content", "reasoning", "thinking")  # what an assistant's turn may say beside its content
_BY_HAND = "write the conversation as text yourself and give its input_ids, with labels"
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_MARKED = re.compile(r"\{%-?\s*generation\b")
_NOW = "strftime_now"  # what templates call for the day
_ASKED_NOW = re.compile(rf"""{_NOW}\s*\(\s*(?:format\s*=\s*)?(['"])([^'"\\]*)\1\s*\)""")
_IS_DEFINED = re.compile(rf"{_NOW}\s+is\s+(not\s+)?defined")

Message = dict[str, Any]


class Conversation(str):
    """A conversation as the JSON of its messages, or of its two texts, where a document has a text."""

    __slots__ = ()

    def identity(self) -> str:
        """Return what the conversation is recognised by, whatever form its record has: role and content of its turns."""
        held = json.loads(self)
        if "prompt" in held:
            return self
        turns = [{"role": message["role"], "content": message["content"]} for message in held["messages"]]
        return json.dumps({"messages": turns, "begun": 0}, ensure_ascii=False)


def conversation_of(record: Mapping[str, Any], form: tuple[str, ...], where: str) -> Conversation:
    """Return the conversation that a record has in one of the ``FORMS``.

    Raises:
        DataError: a turn has no role or no text, roles are out of order, or the assistant says nothing.
    """
    tools = _objects(record.get(TOOLS), TOOLS, where)
    if form == ("prompt", "completion"):
        prompt, completion = record["prompt"], record["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            if tools:
                raise DataError(
                    f"{where}: has 'tools', and prompt and completion are texts, which no template writes; remove the field"
                )
            return Conversation(json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False))
        turns = [*_listed(prompt, "prompt", where), *_listed(completion, "completion", where)]
        begun = len(prompt)
    else:
        turns, begun = _listed(record[form[0]], form[0], where), 0
    messages = [_message(turn, number, where) for number, turn in enumerate(turns, 1)]
    _require_order(messages, where)
    if not any(message["role"] == "assistant" for message in messages[begun:]):
        raise DataError(f"{where}: the assistant says nothing in it; remove the record, or give it as text")
    held = {"messages": messages, "begun": begun, **({TOOLS: tools} if tools else {})}
    try:
        return Conversation(json.dumps(held, ensure_ascii=False))
    except TypeError as error:  # a date, or bytes, in a call of a tool
        raise DataError(f"{where}: {error}; give tools and calls of them as JSON") from error


def half_of_pair(conversation: Conversation) -> str:
    """Return in which field or turn of the record a conversation first has half of a surrogate pair; it has one."""
    held = json.loads(conversation)
    parts = [(f"field {field!r}", held[field]) for field in ("prompt", "completion", TOOLS) if field in held]
    for number, message in enumerate(held.get("messages", []), 1):
        turn = f"turn {number} ({message['role']}), "
        parts += [(turn + ("content" if field == "content" else repr(field)), part) for field, part in message.items()]
    for place, part in parts:
        text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
        if found := _HALF.search(text):
            return f"{place}, character {found.start():,}" if text is part else f"a character of {place}"
    raise AssertionError("every character can be encoded")


def conversation_encoder(tokenizer: Any) -> Callable[[str, str], tuple[list[int], Spans]]:
    """Return a function from a conversation and its name to its token ids, and the spans [begin, end) of them that the
    assistant does not say.

    Raises:
        DataError: the tokenizer gives no offsets; by the function, where the tokenizer has no chat template, or the template
            refuses the conversation.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"a tokenizer of class {type(tokenizer).__name__} does not say which characters its tokens stand for, so what the "
            "assistant says cannot be found; choose a model with a fast tokenizer, or give text"
        )
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}

    def encode(conversation: str, name: str) -> tuple[list[int], Spans]:
        held = json.loads(conversation)
        if "prompt" in held:
            ids, said = _encode_texts(held["prompt"], held["completion"], tokenizer)
        else:
            ids, said = _encode_messages(held, name, tokenizer, special)
        return ids, complement(said, len(ids))

    return encode


def _encode_texts(prompt: str, completion: str, tokenizer: Any) -> tuple[list[int], Spans]:
    encoding = tokenizer(prompt + completion, return_offsets_mapping=True, truncation=False, verbose=False)
    ids, said = list(encoding["input_ids"]), [begin >= len(prompt) for begin, _ in encoding["offset_mapping"]]
    if (end := tokenizer.eos_token_id) is not None:  # otherwise the model would not learn to stop
        if ids[-1:] != [end]:
            ids, said = [*ids, end], [*said, True]
        said[-1] = True  # one that the tokenizer has added stands for no character of the completion
    return ids, runs(said)


def _encode_messages(held: Mapping[str, Any], name: str, tokenizer: Any, special: set[int]) -> tuple[list[int], Spans]:
    messages, begun, tools = held["messages"], held["begun"], held.get(TOOLS)
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise DataError(
            f"{name} is a conversation, and this model's tokenizer has no chat template to write it with; choose an instruct "
            "model, or give text"
        )
    _require_written(messages, tools, str(template), name)
    text = _rendered(messages, tools, name, tokenizer)
    if _MARKED.search(str(template)) and not begun:
        made = tokenizer.apply_chat_template(
            messages,
            tools,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            add_generation_prompt=False,
            **_at_a_fixed_date(tokenizer, tools, name),
        )
        return list(made["input_ids"]), runs([bool(one) for one in made["assistant_masks"]])
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    ids, begins = encoding["input_ids"], [begin for begin, _ in encoding["offset_mapping"]]
    said = [False] * len(ids)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant" or turn < begun:
            continue
        first, end = _place(messages, tools, turn, text, name, tokenizer)
        begin, after = bisect_left(begins, first), bisect_left(begins, end)
        if begin < after < len(ids) and begins[after] == end and ids[after] in special:
            after += 1  # it ends the turn
        said[begin:after] = [True] * (after - begin)
    return ids, runs(said)


def _require_written(messages: list[Message], tools: Any, template: str, name: str) -> None:
    """Raise a DataError for what the template never reads, which would be lost without a word."""
    lost = [(name, TOOLS)] if tools and not re.search(rf"\{{[{{%][^}}]*\b{TOOLS}\b", template) else []
    for number, message in enumerate(messages, 1):
        unread = (field for field in _SAYS if field in message and not re.search(rf"[.'\"]{field}\b", template))
        lost += [(f"{name}, turn {number}", field) for field in unread]
    if lost:
        where, field = lost[0]
        raise DataError(
            f"{where}: has {field!r}, which the tokenizer's chat template does not read, so it would be lost; remove the "
            f"field, or {_BY_HAND}"
        )


def _place(messages: list[Message], tools: Any, turn: int, text: str, name: str, tokenizer: Any) -> tuple[int, int]:
    """Where in the rendered text the assistant says its turn: what differs if it says a sign that the text has nowhere."""
    sign = next(sign for sign in map(chr, range(ord("①"), sys.maxunicode)) if sign not in text)
    silent = {field: value for field, value in messages[turn].items() if field not in _SAYS}
    changed = [*messages[:turn], {**silent, "content": sign}, *messages[turn + 1 :]]
    where = f"{name}, with another text as turn {turn + 1}"
    calls = any(field in messages[turn] for field in _CALLS)
    instead = f"{'remove its calls of tools, or ' if calls else ''}{_BY_HAND}"
    rendered = _rendered(changed, tools, where, tokenizer, f"this is rendered to find where the turn ends: {instead}")
    if calls and not text.endswith(rendered.rpartition(sign)[2]):
        raise DataError(
            f"{where}: the tokenizer's chat template writes later turns in another way, so where this turn ends is unknown; "
            f"{instead}"
        )
    begin = _alike(text, rendered)
    return begin, len(text) - _alike(text[begin:][::-1], rendered[begin:][::-1])


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda last: one[: last + 1] != other[: last + 1])


def _rendered(
    messages: list[Message],
    tools: Any,
    name: str,
    tokenizer: Any,
    instead: str = "correct or remove the record, or correct the template",
) -> str:
    day = _at_a_fixed_date(tokenizer, tools, name)
    try:
        text = str(tokenizer.apply_chat_template(messages, tools, tokenize=False, add_generation_prompt=False, **day))
    except Exception as error:  # a template may raise what it likes, and jinja its own
        raise DataError(
            f"{name}: the tokenizer's chat template refuses this conversation ({reason(error)}); {instead}"
        ) from error
    if not text.strip():
        raise DataError(
            f"{name}: the tokenizer's chat template renders nothing of this conversation; correct the template"
        )
    return text


def tells_the_date(template: str) -> bool:
    """Whether a chat template asks for the day on which it is rendered."""
    return _NOW in template


def _at_a_fixed_date(tokenizer: Any, tools: Any, name: str) -> dict[str, str]:
    """The template in which ``TODAY`` stands in the place of the day, if it asks for that.

    transformers takes no function in the place of its own.
    """
    if not tells_the_date(str(tokenizer.chat_template)):
        return {}
    template = _ASKED_NOW.sub(lambda call: repr(TODAY.strftime(call[2])), tokenizer.get_chat_template(tools=tools))
    if _NOW in _IS_DEFINED.sub("", template):
        raise DataError(
            f"{name}: the tokenizer's chat template asks for the date in another way than {_NOW}('%d %b %Y'), so the tokens would "
            "differ from day to day; write a date into the template"
        )
    return {"chat_template": template}


def _listed(value: Any, field: str, where: str) -> list[Any]:
    if isinstance(value, list) and value:
        return value
    held = "is empty" if value in (None, [], "") else f"is of type {type(value).__name__}"
    raise DataError(f"{where}: field {field!r} {held}, not a list of turns; correct or remove the record")


def _message(turn: Any, number: int, where: str) -> Message:
    """A turn with the names of OpenAI's API; of other entries those that say something are kept."""
    turn = turn if isinstance(turn, Mapping) else {}
    given = turn.get("role", turn.get("from"))
    named = str(given).lower()
    role, content = _ROLES.get(named, named), _joined(turn.get("content", turn.get("value")))
    if role not in _KNOWN:
        raise DataError(
            f"{where}, turn {number}: role {given!r} is none of {', '.join((*_KNOWN, *_ROLES))}; correct the record"
        )
    more = {name: turn[name] for name in (*_SAYS, "name", "tool_call_id") if turn.get(name)}
    if "tool_calls" in more:
        more["tool_calls"] = _objects(more["tool_calls"], "tool_calls", f"{where}, turn {number} ({role})")
    if not isinstance(content, str) and (content is not None or not any(name in more for name in _CALLS)):
        raise DataError(
            f"{where}, turn {number} ({role}): its content is of type {type(content).__name__}, not text or parts of type text; "
            "correct or remove the record"
        )
    for name in (name for name in _SAYS if name in more):
        if role != "assistant":
            raise DataError(
                f"{where}, turn {number} ({role}): has {name!r}, which only an assistant has; remove the field"
            )
        if name not in _CALLS and not isinstance(more[name], str):
            held = type(more[name]).__name__
            raise DataError(
                f"{where}, turn {number} ({role}): {name!r} is of type {held}, not text; correct the record"
            )
    return {"role": role, "content": content or "", **more}


def _joined(content: Any) -> Any:
    """The text of a content in parts, as OpenAI's API takes it, if all of them are texts; another content as it is."""
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and _is_text(part)]
    return "".join(texts) if parts and len(texts) == len(parts) else content


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _objects(value: Any, field: str, where: str) -> list[Any]:
    """A list of objects, or the JSON of one, in which tables hold what has other fields in each record."""
    given = value
    if isinstance(value, str):
        with suppress(ValueError):  # refused below
            value = json.loads(value or "null")
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return value
    raise DataError(
        f"{where}: field {field!r} is of type {type(given).__name__}, neither a list of objects nor the JSON of one; correct or "
        "remove it"
    )


def _require_order(messages: list[Message], where: str) -> None:
    roles = [message["role"] for message in messages]
    for number, (role, before) in enumerate(zip(roles, [None, *roles], strict=False), 1):
        first = before is None or before == "system"
        if (
            (role == "system" and number > 1)
            or (role == "user" and before == "user")
            or (role == "assistant" and first)
        ):
            follows = "comes first" if before is None else f"follows {before}"
            raise DataError(
                f"{where}, turn {number}: {role} {follows}; a conversation may begin with system, then user and assistant take "
                "turns. Correct or remove the record"
            )
        if role == before == "assistant":
            raise DataError(
                f"{where}, turn {number}: assistant follows assistant; join the two turns or remove the record"
            )
        if role == "tool" and before not in ("assistant", "tool"):
            raise DataError(
                f"{where}, turn {number}: tool answers nothing that the assistant asked; correct the record"
            )

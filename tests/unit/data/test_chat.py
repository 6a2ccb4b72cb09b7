"""Chats: five chat templates by an independent count, every form of record, and refusals."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from skipwise.data.chat import Conversation, chat_encoder
from skipwise.data.examples import PoseDataset
from skipwise.data.spans import IGNORED
from skipwise.data.tokenising import build_token_store
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from tests.tiny import byte_tokenizer

# What the published templates write, in a few lines each.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n'"
    " + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
)
QWEN3 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% set said = m['content'].split('</think>')[-1].lstrip('\n') if '</think>' in m['content'] else m['content'] %}"
    "{% set thought = m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m['content'] else '' %}"
    "{{ '<|im_start|>assistant\n' }}{% if loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ said + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]
AGENT = (  # as Qwen's templates write tools, reasoning and calls
    "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
)
NEEDS_CALLS = (
    "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a result without a call') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{{ m.reasoning_content }}{{ m.tool_calls }}\n{% endfor %}"
)
LOOKS_BACK = AGENT.replace(  # the turn of a tool says whether it was called
    "{{ m.content }}",
    "{% if m.role == 'tool' and messages[loop.index0 - 1].tool_calls %}{{ 'of a call: ' }}{% endif %}{{ m.content }}",
)
TURNS = [("user", "Where?"), ("assistant", "Here, A."), ("user", "And now?"), ("assistant", "There.")]


def tokenizer(template: str | None) -> Any:
    """Bytes and the special tokens, so that every piece of a text has the same tokens wherever it stands."""
    made = byte_tokenizer()
    made.add_tokens([AddedToken(token, special=True) for token in SPECIAL], special_tokens=True)
    made.chat_template = template
    return made


def messages(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def expected(made: Any, *pieces: tuple[str, bool]) -> tuple[list[int], list[bool]]:
    """Pieces of the rendered text, and whether the assistant says them, counted one by one."""
    ids: list[int] = []
    said: list[bool] = []
    for text, spoken in pieces:
        piece = made(text, add_special_tokens=False)["input_ids"]
        ids += piece
        said += [spoken] * len(piece)
    return ids, said


def chatml(end: str = "<|im_end|>") -> list[tuple[str, bool]]:
    pieces = []
    for role, content in TURNS:
        pieces += [(f"<|im_start|>{role}\n", False), (content + end, role == "assistant"), ("\n", False)]
    return pieces


def heads(begin: str, end: str, after: str, stop: str, names: dict[str, str]) -> list[tuple[str, bool]]:
    pieces = [("<|endoftext|>", False)]  # the tokenizer's BOS
    for role, content in TURNS:
        pieces += [
            (f"{begin}{names.get(role, role)}{end}", False),
            (content + stop, role == "assistant"),
            (after, False),
        ]
    return pieces


TEMPLATES = {
    "ChatML": (CHATML, chatml()),
    "Llama 3": (LLAMA_3, heads("<|start_header_id|>", "<|end_header_id|>\n\n", "", "<|eot_id|>", {})),
    "Gemma": (GEMMA, heads("<start_of_turn>", "\n", "\n", "<end_of_turn>", {"assistant": "model"})),
    "Qwen3": (QWEN3, [*chatml()[:-3], ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False), *chatml()[-2:]]),
    "marked": (MARKED, chatml()),
}


def encoded(made: Any, turns: list[dict[str, Any]], prompt_turns: int = 0) -> tuple[list[int], list[bool]]:
    ids, context = chat_encoder(made)(Conversation(turns, prompt_turns), "x:1")
    trained = [True] * len(ids)
    for begin, end in context:
        trained[begin:end] = [False] * (end - begin)
    return ids, trained


@pytest.mark.parametrize("marked", [False, True])
def test_a_template_that_writes_the_date_gives_the_same_tokens_every_day(marked: bool) -> None:
    asks = '{% if strftime_now is defined %}{% set day = strftime_now( "%d %b %Y") %}{% endif %}{{ day }}'
    made = tokenizer(asks + (MARKED if marked else CHATML))
    ids, _ = encoded(made, messages(*TURNS))
    assert made.decode(ids).startswith("01 Jan 2025<|im_start|>")


def test_a_tokenizer_without_offsets_is_refused() -> None:
    with pytest.raises(DataError, match="SimpleNamespace"):
        chat_encoder(SimpleNamespace(is_fast=False, added_tokens_decoder={}))


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistants_tokens_are_exactly_those(name: str) -> None:
    template, pieces = TEMPLATES[name]
    made = tokenizer(template)
    assert encoded(made, messages(*TURNS)) == expected(made, *pieces)


@pytest.mark.parametrize(("first", "last"), [("A", "A"), ("B", "B"), ("A-B", "B-A"), ("Here", "Where?"), ("", "x")])
def test_a_turn_may_begin_and_end_as_its_stand_in_does(first: str, last: str) -> None:
    made = tokenizer(CHATML)
    turns = [("user", "q"), ("assistant", first), ("user", first), ("assistant", last)]
    pieces = []
    for role, content in turns:
        spoken = role == "assistant" and bool(content)
        pieces += [(f"<|im_start|>{role}\n", False), (content + "<|im_end|>", spoken), ("\n", False)]
    assert encoded(made, messages(*turns)) == expected(made, *pieces)


def test_thoughts_are_said_where_the_template_keeps_them() -> None:
    made = tokenizer(QWEN3)
    ids, said = encoded(made, messages(("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nyes")))
    spoken = made.decode([token for token, one in zip(ids, said, strict=True) if one])
    assert spoken == "hm\n</think>\n\nyes<|im_end|>"


CALL = [{"function": {"arguments": {"a": 1}, "name": "add"}, "type": "function"}]
TOOLS = [{"function": {"name": "add"}, "type": "function"}]
CALLED = [
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": None, "reasoning_content": "I add.", "tool_calls": CALL},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("as_json", [False, True])
def test_tools_are_written_and_calls_and_reasoning_are_said(tmp_path: Path, kind: str, as_json: bool) -> None:
    given: Any = {"messages": CALLED, "tools": TOOLS}
    if as_json:
        turns = [turn | {"tool_calls": json.dumps(CALL) if "tool_calls" in turn else None} for turn in CALLED]
        given = {"messages": turns, "tools": json.dumps(TOOLS)}
    made = tokenizer(AGENT)
    store = build_token_store(write(tmp_path, kind, given, rows=1), made)
    call = '<think>\nI add.\n</think>\n\n\n<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call><|im_end|>'
    ids, said = expected(
        made,
        (f"<|im_start|>system\n{json.dumps(TOOLS)}<|im_end|>\n<|im_start|>user\nAdd.<|im_end|>\n", False),
        *[("<|im_start|>assistant\n", False), (call, True), ("\n<|im_start|>tool\n2<|im_end|>\n", False)],
        *[("<|im_start|>assistant\n", False), ("It is 2.<|im_end|>", True), ("\n", False)],
    )
    assert made.decode(store.document(0)) == made.decode(ids)
    assert (~store.is_context(np.arange(len(ids)))).tolist() == said


@pytest.mark.parametrize(
    ("template", "record", "message"),
    [
        (CHATML, {"messages": messages(*TURNS), "tools": TOOLS}, "'tools'"),
        (CHATML, {"messages": CALLED}, "'reasoning_content'"),
        (LOOKS_BACK, {"messages": CALLED}, "turn 2"),
        (NEEDS_CALLS, {"messages": CALLED}, r"turn 2 .*\(a result without a call\)"),
        ("{% if false %}x{% endif %}", {"messages": messages(*TURNS)}, "template"),
        (AGENT, {"messages": messages(*TURNS), "tools": "add"}, "line 1: tools"),
        (AGENT, {"messages": [CALLED[0], {"role": "assistant", "content": "x", "tool_calls": [1]}]}, "tool_calls"),
    ],
)
def test_no_field_of_a_turn_is_lost(tmp_path: Path, template: str, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_token_store(write(tmp_path, "jsonl", record, rows=1), tokenizer(template))


def test_of_a_prompt_of_messages_only_the_completion_is_said() -> None:
    made = tokenizer(CHATML)
    _, said = encoded(made, messages(*TURNS), 3)
    assert said == [one and place > len(said) // 2 for place, one in enumerate(expected(made, *chatml())[1])]


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("completion", ["Here.", "Here.<|endoftext|>"])
def test_a_completion_that_is_a_text_ends_in_one_trained_end_token(completion: str, adds: bool) -> None:
    made = tokenizer(None)
    if adds:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    text = completion.removesuffix("<|endoftext|>" if adds else "")
    ids, context = chat_encoder(made)(Conversation(texts=("Where? ", text)), "x:1")
    assert made.decode(ids) == "Where? Here.<|endoftext|>"
    assert context == [(0, len("Where? "))]


RECORDS = {
    "messages": {"messages": messages(*TURNS)},
    "conversations": {
        "conversations": [{"from": "gpt" if r == "assistant" else "human", "value": c} for r, c in TURNS]
    },
    "roles in capitals": {"messages": [{"role": r.capitalize(), "content": c} for r, c in TURNS]},
    "content in parts": {
        "messages": [
            {"role": r, "content": [{"type": "text", "text": c[:3]}, {"type": "text", "text": c[3:]}]} for r, c in TURNS
        ]
    },
    "prompt and completion": {"prompt": messages(*TURNS[:3]), "completion": messages(TURNS[3])},
    "two texts": {"prompt": "Where? ", "completion": "Here."},
}


def write(folder: Path, kind: str, record: dict[str, Any], rows: int = 3) -> Data:
    return write_rows(folder, kind, [record] * rows)


def write_rows(folder: Path, kind: str, table: list[dict[str, Any]]) -> Data:
    if kind == "jsonl":
        (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
        return Data(source=str(folder / "chat.jsonl"), cache=str(folder / "cache"))
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(table), folder / "chat.parquet")
        return Data(source=str(folder / "chat.parquet"), cache=str(folder / "cache"))
    datasets.Dataset.from_list(table).save_to_disk(folder / "chat")
    return Data(source=str(folder / "chat"), cache=str(folder / "cache"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("form", RECORDS)
def test_every_form_in_every_kind_of_file(tmp_path: Path, kind: str, form: str) -> None:
    made = tokenizer(CHATML)
    store = build_token_store(write(tmp_path, kind, RECORDS[form]), made)
    assert len(store) == 3
    if form == "two texts":
        pieces = [("Where? ", False), ("Here.<|endoftext|>", True)]
    elif form == "prompt and completion":
        pieces = [(text, said and place > 8) for place, (text, said) in enumerate(chatml())]
    else:
        pieces = chatml()
    ids, said = expected(made, *pieces)
    for index in range(3):
        places = np.arange(store.offsets[index], store.offsets[index + 1])
        assert store.document(index).tolist() == ids
        assert (~store.is_context(places)).tolist() == said


def test_a_conversation_is_recognised_in_every_form(tmp_path: Path) -> None:
    forms = {form: record for form, record in RECORDS.items() if form != "two texts"}
    found = set()
    for form, record in forms.items():
        (tmp_path / form).mkdir()
        found |= set(build_token_store(write(tmp_path / form, "jsonl", record), tokenizer(CHATML)).digests.tolist())
    assert len(found) == 1


def test_only_what_the_assistant_says_is_trained_if_asked(tmp_path: Path) -> None:
    record = {"messages": messages(*[(role, content * 20) for role, content in TURNS])}
    made = tokenizer(CHATML)
    store = build_token_store(write(tmp_path, "jsonl", record), made)
    options = {"train_length": 64, "target_length": 256, "examples": 40}
    alone = PoseDataset(store, np.arange(3), **options, data=Data(assistant_only=True))
    whole = PoseDataset(store, np.arange(3), **options, data=Data(assistant_only=True))
    whole._without_context = False  # the same windows, of which everything is trained
    trained = 0
    for index in range(40):
        one, all_ = alone[index], whole[index]
        assert (one["input_ids"] == all_["input_ids"]).all()
        assert (one["position_ids"] == all_["position_ids"]).all()
        kept = one["labels"] != IGNORED
        assert (one["labels"][kept] == all_["labels"][kept]).all()
        left_out = made.decode(one["input_ids"][(~kept) & (all_["labels"] != IGNORED)])
        assert "Here" not in left_out
        assert "Where" not in made.decode(one["labels"][kept])
        trained += kept.sum()
    assert 0.2 < trained / (40 * 64) < 0.7


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": messages(("user", "q"))}, "line 1"),
        ({"messages": messages(("user", "q"), ("robot", "a"))}, "turn 2: role 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "turn 1"),
        ({"messages": []}, "line 1"),
        ({"messages": None}, "line 1"),
        ({"messages": "q"}, "'messages'"),
        ({"prompt": "q", "completion": messages(("assistant", "a"))}, "'prompt'"),
        ({"messages": messages(("user", "q"), ("assistant", "\ud83d"))}, "line 1"),
    ],
)
def test_a_record_that_is_no_chat_is_refused(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_token_store(write(tmp_path, "jsonl", record, rows=1), tokenizer(CHATML))


def test_a_template_that_refuses_and_one_that_is_missing(tmp_path: Path) -> None:
    data = write(tmp_path, "jsonl", {"messages": messages(("system", "s"), *TURNS)})
    with pytest.raises(DataError, match=r"chat.jsonl:1: .*System role not supported"):
        build_token_store(data, tokenizer(GEMMA))
    with pytest.raises(DataError, match=r"chat.jsonl:1"):
        build_token_store(data, tokenizer(None))


@pytest.mark.parametrize("turned", [1, -1])
def test_texts_and_conversations_may_share_a_source(tmp_path: Path, turned: int) -> None:
    """Each is tokenised as it would be alone, and of a text nothing is context."""
    chat, plain = {"messages": messages(*TURNS)}, {"text": "plain text with <|im_start|> in it"}
    rows = [chat, plain, plain, chat][::turned]
    own = {}
    for name, row in (("chat", chat), ("plain", plain)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        own[name] = build_token_store(
            Data(source=str(tmp_path / f"{name}.jsonl"), cache=str(tmp_path / "c")), tokenizer(CHATML)
        )
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = build_token_store(Data(source=str(tmp_path / "both.jsonl"), cache=str(tmp_path / "c")), tokenizer(CHATML))
    for document, row in enumerate(rows):
        alone = own["chat" if row is chat else "plain"]
        places = np.arange(both.offsets[document], both.offsets[document + 1])
        assert both.tokens[places].tolist() == alone.tokens[: alone.offsets[1]].tolist()
        assert both.is_context(places).tolist() == alone.is_context(np.arange(alone.offsets[1])).tolist()
    assert both.holds_conversations
    assert not own["plain"].holds_conversations


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_of_a_table_of_texts_and_conversations_null_is_absent(tmp_path: Path, kind: str) -> None:
    chat, plain = {"text": None, "messages": messages(*TURNS)}, {"text": "plain", "messages": None}
    texts = {"prompt": "Where? ", "completion": "Here."}
    rows = [{**dict.fromkeys(texts), **one} for one in (chat, plain)] + [{"text": None, "messages": None, **texts}]
    made, found = tokenizer(CHATML), []
    for turned in (1, -1):
        (tmp_path / str(turned)).mkdir()
        store = build_token_store(write_rows(tmp_path / str(turned), kind, rows[::turned]), made)
        found.append([made.decode(store.document(index)) for index in range(3)][::turned])
        assert store.holds_conversations
    assert found[0] == found[1]
    assert found[0][0].startswith("<|im_start|>user\nWhere?")
    assert found[0][1] == "plain"
    assert found[0][2].startswith("Where? Here.")


def test_training_the_assistant_alone_needs_conversations(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a b c " * 100}) + "\n")
    store = build_token_store(
        Data(source=str(tmp_path / "text.jsonl"), cache=str(tmp_path / "cache")), byte_tokenizer()
    )
    assert not store.is_context(np.arange(10)).any()
    with pytest.raises(DataError, match="assistant_only"):
        PoseDataset(store, np.arange(1), train_length=64, target_length=256, data=Data(assistant_only=True))

"""Chats: five chat templates by an independent count, every form of record, and refusals."""

import json
from pathlib import Path
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
from skipwise.data.store import build_token_store
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
SPECIAL = [f"<|{name}|>" for name in ("im_start", "im_end", "start_header_id", "end_header_id", "eot_id")]
AGENT = (  # as Qwen's templates write tools, reasoning and calls
    "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
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


def turns(begin: str, end: str, stop: str, after: str) -> list[tuple[str, bool]]:
    """The pieces of ``TURNS``, and whether the assistant says them."""
    pieces = []
    for role, content in TURNS:
        pieces += [(f"{begin}{role}{end}", False), (content + stop, role == "assistant"), (after, False)]
    return pieces


PIECES = turns("<|im_start|>", "\n", "<|im_end|>", "\n")
THOUGHT = [("<|im_start|>assistant\n<think>\n\n</think>\n\n", False)]
TEMPLATES = {
    "ChatML": (CHATML, PIECES),
    "Llama 3": (
        LLAMA_3,
        [("<|endoftext|>", False), *turns("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "")],
    ),
    "Qwen3": (QWEN3, [*PIECES[:-3], *THOUGHT, *PIECES[-2:]]),
    "marked": (MARKED, PIECES),
}


def encoded(made: Any, given: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    ids, context = chat_encoder(made)(Conversation(given), "x:1")
    return ids, (~context).tolist()


def test_a_template_that_writes_the_date_gives_the_same_tokens_every_day() -> None:
    made = tokenizer('{{ strftime_now("%d %b %Y") }}' + CHATML)
    assert made.decode(encoded(made, messages(*TURNS))[0]).startswith("01 Jan 2025<|im_start|>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistants_tokens_are_exactly_those(name: str) -> None:
    template, pieces = TEMPLATES[name]
    made = tokenizer(template)
    assert encoded(made, messages(*TURNS)) == expected(made, *pieces)


CALL = [{"function": {"arguments": {"a": 1}, "name": "add"}, "type": "function"}]
TOOLS = [{"function": {"name": "add"}, "type": "function"}]
CALLED = [
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": None, "reasoning_content": "I add.", "tool_calls": CALL},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


@pytest.mark.parametrize(("kind", "as_json"), [("jsonl", False), ("parquet", True), ("saved", False)])
def test_tools_are_written_and_calls_and_reasoning_are_said(tmp_path: Path, kind: str, as_json: bool) -> None:
    given: Any = {"messages": CALLED, "tools": TOOLS}
    if as_json:
        called = [turn | {"tool_calls": json.dumps(CALL) if "tool_calls" in turn else None} for turn in CALLED]
        given = {"messages": called, "tools": json.dumps(TOOLS)}
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


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": messages(*turns)}


@pytest.mark.parametrize(
    ("template", "record", "place"),
    [
        (CHATML, chat(*TURNS) | {"tools": TOOLS}, "'tools'"),
        (CHATML, {"messages": CALLED}, "'reasoning_content'"),
        (None, chat(*TURNS), "chat.jsonl:1"),
        (CHATML, chat(("user", "q")), "line 1"),
        (CHATML, chat(("user", "q"), ("robot", "a")), "turn 2"),
        (CHATML, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "turn 1"),
        (CHATML, {"prompt": "q", "completion": messages(("assistant", "a"))}, "'prompt'"),
    ],
)
def test_what_is_no_chat_or_would_be_lost_is_refused(tmp_path: Path, template, record, place: str) -> None:
    with pytest.raises(DataError, match=place):
        build_token_store(write(tmp_path, "jsonl", record, rows=1), tokenizer(template))


@pytest.mark.parametrize(("completion", "adds"), [("Here.", False), ("Here.<|endoftext|>", False), ("Here.", True)])
def test_a_completion_that_is_a_text_ends_in_one_trained_end_token(completion: str, adds: bool) -> None:
    made = tokenizer(None)
    if adds:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    ids, context = chat_encoder(made)(Conversation(texts=("Where? ", completion)), "x:1")
    assert made.decode(ids) == "Where? Here.<|endoftext|>"
    assert np.flatnonzero(context).tolist() == list(range(len("Where? ")))


NAMED = {"assistant": "gpt", "user": "human"}
RECORDS = {
    "messages": {"messages": messages(*TURNS)},
    "conversations": {"conversations": [{"from": NAMED[role], "value": content} for role, content in TURNS]},
    "roles in capitals and content in parts": {
        "messages": [
            {"role": role.title(), "content": [{"type": "text", "text": part} for part in (content[:3], content[3:])]}
            for role, content in TURNS
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
        return Data(source=str(folder / "chat.jsonl"))
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(table), folder / "chat.parquet")
        return Data(source=str(folder / "chat.parquet"))
    datasets.Dataset.from_list(table).save_to_disk(folder / "chat")
    return Data(source=str(folder / "chat"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_every_form_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    made, digests = tokenizer(CHATML), set()
    for form, record in RECORDS.items():
        (tmp_path / form).mkdir()
        store, pieces = build_token_store(write(tmp_path / form, kind, record), made), PIECES
        if form == "two texts":
            pieces = [("Where? ", False), ("Here.<|endoftext|>", True)]
        if form == "prompt and completion":
            pieces = [(text, said and place > 8) for place, (text, said) in enumerate(pieces)]
        ids, said = expected(made, *pieces)
        for index in range(3):
            places = np.arange(store.offsets[index], store.offsets[index + 1])
            assert store.document(index).tolist() == ids
            assert (~store.is_context(places)).tolist() == said
        digests |= set(store.digests.tolist())
    assert len(digests) == 2  # the same conversation in every form, and the texts


def test_training_the_assistant_alone_needs_conversations(tmp_path: Path) -> None:
    store = build_token_store(write_rows(tmp_path, "jsonl", [{"text": "a b c " * 100}]), byte_tokenizer())
    assert not store.holds_conversations
    with pytest.raises(DataError, match="assistant_only_loss"):
        PoseDataset(store, np.arange(1), train_length=64, target_length=256, data=Data(assistant_only_loss=True))

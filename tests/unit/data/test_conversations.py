"""Conversations: five chat templates by an independent count, every form of record, and messages for what is wrong."""

import hashlib
import json
import re
from datetime import date
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

from skipwise.data import conversations, tokenising
from skipwise.data.conversations import Conversation, conversation_encoder
from skipwise.data.corpus import Document
from skipwise.data.examples import PoseDataset
from skipwise.data.spans import IGNORED
from skipwise.data.tokenising import build_token_store
from skipwise.data.tokens import SCHEMA
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from skipwise.results.files import read_json, write_json
from tests.tiny import byte_tokenizer

# What the published templates write, in a few lines each.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
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
    "SmolLM2": (SMOLLM2, [("<|im_start|>system\nYou help.<|im_end|>\n", False), *chatml()]),
    "Llama 3": (LLAMA_3, heads("<|start_header_id|>", "<|end_header_id|>\n\n", "", "<|eot_id|>", {})),
    "Gemma": (GEMMA, heads("<start_of_turn>", "\n", "\n", "<end_of_turn>", {"assistant": "model"})),
    "Qwen3": (QWEN3, [*chatml()[:-3], ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False), *chatml()[-2:]]),
    "marked": (MARKED, chatml()),
}


def encoded(made: Any, turns: list[dict[str, Any]], **more: Any) -> tuple[list[int], list[bool]]:
    ids, context = conversation_encoder(made)(json.dumps({"messages": turns, "begun": 0} | more), "x:1")
    said = [True] * len(ids)
    for begin, end in context:
        said[begin:end] = [False] * (end - begin)
    return ids, said


@pytest.mark.parametrize("marked", [False, True])
def test_a_template_that_writes_the_date_gives_the_same_tokens_every_day(marked: bool) -> None:
    """As Llama 3.2's; with the date of the day, a resumed run would be trained on other tokens."""
    asks = '{% if strftime_now is defined %}{% set day = strftime_now( "%d %b %Y") %}{% endif %}{{ day }}'
    made = tokenizer(asks + (MARKED if marked else CHATML))
    ids, _ = encoded(made, messages(*TURNS))
    assert made.decode(ids).startswith("01 Jan 2025<|im_start|>")


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ("{{ strftime_now (format='%Y') }}", "2025"),
        ('{% if strftime_now is not defined %}x{% endif %}{{ strftime_now("%d %b") }}', "01 Jan"),
        ("{{ strftime_now('%Y' ~ '') }}", None),
        ("{% set now = strftime_now %}{{ now('%Y') }}", None),
        ("{{ strftime_now('%d\\n%Y') }}", None),
    ],
)
def test_other_ways_to_ask_for_the_date_are_read_or_refused(asks: str, said: str | None) -> None:
    made = tokenizer(asks + CHATML)
    if said is None:
        with pytest.raises(
            DataError, match=r"x:1: .* asks for the date in another way .*; write a date into the template"
        ):
            encoded(made, messages(*TURNS))
    else:
        assert made.decode(encoded(made, messages(*TURNS))[0]).startswith(f"{said}<|im_start|>")


def test_with_another_fixed_date_a_store_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(tmp_path, "jsonl", {"messages": messages(*TURNS)}, rows=1)
    made = tokenizer("{{ strftime_now('%Y') }}" + CHATML)
    years = []
    for year in (2025, 2030):
        for module in (tokenising, conversations):
            monkeypatch.setattr(module, "TODAY", date(year, 1, 1))
        years.append(made.decode(build_token_store(text, made).tokens[:4]))
    assert years == ["2025", "2030"]


def test_a_tokenizer_without_offsets_is_refused() -> None:
    slow = SimpleNamespace(is_fast=False, added_tokens_decoder={})
    with pytest.raises(DataError, match=r"SimpleNamespace does not say which characters .*; choose a model with"):
        conversation_encoder(slow)


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
        (CHATML, {"messages": messages(*TURNS), "tools": TOOLS}, "chat.jsonl:1: has 'tools', which .* does not read"),
        (
            CHATML,
            {"messages": CALLED},
            "chat.jsonl:1, turn 2: has 'tool_calls', which .* lost; remove the field, or write",
        ),
        (
            CHATML,
            {"messages": [CALLED[0], {"role": "assistant", "content": "x", "reasoning_content": "y"}]},
            "turn 2: has 'reasoning_content', which the tokenizer's chat template does not read",
        ),
        (
            LOOKS_BACK,
            {"messages": CALLED},
            "chat.jsonl:1, with another text as turn 2: .* writes later turns in another way.* remove its calls",
        ),
        (
            NEEDS_CALLS,
            {"messages": CALLED},
            r"as turn 2: .* refuses this conversation \(a result without a call\); this is rendered to find where the turn ends: "
            "remove its calls",
        ),
        ("{% if false %}x{% endif %}", {"messages": messages(*TURNS)}, "chat.jsonl:1: .* renders nothing of this conv"),
        (AGENT, {"messages": messages(*TURNS), "tools": "add"}, "line 1: field 'tools' is of type str, neither a list"),
        (
            AGENT,
            {"prompt": "a", "completion": "b", "tools": TOOLS},
            "line 1: has 'tools', and prompt and completion are",
        ),
        (
            AGENT,
            {"messages": [CALLED[0], {"role": "assistant", "content": "x", "tool_calls": [1]}]},
            r"turn 2 \(assistant\): field 'tool_calls' is of type list, neither a list of objects",
        ),
        (
            AGENT,
            {"messages": [CALLED[0], {"role": "assistant", "content": "x", "reasoning_content": ["y"]}]},
            r"turn 2 \(assistant\): 'reasoning_content' is of type list, not text",
        ),
        (
            AGENT,
            {"messages": [{"role": "user", "content": "x", "tool_calls": CALL}]},
            r"turn 1 \(user\): has 'tool_calls', which only an assistant has; remove the field",
        ),
    ],
)
def test_nothing_of_a_turn_or_of_its_tools_is_lost_without_a_word(
    tmp_path: Path, template: str, record: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        build_token_store(write(tmp_path, "jsonl", record, rows=1), tokenizer(template))


def test_of_a_prompt_of_messages_only_the_completion_is_said() -> None:
    made = tokenizer(CHATML)
    _, said = encoded(made, messages(*TURNS), begun=3)
    assert said == [one and place > len(said) // 2 for place, one in enumerate(expected(made, *chatml())[1])]


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("completion", ["Here.", "Here.<|endoftext|>"])
def test_a_completion_that_is_a_text_ends_in_one_trained_end_token(completion: str, adds: bool) -> None:
    made = tokenizer(None)
    if adds:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    held = json.dumps({"prompt": "Where? ", "completion": completion.removesuffix("<|endoftext|>" if adds else "")})
    ids, context = conversation_encoder(made)(held, "x:1")
    assert made.decode(ids) == "Where? Here.<|endoftext|>"
    assert context == [(0, len("Where? "))]


def test_without_an_end_token_a_completion_stays_as_it_is() -> None:
    made = tokenizer(None)
    made.eos_token = None
    ids, context = conversation_encoder(made)(json.dumps({"prompt": "Where? ", "completion": "Here."}), "x:1")
    assert made.decode(ids) == "Where? Here."
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
    """By its turns alone; a run records these digests, so that of ``messages`` stays what it was."""
    forms = {form: record for form, record in RECORDS.items() if form != "two texts"}
    found = set()
    for form, record in forms.items():
        (tmp_path / form).mkdir()
        found |= set(build_token_store(write(tmp_path / form, "jsonl", record), tokenizer(CHATML)).digests.tolist())
    before = json.dumps({"messages": messages(*TURNS), "begun": 0})
    assert found == {int.from_bytes(Document("", before).digest, "little")}


def test_openais_developer_is_the_system(tmp_path: Path) -> None:
    made = tokenizer(CHATML)
    for role in ("developer", "system"):
        (tmp_path / role).mkdir()
    stores = [
        build_token_store(write(tmp_path / role, "jsonl", {"messages": messages((role, "Be kind."), *TURNS)}), made)
        for role in ("developer", "system")
    ]
    assert stores[0].document(0).tolist() == stores[1].document(0).tolist()


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
        ({"messages": messages(("user", "q"))}, "line 1: the assistant says nothing in it"),
        ({"messages": messages(("user", "q"), ("user", "r"), ("assistant", "a"))}, "turn 2: user follows user"),
        ({"messages": messages(("assistant", "a"), ("user", "q"))}, "turn 1: assistant comes first"),
        (
            {"messages": messages(("user", "q"), ("assistant", "a"), ("assistant", "b"))},
            "turn 3: assistant follows assistant",
        ),
        ({"messages": messages(("user", "q"), ("system", "s"), ("assistant", "a"))}, "turn 2: system follows user"),
        ({"messages": messages(("user", "q"), ("tool", "t"), ("assistant", "a"))}, "turn 2: tool answers nothing"),
        ({"messages": messages(("user", "q"), ("robot", "a"))}, "turn 2: role 'robot' is none of system, user"),
        *(
            (
                {"messages": [{"role": "user", "content": content}]},
                r"turn 1 \(user\): its content is of type list, not text",
            )
            for content in (["q"], [], [{"type": "text", "text": "q"}, {"type": "image_url"}], [{"type": "text"}])
        ),
        ({"messages": []}, "field 'messages' is empty, not a list of turns"),
        ({"messages": None}, r"field 'messages' is empty \(null\), and no other holds a document; remove the record"),
        ({"messages": "q"}, "field 'messages' is of type str, not a list of turns"),
        (
            {"prompt": "q", "completion": messages(("assistant", "a"))},
            "field 'prompt' is of type str, not a list of turns",
        ),
        (
            {"body": "b"},
            r"no field 'text' among 'body', nor one of messages, conversations, prompt and completion, input_ids",
        ),
    ],
)
def test_what_is_no_conversation_is_explained(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_token_store(write(tmp_path, "jsonl", record, rows=1), tokenizer(CHATML))


HALF_CALL = [{"function": {"arguments": {"a": "b\udc00"}, "name": "add"}, "type": "function"}]


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"messages": messages(("user", "a"), ("assistant", "bc\ud83d"))}, "turn 2 (assistant), content, character 2"),
        (
            {"conversations": [{"from": "human", "value": "\ud83d"}, {"from": "gpt", "value": "b"}]},
            "turn 1 (user), content, character 0",
        ),
        (
            {"messages": [*messages(("user", "a")), {"role": "assistant", "content": "b", "reasoning": "c\ud83d"}]},
            "turn 2 (assistant), 'reasoning', character 1",
        ),
        (
            {"messages": [*messages(("user", "a")), {"role": "assistant", "tool_calls": json.dumps(HALF_CALL)}]},
            "a character of turn 2 (assistant), 'tool_calls'",
        ),
        ({"messages": messages(*TURNS), "tools": [{"name": "\ud83d"}]}, "a character of field 'tools'"),
        ({"prompt": "a", "completion": "bcd\ud83d"}, "field 'completion', character 3"),
        (
            {"prompt": messages(("user", "a")), "completion": messages(("assistant", "b\ud83d"))},
            "turn 2 (assistant), content, character 1",
        ),
    ],
)
def test_half_a_surrogate_pair_is_found_in_its_field(tmp_path: Path, record: dict[str, Any], place: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    rule = f"a.jsonl, line 1: {place} is half of a surrogate pair, which UTF-8 cannot encode; correct or remove"
    with pytest.raises(DataError, match=re.escape(rule)):
        build_token_store(Data(source=str(tmp_path / "a.jsonl")), tokenizer(CHATML))


def test_a_template_that_refuses_and_one_that_is_missing_are_explained(tmp_path: Path) -> None:
    data = write(tmp_path, "jsonl", {"messages": messages(("system", "s"), *TURNS)})
    with pytest.raises(
        DataError, match=r"chat.jsonl:1: the tokenizer's chat template refuses.*System role not supported"
    ):
        build_token_store(data, tokenizer(GEMMA))
    with pytest.raises(
        DataError, match=r"chat.jsonl:1 is a conversation, and this model's tokenizer has no chat template"
    ):
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


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_a_record_in_which_all_is_null_is_refused(tmp_path: Path, kind: str) -> None:
    rows = [{"text": None, "messages": messages(*TURNS)}, {"text": None, "messages": None}]
    with pytest.raises(DataError, match=r"(line|row) 2: field 'text' is empty \(null\), not text; name the field"):
        build_token_store(write_rows(tmp_path, kind, rows), tokenizer(CHATML))


def test_of_a_mixture_texts_are_trained_whole_and_of_conversations_what_the_assistant_says(tmp_path: Path) -> None:
    rows = [{"messages": messages(*TURNS)}, {"text": "%" * 440}] * 3  # no turn has such a sign
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = build_token_store(Data(source=str(tmp_path / "both.jsonl"), cache=str(tmp_path / "c")), tokenizer(CHATML))
    trains = Data(assistant_only=True, train_jumps=True)
    data = PoseDataset(store, np.arange(6), train_length=200, target_length=800, data=trains, examples=24)
    sign = store.tokens[store.offsets[1] + 5]
    chat = np.arange(store.offsets[1])
    of_assistant = {int(id) for id in store.tokens[chat[~store.is_context(chat)]]}
    assert of_assistant < {int(id) for id in store.tokens[chat]}
    trained = answered = 0
    for example in data.__getitems__(range(24)):
        of_text = example["input_ids"] == sign
        of_text &= np.diff(example["attention_mask"], prepend=0) == 0  # the first of a text follows from nothing
        assert (example["labels"][of_text] == sign).all()
        said = [int(id) for id in example["labels"] if id not in (IGNORED, sign)]
        assert set(said) <= of_assistant
        trained += of_text.sum()
        answered += len(said)
    assert trained > 24 * 50
    assert answered > 24 * 2


def test_a_template_counts_in_the_fingerprint_wherever_the_first_conversation_stands(tmp_path: Path) -> None:
    rows = [{"text": "plain"}, {"messages": messages(*TURNS)}]
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Data(source=str(tmp_path / "both.jsonl"), cache=str(tmp_path / "c"))
    assert (
        build_token_store(data, tokenizer(CHATML)).fingerprint
        != build_token_store(data, tokenizer(LLAMA_3)).fingerprint
    )


def test_another_template_is_another_store(tmp_path: Path) -> None:
    data = write(tmp_path, "jsonl", {"messages": messages(*TURNS)})
    one, other = (build_token_store(data, tokenizer(template)) for template in (CHATML, LLAMA_3))
    assert one.fingerprint != other.fingerprint
    assert build_token_store(data, tokenizer(CHATML)).fingerprint == one.fingerprint


def test_texts_alone_have_one_store_whatever_the_template_and_the_cache(tmp_path: Path) -> None:
    """Runs know their text by the store's name: it must not depend on who tokenised the text before."""
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "plain"}) + "\n")
    data = Data(source=str(tmp_path / "text.jsonl"), cache=str(tmp_path / "c"))
    fresh = build_token_store(Data(source=data.source, cache=str(tmp_path / "d")), tokenizer(CHATML))
    older = build_token_store(data, tokenizer(None))
    assert build_token_store(data, tokenizer(CHATML)).fingerprint == older.fingerprint == fresh.fingerprint


def test_a_store_of_texts_that_an_older_schema_named_with_the_template_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "plain"}) + "\n")
    data = Data(source=str(tmp_path / "text.jsonl"), cache=str(tmp_path / "c"))
    fresh = build_token_store(data, tokenizer(CHATML))
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tokenising, "_sha256", lambda text: made.append(hashlib.sha256(text.encode()).hexdigest()) or made[-1]
        )
        build_token_store(data, tokenizer(CHATML))
    with_template = next(name for name in made[::-1] if name != fresh.fingerprint)
    write_json(fresh.path / "store.json", read_json(fresh.path / "store.json") | {"schema": SCHEMA - 1})
    fresh.path.rename(fresh.path.with_name(with_template))
    assert build_token_store(data, tokenizer(CHATML)).path == fresh.path


def test_training_the_assistant_alone_needs_conversations(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a b c " * 100}) + "\n")
    store = build_token_store(
        Data(source=str(tmp_path / "text.jsonl"), cache=str(tmp_path / "cache")), byte_tokenizer()
    )
    assert not store.is_context(np.arange(10)).any()
    with pytest.raises(DataError, match=r"assistant_only .* this text has no conversation"):
        PoseDataset(store, np.arange(1), train_length=64, target_length=256, data=Data(assistant_only=True))


def test_a_text_field_that_is_there_is_read_and_turns_may_be_named_by_it(tmp_path: Path) -> None:
    record = {"text": "plain", "messages": messages(*TURNS)}
    data = write(tmp_path, "jsonl", record)
    assert isinstance(record["text"], str)
    made = tokenizer(CHATML)
    assert made.decode(build_token_store(data, made).document(0)) == "plain"
    named = data.model_copy(update={"text_field": "messages"})
    assert made.decode(build_token_store(named, made).document(0)).startswith("<|im_start|>user\nWhere?")
    assert isinstance(Conversation("x"), str)

"""Tokenised data: every form of record gives the ids themselves, labels are obeyed, and ids beyond the vocabulary are refused."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from skipwise.data.examples import PoseDataset
from skipwise.data.store import TokenStore, build_token_store
from skipwise.data.text import IGNORED
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from tests.tiny import byte_tokenizer

TEXT = "The ferry leaves at nine, and the market opens when it lands. " * 8
FORMS = ["jsonl", "parquet", "saved int32"]


def rows(text: str = TEXT, count: int = 3) -> list[dict[str, Any]]:
    """Records as a tokenizer's ``map`` leaves them; the first half of each is not trained."""
    made = []
    for row in range(count):
        ids = byte_tokenizer()(text[row:])["input_ids"]
        half = len(ids) // 2
        made.append({"input_ids": ids, "labels": [-100] * half + ids[half:], "attention_mask": [1] * len(ids)})
    return made


def write(folder: Path, form: str, records: list[dict[str, Any]]) -> Data:
    path = folder / f"data.{form.split()[0]}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif form == "parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        int32 = datasets.Sequence(datasets.Value("int32"))
        datasets.Dataset.from_list(records).cast_column("input_ids", int32).save_to_disk(str(path))
    return Data(source=str(path))


def store_of(folder: Path, records: list[dict[str, Any]], form: str = "jsonl", **changes: Any) -> TokenStore:
    data = write(folder, form, records).model_copy(update=changes)
    return build_token_store(data, byte_tokenizer())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labelled", [False, True])
def test_the_store_has_the_ids_and_what_labels_leave_out(tmp_path: Path, form: str, labelled: bool) -> None:
    records = rows()
    given = [record if labelled else {"input_ids": record["input_ids"]} for record in records]
    store = store_of(tmp_path, given, form)
    assert store.labelled
    assert len(store) == len(records)
    for index, record in enumerate(records):
        assert store.document(index).tolist() == record["input_ids"]
        places = np.arange(store.offsets[index], store.offsets[index + 1])
        left_out = np.array(record["labels"]) == -100
        assert (store.is_context(places) == (left_out if labelled else False)).all()


def test_what_labels_leave_out_is_never_trained(tmp_path: Path) -> None:
    store = store_of(tmp_path, rows())
    data = PoseDataset(store, np.arange(3), train_length=64, target_length=256, examples=200)
    chosen, plans = data._drawn(np.arange(200))
    places = store.offsets[chosen][:, None] + plans.content_indices()
    document = np.searchsorted(store.offsets, places, side="right") - 1
    allowed = places - store.offsets[document] >= store.lengths[document] // 2
    kept = np.array([data[index]["labels"] != IGNORED for index in range(200)])
    assert not (kept & ~allowed).any()
    assert kept[allowed].mean() > 0.9  # all but the first labels of chunks


def test_a_text_field_that_is_there_comes_first_and_ids_may_be_named(tmp_path: Path) -> None:
    records = [{"text": "plain text", "input_ids": rows()[0]["input_ids"]}]
    assert byte_tokenizer().decode(store_of(tmp_path, records).document(0)) == "plain text"
    named = store_of(tmp_path, records, text_field="input_ids")
    assert named.document(0).tolist() == records[0]["input_ids"]


@pytest.mark.parametrize(
    ("records", "place"),
    [
        ([{"input_ids": "abc"}], "line 1"),
        ([{"input_ids": [1, 99_999]}], "jsonl:1.* 99999"),
        ([{"input_ids": [1, 2, 3], "labels": [1, 2]}], "line 1"),
        ([{"input_ids": [1, 2, 3], "labels": [2, 3, -100]}], "line 1"),
    ],
)
def test_records_that_are_refused(tmp_path: Path, records: list[dict[str, Any]], place: str) -> None:
    with pytest.raises(DataError, match=place):
        store_of(tmp_path, records)

"""The token store: the tokenizer's own ids, cached by content, complete or refused; and the split of its documents."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers.processors import TemplateProcessing

from skipwise.data import store as store_module
from skipwise.data.store import (
    FILES,
    TokenStore,
    build_token_store as build,
    check_vocabulary,
    split_by_name,
    split_documents,
    tokenizer_fingerprint,
)
from skipwise.data.text import is_held_out, open_corpus
from skipwise.errors import DataError, SkipwiseError
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data

TEXTS = {"a.txt": "the sky is blue", "b.txt": "", "c.txt": "grün ☘ <s> 12345 " * 20, "d.txt": "here we go"}


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(corpus, cache, tokenizer) -> TokenStore:
    return build_token_store(corpus, tokenizer)


def build_token_store(source, tokenizer, *, on_progress=None, **changes) -> TokenStore:
    return build(Data(source=str(source), **changes), tokenizer, on_progress=on_progress)


def built(cache: Path) -> list[str]:
    return [name for name in os.listdir(cache / "tokens") if name != ".locks"]


def contents(store: TokenStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.path.iterdir()}


class TestContents:
    def test_are_the_tokenizers_own_ids_in_order(self, store, tokenizer):
        assert list(store.names) == list(TEXTS)
        for index, text in enumerate(TEXTS.values()):
            assert store.document(index).tolist() == tokenizer(text)["input_ids"]
        assert store.offsets.tolist() == [0, *np.cumsum(store.lengths)]
        assert store.largest_token == store.tokens.max()
        assert isinstance(store.document(2), np.memmap)
        assert not store.tokens.flags.writeable
        assert store.tokens.dtype == np.uint16
        assert np.array_equal(pickle.loads(pickle.dumps(store)).tokens, store.tokens)

    def test_truncation_and_padding_are_not_applied(self, corpus, cache, make_tokenizer):
        fresh, used = make_tokenizer(), make_tokenizer()
        used(["the sky", "is"], truncation=True, max_length=2, padding="max_length")
        assert tokenizer_fingerprint(used) == tokenizer_fingerprint(fresh)
        state = used.backend_tokenizer.truncation
        store = build_token_store(corpus, used)
        assert store.document(2).tolist() == fresh(TEXTS["c.txt"])["input_ids"]
        assert used.backend_tokenizer.truncation == state

    def test_batches_change_nothing(self, corpus, cache, tokenizer, monkeypatch):
        for number in range(3):
            (corpus / f"{number}.txt").write_text("the sky is blue\n" * 50 * (number + 1))
        whole = build_token_store(corpus, tokenizer)
        monkeypatch.setattr(store_module, "_BATCH_CHARACTERS", 1)
        seen = []
        monkeypatch.setenv("SKIPWISE_CACHE", str(cache / "cut"))
        cut = build_token_store(corpus, tokenizer, on_progress=lambda *counts: seen.append(counts))
        assert contents(cut) == contents(whole)
        # An empty document does not fill a batch.
        assert seen == [(n, cut.offsets[n], n / 7) for n in (1, 2, 3, 4, 6, 7)]

    def test_a_tokenizer_without_a_rust_side(self):
        slow = lambda texts, **options: {"input_ids": [[len(text)] for text in texts]}  # noqa: E731
        assert list(store_module.text_encoder(slow)(["ab", "c" * 10])) == [[2], [10]]


class TestCache:
    def test_is_used_again_wherever_the_same_content_lies(self, store, corpus, cache, make_tokenizer, tokenizer):
        moved, seen = corpus.rename(corpus.with_name("moved")), []
        again = build_token_store(moved, tokenizer, on_progress=lambda *counts: seen.append(counts))
        assert again.path == store.path == cache / "tokens" / store.fingerprint
        assert seen == [(4, len(store.tokens), 1.0)]
        others = [build_token_store(moved, make_tokenizer(bos=False))]
        (moved / "d.txt").write_text("here we stay")
        others.append(build_token_store(moved, tokenizer))
        assert len({store.fingerprint, *(other.fingerprint for other in others)}) == 3
        assert others[0].digests.tolist() == store.digests.tolist()  # of the text, under every tokenizer
        assert (others[1].digests == store.digests).tolist() == [True, True, True, False]

    @pytest.mark.parametrize("name", [*FILES, "store.json"])
    @pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
    def test_a_damaged_store_is_refused(self, store, corpus, cache, tokenizer, name, damage):
        path = store.path / name
        whole = path.read_bytes() or b"\0"  # text has no context
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-5] + b"!" * (name == "context.bin") if damage == "cut" else whole[:-1] + b"!")
        with pytest.raises(SkipwiseError, match=name):
            build_token_store(corpus, tokenizer)

    def test_many_builders_at_once(self, corpus, cache, tokenizer):
        with ThreadPoolExecutor(4) as pool:
            stores = list(pool.map(lambda _: build_token_store(corpus, tokenizer), range(8)))
        assert {bytes(store.tokens) for store in stores} == {bytes(stores[0].tokens)}
        assert built(cache) == [stores[0].fingerprint]

    def test_a_source_without_a_document_is_refused(self, cache, tokenizer, tmp_path):
        (tmp_path / "empty.jsonl").write_text("\n\n")
        with pytest.raises(DataError, match=r"empty\.jsonl"):
            build_token_store(tmp_path / "empty.jsonl", tokenizer)

    def test_a_full_disk_leaves_nothing(self, corpus, cache, tokenizer, monkeypatch):
        def full(folder, names):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store_module, "seal", full)
        with pytest.raises(OSError, match="No space left on device"):
            build_token_store(corpus, tokenizer)
        assert built(cache) == []


class TestMaxTokens:
    def test_ends_with_the_document_that_reaches_it(self, corpus, cache, tokenizer, store, monkeypatch):
        monkeypatch.setattr(store_module, "_BATCH_CHARACTERS", 1)
        (corpus / "e.txt").write_bytes(b"\xff")  # is never read
        for tokens, documents in ((1, 1), (store.offsets[1], 1), (store.offsets[1] + 1, 2)):
            less = build_token_store(corpus, tokenizer, max_train_tokens=int(tokens))
            assert list(less.names) == list(TEXTS)[:documents]
            assert np.array_equal(less.tokens, store.tokens[: store.offsets[documents]])
            assert less.fingerprint != store.fingerprint


class TestContinuing:
    """A build that was killed continues after its last batch, and gives the same store."""

    @pytest.fixture(params=["folder", "lines", "saved", "stream"])
    def source(self, request, tmp_path, monkeypatch) -> str:
        rows = datasets.Dataset.from_list([{"text": f"text {i} " * (i + 1)} for i in range(9)])
        folder = tmp_path / request.param
        if request.param == "folder":
            folder.mkdir()
            for i, row in enumerate(rows):
                (folder / f"{i}.txt").write_text(row["text"])
        if request.param == "lines":
            folder.mkdir()
            rows.select(range(4)).to_json(folder / "a.jsonl")
            rows.select(range(4, 9)).to_parquet(folder / "b.parquet")
        if request.param == "saved":
            rows.save_to_disk(str(folder))
        if request.param == "stream":
            hub_of(rows, tmp_path, monkeypatch)
            return "owner/set"
        return str(folder)

    @pytest.mark.parametrize(("after", "power_cut"), [(0, False), (5, False), (5, True)])
    def test_after_a_kill(self, source, after, power_cut, cache, tokenizer, monkeypatch):
        options = {"streaming": source == "owner/set", "max_train_tokens": 10**9}
        monkeypatch.setenv("SKIPWISE_CACHE", str(cache / "whole"))
        whole = build_token_store(source, tokenizer, **options)
        monkeypatch.setenv("SKIPWISE_CACHE", str(cache))
        monkeypatch.setattr(store_module, "_BATCH_CHARACTERS", 1)
        encoder, seen, killed = store_module.text_encoder, [], [True]

        def killed_once(tokenizer):
            def encode_batch(texts):
                if len(seen) == after and killed:
                    killed.clear()
                    raise KeyboardInterrupt
                seen.extend(texts)
                return encoder(tokenizer)(texts)

            return encode_batch

        monkeypatch.setattr(store_module, "text_encoder", killed_once)
        with pytest.raises(KeyboardInterrupt):
            build_token_store(source, tokenizer, **options)
        (draft,) = (cache / "tokens").glob(".draft-*")
        for name in FILES:
            with open(draft / name, "ab") as file:
                file.write(b"half a batch")
                file.truncate(0 if power_cut else None)
        again = build_token_store(source, tokenizer, **options)
        texts = [document.text for document in open_corpus(Data(source=source, **options))]
        assert seen == (texts[:after] if power_cut else []) + texts + ["a"]  # the last shows whether there is a BOS
        assert contents(again) == contents(whole)
        assert built(cache) == [whole.fingerprint]

    def test_a_stream_that_broke_off(self, tmp_path, cache, tokenizer, monkeypatch):
        rows = datasets.Dataset.from_list([{"text": f"text {i}"} for i in range(12)])
        files = hub_of(rows, tmp_path, monkeypatch)
        monkeypatch.setattr(store_module, "_BATCH_CHARACTERS", 1)
        last = files[3].read_bytes()
        files[3].write_bytes(b"no Parquet")
        with pytest.raises(DataError, match=r"owner/set.* row 9"):
            build_token_store("owner/set", tokenizer, streaming=True, max_train_tokens=10**9)
        assert [name.startswith(".draft-") for name in built(cache)] == [True]
        files[3].write_bytes(last)
        store = build_token_store("owner/set", tokenizer, streaming=True, max_train_tokens=10**9)
        assert list(store.names) == [f"owner/set:{row}" for row in range(1, 13)]
        assert store.document(11).tolist() == tokenizer("text 11")["input_ids"]


def hub_of(rows: datasets.Dataset, folder: Path, monkeypatch) -> list[Path]:
    """Let ``owner/set`` be a data set of the hub in four Parquet files; returns the files."""
    files = [folder / f"{part}.parquet" for part in range(4)]
    for part, file in enumerate(files):
        rows.shard(4, part, contiguous=True).to_parquet(file)
    real = datasets.load_dataset_builder

    def builder(name, subset):
        assert (name, subset) == ("owner/set", None)
        return real("parquet", data_files={"train": [str(file) for file in files]})

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    return files


def test_vocabulary(store):
    check_vocabulary(store, store.largest_token + 1)
    with pytest.raises(DataError, match=rf" {store.largest_token} .*97"):
        check_vocabulary(store, 97)


# --- the split ---


def documents(*lengths: int, conversations: bool = False) -> SimpleNamespace:
    """A store of documents 0.txt, 1.txt, ... of these lengths."""

    class Store(SimpleNamespace):
        def __len__(self) -> int:
            return len(lengths)

    names = [f"{i}.txt" for i in range(len(lengths))]
    return Store(lengths=np.array(lengths), names=names, holds_conversations=conversations)


@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=40), share=st.floats(0, 0.9), least=st.integers(1, 60))
def test_documents_are_split_by_name_and_length(lengths: list[int], share: float, least: int) -> None:
    text = documents(*lengths)
    out = [is_held_out(name, share) for name in text.names]
    assert [part.tolist() for part in split_by_name(text, share)] == [
        [i for i, held in enumerate(out) if held == part] for part in (False, True)
    ]
    long = [i for i, length in enumerate(lengths) if not out[i] and length >= max(least, 20)]
    data = Data(held_out=share, min_tokens=least)
    if not long:
        with pytest.raises(DataError):
            split_documents(text, data, 20, whole=False)
        return
    split = split_documents(text, data, 20, whole=False)
    assert split.train.tolist() == long
    assert split.held_out.tolist() == np.flatnonzero(out).tolist()
    assert split.dropped == len(lengths) - sum(out) - len(long)


@pytest.mark.parametrize(
    ("least", "conversations", "whole", "shortest", "setting"),
    [
        (None, False, True, 64, "target"),
        (32, False, False, 64, "train_length"),
        (100, False, False, 100, "data.min_tokens"),
        (None, True, False, 2, "data.min_tokens"),
        (10, True, True, 64, "target"),
    ],
)
def test_a_document_fills_a_window_but_chats_are_packed(least, conversations, whole, shortest, setting) -> None:
    text = documents(*range(1, 200), conversations=conversations)
    split = split_documents(text, Data(held_out=0, min_tokens=least), 64, whole=whole)
    assert (split.shortest, split.setting) == (shortest, setting)
    assert split.train.tolist() == list(range(shortest - 1, 199))
    assert f"{len(split.train)} of 199" in split.summary


@given(st.text("ab \n", min_size=33, max_size=400))
def test_a_long_text_is_encoded_in_pieces(text: str) -> None:
    tokenizer = load_tokenizer("nano")
    around = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.backend_tokenizer.post_processor = around
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_LONG", 32)
        short, long = store_module.text_encoder(tokenizer)(["ab", text])
    assert list(short) == tokenizer("ab")["input_ids"]
    assert tokenizer.decode(long) == tokenizer.decode(tokenizer(text)["input_ids"])
    assert [place for place, token in enumerate(long) if token == 0] == [0]  # special tokens once

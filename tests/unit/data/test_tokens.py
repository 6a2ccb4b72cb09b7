"""The token store: the tokenizer's own ids, cached by content, never half written."""

import hashlib
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import datasets
import numpy as np
import pytest
from filelock import FileLock, Timeout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from skipwise import progress
from skipwise.data import draft as draft_module
from skipwise.data import pieces
from skipwise.data import tokenising as tokens_module
from skipwise.data.documents import is_held_out, open_corpus
from skipwise.data.draft import Draft
from skipwise.data.tokenising import build_token_store as build
from skipwise.data.tokenising import tokenise, tokenizer_fingerprint
from skipwise.data.tokens import FILES, SCHEMA, TokenStore, check_vocabulary, split_by_name
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from skipwise.results import files
from skipwise.results.files import default_cache, read_json, write_json
from tests.tiny import byte_tokenizer

TEXTS = {"a.txt": "the sky is blue", "b.txt": "", "c.txt": "grün ☘ <s> 12345 " * 20, "d.txt": "here we go"}


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(corpus, cache, tokenizer) -> TokenStore:
    return build_token_store(corpus, tokenizer, cache=cache)


def built(cache: Path) -> list[str]:
    """What lies in the folder of the stores beside the locks."""
    return [name for name in os.listdir(cache / "tokens") if name != ".locks"]


def build_token_store(source, tokenizer, *, on_progress=None, say=lambda sentence: None, **settings) -> TokenStore:
    """Build by a ``Data`` section of these settings; paths may be given as such."""
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    return build(Data(source=str(source), **settings), tokenizer, on_progress=on_progress, say=say)


def refuse_to_build(monkeypatch) -> None:
    def build(*arguments):
        raise AssertionError("built again")

    monkeypatch.setattr(tokens_module, "_build", build)


class TestContents:
    def test_are_the_tokenizers_own_ids_in_order(self, store, tokenizer):
        assert list(store.names) == list(TEXTS)
        assert len(store) == len(TEXTS)
        for index, text in enumerate(TEXTS.values()):
            assert store.document(index).tolist() == tokenizer(text)["input_ids"]
            assert store.document(index)[0] == tokenizer.bos_token_id
        assert store.lengths.tolist() == [len(tokenizer(text)["input_ids"]) for text in TEXTS.values()]
        assert store.offsets.tolist() == [0, *np.cumsum(store.lengths)]
        assert store.largest_token == store.tokens.max()

    def test_are_mapped_not_loaded(self, store):
        assert isinstance(store.tokens, np.memmap)
        assert isinstance(store.document(2), np.memmap)
        assert not store.tokens.flags.writeable
        assert store.tokens.dtype == np.uint16
        assert store.offsets.dtype == store.lengths.dtype == np.int64

    def test_large_vocabulary_takes_uint32(self, corpus, cache, make_tokenizer, monkeypatch):
        large = make_tokenizer()
        monkeypatch.setattr(type(large), "__len__", lambda self: 2**16 + 1)
        assert build_token_store(corpus, large, cache=cache).tokens.dtype == np.uint32

    def test_truncation_and_padding_left_in_the_tokenizer_are_not_applied(self, corpus, cache, make_tokenizer):
        fresh, used = make_tokenizer(), make_tokenizer()
        used(["the sky", "is"], truncation=True, max_length=2, padding="max_length")
        assert tokenizer_fingerprint(used) == tokenizer_fingerprint(fresh)
        state = used.backend_tokenizer.truncation
        store = build_token_store(corpus, used, cache=cache)
        assert store.document(2).tolist() == fresh(TEXTS["c.txt"])["input_ids"]
        assert used.backend_tokenizer.truncation == state

    def test_split_special_tokens(self, corpus, cache, make_tokenizer):
        plain, split = make_tokenizer(), make_tokenizer()
        split.split_special_tokens = True
        ids = [build_token_store(corpus, t, cache=cache).document(2).tolist() for t in (plain, split)]
        assert ids == [t(TEXTS["c.txt"])["input_ids"] for t in (plain, split)]
        assert ids[0] != ids[1]

    def test_no_warning_about_long_texts(self, store, tokenizer, capfd):
        assert store.lengths.max() > tokenizer.model_max_length
        assert capfd.readouterr().err == ""

    def test_tokenizer_without_a_rust_side(self, corpus, cache, tokenizer):
        class Slow:
            special_tokens_map: ClassVar = {}
            __len__ = lambda self: len(tokenizer)  # noqa: E731
            get_vocab = staticmethod(tokenizer.get_vocab)
            __call__ = staticmethod(tokenizer.__call__)

        slow = build_token_store(corpus, Slow(), cache=cache)
        fast = build_token_store(corpus, tokenizer, cache=cache)
        assert slow.fingerprint != fast.fingerprint
        assert np.array_equal(slow.tokens, fast.tokens)

    def test_small_batches_change_nothing_and_report_progress(self, corpus, cache, tokenizer, monkeypatch, store):
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)
        seen = []
        again = build_token_store(
            corpus, tokenizer, cache=cache / "other", on_progress=lambda *counts: seen.append(counts)
        )
        assert np.array_equal(again.tokens, store.tokens)
        # An empty document does not fill a batch.
        assert [counts[:2] for counts in seen] == [(documents, again.offsets[documents]) for documents in (1, 3, 4)]

    def test_the_share_that_is_done_is_known_by_files_rows_and_the_limit(self, tmp_path, cache, tokenizer, monkeypatch):
        monkeypatch.setattr(tokens_module, "_BATCH_DOCUMENTS", 1)
        (folder := tmp_path / "four").mkdir()
        for number in range(4):
            (folder / f"{number}.txt").write_text("here we go " * 8)
        (rows := folder / "4.jsonl").write_text('{"text": "here we go here we go"}\n' * 4)
        datasets.Dataset.from_list([{"text": "here"}] * 4).save_to_disk(saved := tmp_path / "saved")
        bytes_of = [path.stat().st_size for path in sorted(folder.iterdir())]

        def shares(source: Path, **settings: Any) -> list[float | None]:
            seen: list[float | None] = []
            build_token_store(
                source, tokenizer, cache=cache, on_progress=lambda *told: seen.append(told[2]), **settings
            )
            return seen

        ends = [sum(bytes_of[: n + 1]) / sum(bytes_of) for n in range(4)]
        assert shares(folder) == [*ends, *[ends[-1]] * 4]  # of a file of records nobody knows how much is read
        assert shares(saved) == [0.25, 0.5, 0.75, 1.0]
        assert shares(rows) == [None] * 4
        one = len(tokenizer("here we go here we go")["input_ids"])
        assert shares(rows, max_tokens=2 * one) == [0.5, 1.0]

    def test_what_is_tokenised_is_shown_and_nothing_once_it_is(self, corpus, cache, tokenizer, monkeypatch):
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)
        shown, reach = [], progress.Work.reach

        def reach_and_note(work, *args, **known):
            reach(work, *args, **known)
            shown.append(work.line.split(", "))

        monkeypatch.setattr(progress.Work, "reach", reach_and_note)
        tokenise(Data(source=str(corpus), cache=str(cache)), tokenizer, Console(file=(log := io.StringIO())))
        assert shown[-1][0] == "100%"
        assert [documents for _, documents, *_ in shown] == ["1 document", "3 documents", "4 documents"]
        assert "tokenising" not in log.getvalue()

    def test_no_token_at_all(self, tmp_path, cache, make_tokenizer):
        (tmp_path / "empty.txt").write_text("")
        store = build_token_store(tmp_path / "empty.txt", make_tokenizer(bos=False), cache=cache)
        assert (len(store), len(store.tokens), store.largest_token) == (1, 0, -1)

    def test_indices_beyond_are_errors(self, store):
        for index in (-1, 4):
            with pytest.raises(IndexError):
                store.document(index)

    def test_pickles_as_its_path(self, store):
        data = pickle.dumps(store)
        assert len(data) < 1_000
        assert np.array_equal(pickle.loads(data).tokens, store.tokens)

    @settings(max_examples=20)
    @given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8))
    def test_any_text_is_split_at_its_offsets(self, texts, tokenizer, tmp_path_factory):
        folder = tmp_path_factory.mktemp("any")
        (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        store = build_token_store(folder / "c.jsonl", tokenizer, cache=folder)
        assert [store.document(i).tolist() for i in range(len(store))] == tokenizer(texts)["input_ids"]


class TestCache:
    def test_is_used_again_wherever_the_same_content_lies(self, store, corpus, cache, tokenizer, monkeypatch):
        refuse_to_build(monkeypatch)
        moved = corpus.rename(corpus.with_name("moved"))
        seen = []
        again = build_token_store(moved, tokenizer, cache=cache, on_progress=lambda *counts: seen.append(counts))
        assert again.path == store.path == cache / "tokens" / store.fingerprint
        assert seen == [(4, len(store.tokens), 1.0)]

    def test_follows_content_and_tokenizer(self, store, corpus, cache, make_tokenizer, tokenizer):
        others = [
            build_token_store(corpus, make_tokenizer(vocabulary=280), cache=cache),
            build_token_store(corpus, make_tokenizer(bos=False), cache=cache),
        ]
        (corpus / "d.txt").write_text("here we stay")
        others.append(build_token_store(corpus, tokenizer, cache=cache))
        assert len({store.fingerprint, *(other.fingerprint for other in others)}) == 4
        assert others[2].document(3).tolist() == tokenizer("here we stay")["input_ids"]

    @pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "names.jsonl", "digests.bin", "store.json"])
    @pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
    def test_a_damaged_store_is_built_again(self, store, corpus, cache, tokenizer, name, damage):
        whole = {path.name: path.read_bytes() for path in store.path.iterdir()}
        path = store.path / name
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[name][:-5] if damage == "cut" else b"")
        with pytest.raises(DataError, match=r"not a complete token store .* remove it, and it is built again"):
            TokenStore(store.path)
        again = build_token_store(corpus, tokenizer, cache=cache)
        assert {path.name: path.read_bytes() for path in again.path.iterdir()} == whole
        assert built(cache) == [store.fingerprint]

    def test_a_text_has_one_digest_under_every_name_and_tokenizer(self, store, corpus, cache, make_tokenizer):
        assert len(set(store.digests.tolist())) == len(store) == 4
        renamed = corpus.with_name("renamed")
        renamed.mkdir()
        for number, name in enumerate(reversed(store.names)):
            (renamed / f"{number}.txt").write_bytes((corpus / name).read_bytes())
        other = build_token_store(renamed, make_tokenizer(vocabulary=280), cache=cache)
        assert other.digests.tolist() == store.digests.tolist()[::-1]

    def test_another_schema_is_refused(self, store):
        write_json(store.path / "store.json", read_json(store.path / "store.json") | {"schema": 99})
        with pytest.raises(DataError, match="schema 99"):
            TokenStore(store.path)

    def test_a_failed_build_leaves_nothing(self, corpus, cache, tokenizer):
        (corpus / "z.txt").write_bytes(b"\xff")
        with pytest.raises(DataError, match="not UTF-8"):
            build_token_store(corpus, tokenizer, cache=cache)
        assert built(cache) == []

    def test_one_of_two_builders_waits_for_the_other(self, corpus, cache, tokenizer, monkeypatch):
        write, written = tokens_module._write, []

        def write_beside_another(*arguments):
            written.append(arguments)
            [lock] = (cache / "tokens" / ".locks").iterdir()
            with pytest.raises(Timeout):
                FileLock(lock).acquire(timeout=0)
            pool.submit(build_token_store, corpus, tokenizer, cache=cache)
            return write(*arguments)

        monkeypatch.setattr(tokens_module, "_write", write_beside_another)
        with ThreadPoolExecutor(1) as pool:
            store = build_token_store(corpus, tokenizer, cache=cache)
        assert len(written) == 1
        assert built(cache) == [store.fingerprint]

    def test_many_builders_at_once(self, corpus, cache, tokenizer):
        with ThreadPoolExecutor(8) as pool:
            stores = list(pool.map(lambda _: build_token_store(corpus, tokenizer, cache=cache), range(24)))
        assert {bytes(store.tokens) for store in stores} == {bytes(stores[0].tokens)}
        assert built(cache) == [stores[0].fingerprint]

    def test_a_draft_that_vanishes_while_it_is_looked_at(self, corpus, cache, tokenizer, monkeypatch):
        (cache / "tokens" / ".draft-other").mkdir(parents=True)
        monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / "renamed-by-now"]))
        build_token_store(corpus, tokenizer, cache=cache)

    def test_drafts_of_killed_builds_are_swept_and_others_kept(self, corpus, cache, tokenizer):
        for name, age in (("old", 700_000), ("young", 0)):
            draft = cache / "tokens" / f".draft-{name}"
            draft.mkdir(parents=True)
            (draft / "tokens.bin").write_bytes(b"x")
            for path in (draft / "tokens.bin", draft):
                time = path.stat().st_mtime - age
                os.utime(path, (time, time))
        build_token_store(corpus, tokenizer, cache=cache)
        assert [name for name in built(cache) if name.startswith(".")] == [".draft-young"]

    def test_a_cache_that_cannot_be_written(self, corpus, tmp_path, tokenizer):
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=r"cannot be written \(File exists\); set data\.cache or \$SKIPWISE"):
            build_token_store(corpus, tokenizer, cache=tmp_path / "file")

    def test_disk_full(self, corpus, cache, tokenizer, monkeypatch):
        def full(folder, names):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tokens_module, "seal", full)
        with pytest.raises(DataError, match=r"cannot be written \(No space left on device\).*with room"):
            build_token_store(corpus, tokenizer, cache=cache)
        assert built(cache) == []

    def test_default_folder(self, monkeypatch, tmp_path):
        monkeypatch.delenv("SKIPWISE_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        assert default_cache() == Path.home() / ".cache" / "skipwise"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert default_cache() == tmp_path / "skipwise"
        monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "own"))
        assert default_cache() == tmp_path / "own"

    def test_is_used_by_default(self, corpus, tokenizer, monkeypatch, tmp_path):
        monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "own"))
        assert build_token_store(corpus, tokenizer).path.parent == tmp_path / "own" / "tokens"

    def test_workers_set_the_threads(self, corpus, cache, tokenizer, monkeypatch):
        monkeypatch.setenv("RAYON_NUM_THREADS", "2")
        build_token_store(corpus, tokenizer, cache=cache)
        assert os.environ["RAYON_NUM_THREADS"] == "2"
        build_token_store(corpus, tokenizer, cache=cache / "other", workers=1)
        assert os.environ["RAYON_NUM_THREADS"] == "1"


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_text_that_changes_while_it_is_read_is_refused(corpus, cache, tokenizer):
    """Its tokens would be found again under the hash of another text."""
    (last := corpus / "z.txt").write_text("as it was\n" * 40)

    def edit(documents: int, tokens: int, share: float | None) -> None:
        last.write_text("as it became\n" * 40)

    with pytest.raises(DataError, match="was changed while it was read"):
        build_token_store(corpus, tokenizer, cache=cache, on_progress=edit)
    assert not list((cache / "tokens").glob("[!.]*"))
    last.write_text("as it was\n" * 40)
    store = build_token_store(corpus, tokenizer, cache=cache)
    assert "as it was" in tokenizer.decode(store.document(len(store) - 1))


class TestSeal:
    """A store whose files are not what was written is never trained on."""

    @given(data=st.data())
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_flipped_bit_anywhere_is_repaired(self, store, corpus, cache, tokenizer, data):
        whole = {path.name: path.read_bytes() for path in store.path.iterdir()}
        name = data.draw(
            st.sampled_from([name for name in FILES if name != "context.bin"])  # it is empty
        )
        path = store.path / name
        flip(path, data.draw(st.integers(0, 8 * path.stat().st_size - 1)))
        said = []
        again = build_token_store(corpus, tokenizer, cache=cache, say=said.append)
        assert {path.name: path.read_bytes() for path in again.path.iterdir()} == whole
        assert len(said) == 1
        assert name in said[0]
        assert said[0].endswith("it is built again")

    def test_zeros_of_the_same_size_are_not_trained_on(self, store, corpus, cache, tokenizer):
        tokens = store.tokens.tolist()
        (store.path / "tokens.bin").write_bytes(bytes((store.path / "tokens.bin").stat().st_size))
        console = Console(file=io.StringIO(), width=80)
        again = tokenise(Data(source=str(corpus), cache=str(cache)), tokenizer, console)
        assert again.tokens.tolist() == tokens
        assert console.file.getvalue().rstrip() == (
            f"token store: {store.path / 'tokens.bin'} is not the file that was written (its size or hash differs); "
            "it is built again"
        )

    def test_a_library_user_is_warned(self, store, corpus, cache, tokenizer):
        (store.path / "names.jsonl").unlink()
        with pytest.warns(UserWarning, match=r"has lost names\.jsonl; it is built again"):
            build(Data(source=str(corpus), cache=str(cache)), tokenizer)

    def test_opening_in_a_worker_does_not_read_the_tokens(self, store, monkeypatch):
        data = pickle.dumps(store)
        monkeypatch.setattr(files, "file_digest", lambda path: pytest.fail("read"))
        assert len(pickle.loads(data)) == len(store)

    def test_one_of_another_schema_is_built_again_silently(self, store, corpus, cache, tokenizer):
        write_json(store.path / "store.json", read_json(store.path / "store.json") | {"schema": SCHEMA - 1})
        tokens = store.tokens.tolist()
        (store.path / "tokens.bin").write_bytes(bytes((store.path / "tokens.bin").stat().st_size))
        again = build_token_store(corpus, tokenizer, cache=cache, say=pytest.fail)
        assert again.path == store.path
        assert again.tokens.tolist() == tokens

    def test_fingerprints_are_those_of_version_0_2(self, tmp_path, cache):
        """Runs record them: with others, no run could be resumed."""
        (tmp_path / "a.txt").write_text("text")
        store = build_token_store(tmp_path / "a.txt", byte_tokenizer(), cache=cache)
        identity = f"1 {open_corpus(tmp_path / 'a.txt').fingerprint()} {tokenizer_fingerprint(byte_tokenizer())}"
        assert store.fingerprint == hashlib.sha256(identity.encode()).hexdigest()

    def test_one_that_cannot_be_built_again_is_an_error(self, store, corpus, cache, tokenizer, monkeypatch):
        flip(store.path / "tokens.bin", 3)

        def full(folder, names):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tokens_module, "seal", full)
        said = []
        with pytest.raises(DataError, match="cannot be written"):
            build_token_store(corpus, tokenizer, cache=cache, say=said.append)
        assert "tokens.bin is not the file that was written" in said[0]


class TestPrivate:
    def modes(self, cache: Path) -> tuple[set[int], set[int]]:
        found = [cache, *cache.rglob("*")]
        modes = [{stat.S_IMODE(p.stat().st_mode) for p in found if p.is_dir() == folder} for folder in (True, False)]
        return modes[0], modes[1]

    def test_nobody_else_reads_the_text(self, corpus, cache, tokenizer, monkeypatch):
        monkeypatch.delenv("SKIPWISE_SHARED", raising=False)
        drafts, kept = [], Draft.keep

        def keep(draft, place):
            kept(draft, place)
            drafts.append(self.modes(cache))

        monkeypatch.setattr(Draft, "keep", keep)
        build_token_store(corpus, tokenizer, cache=cache)
        assert [*drafts, self.modes(cache)] == [({0o700}, {0o600})] * 2

    def test_unless_it_is_shared(self, corpus, cache, tokenizer, monkeypatch):
        monkeypatch.setenv("SKIPWISE_SHARED", "1")
        before = os.umask(0o002)
        try:
            store = build_token_store(corpus, tokenizer, cache=cache)
        finally:
            os.umask(before)
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o775
        assert {stat.S_IMODE(path.stat().st_mode) for path in store.path.iterdir()} == {0o664}


class TestMaxTokens:
    def test_ends_with_the_document_that_reaches_it(self, corpus, cache, tokenizer, store):
        for tokens, documents in ((1, 1), (store.offsets[1], 1), (store.offsets[1] + 1, 2), (10**9, 4)):
            less = build_token_store(corpus, tokenizer, cache=cache, max_tokens=int(tokens))
            assert list(less.names) == list(TEXTS)[:documents]
            assert np.array_equal(less.tokens, store.tokens[: store.offsets[documents]])
            assert less.fingerprint != store.fingerprint

    def test_nothing_beyond_is_read(self, corpus, cache, tokenizer, monkeypatch):
        (corpus / "e.txt").write_bytes(b"\xff")
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)
        assert len(build_token_store(corpus, tokenizer, cache=cache, max_tokens=1)) == 1


def test_long_documents_are_written_in_pieces(corpus, cache, tokenizer, monkeypatch):
    """The store is the same, and digests and limits count documents, not pieces."""
    for number in range(3):
        (corpus / f"{number}.txt").write_text("the sky is blue\n" * 50 * (number + 1))
    whole = build_token_store(corpus, tokenizer, cache=cache / "whole")
    monkeypatch.setattr(pieces, "PIECE", 100)
    monkeypatch.setattr(draft_module, "_BLOCK", 64)
    cut = build_token_store(corpus, tokenizer, cache=cache / "cut")
    assert {p.name: p.read_bytes() for p in cut.path.iterdir()} == {
        p.name: p.read_bytes() for p in whole.path.iterdir()
    }
    assert len(build_token_store(corpus, tokenizer, cache=cache / "less", max_tokens=1)) == 1


class TestContinuing:
    """An interrupted build gives the same store as any other, and reads nothing again that it kept."""

    @pytest.fixture(params=["folder", "lines", "saved", "stream", "pydoc"])
    def source(self, request, tmp_path, monkeypatch) -> tuple[str, dict[str, bool]]:
        texts = [f"text {i} " * (i + 1) for i in range(9)]
        options = {"stream": request.param == "stream", "max_tokens": 10**9}
        rows = datasets.Dataset.from_list([{"text": text} for text in texts])
        if request.param == "folder":
            for i, text in enumerate(texts):
                (tmp_path / "folder").mkdir(exist_ok=True)
                (tmp_path / f"folder/{i}.txt").write_text(text)
        if request.param == "lines":
            (tmp_path / "lines").mkdir()
            rows.select(range(4)).to_json(tmp_path / "lines/a.jsonl")
            rows.select(range(4, 9)).to_json(tmp_path / "lines/b.jsonl")
        if request.param == "saved":
            rows.save_to_disk(str(tmp_path / "saved"))
        if request.param == "stream":
            hub_of(rows, tmp_path, monkeypatch)
            return "owner/set", options
        return ("pydoc" if request.param == "pydoc" else str(tmp_path / request.param)), options

    def stopped(self, monkeypatch, after: int) -> list[list[str]]:
        """Let the tokenizer of the next builds be interrupted once, after so many batches; the batches that it got."""
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)
        encoder, seen = tokens_module.encoder, []

        def interrupted(tokenizer):
            encode = encoder(tokenizer)

            def encode_batch(documents):
                if len(seen) == after:
                    seen.append([])
                    raise KeyboardInterrupt
                seen.append([document.text for document in documents])
                return encode(documents)

            return encode_batch

        monkeypatch.setattr(tokens_module, "encoder", interrupted)
        return seen

    @pytest.mark.parametrize("after", [0, 3, 5])
    def test_after_an_interrupt(self, source, after, cache, tokenizer, monkeypatch):
        name, options = source
        whole = build_token_store(name, tokenizer, cache=cache / "whole", **options)
        seen = self.stopped(monkeypatch, after)
        with pytest.raises(KeyboardInterrupt):
            build_token_store(name, tokenizer, cache=cache, **options)
        (draft,) = (cache / "tokens").glob(".draft-*")
        for file in draft.glob("*.[bj]*"):
            if file.suffix != ".json":
                file.write_bytes(file.read_bytes() + b"half a batch")
        again = build_token_store(name, tokenizer, cache=cache, **options)
        read = [text for texts in seen for text in texts]
        assert read == [document.text for document in open_corpus(Data(source=name, **options))]
        assert {p.name: p.read_bytes() for p in again.path.iterdir()} == {
            p.name: p.read_bytes() for p in whole.path.iterdir()
        }
        assert built(cache) == [whole.fingerprint]

    def test_a_draft_that_lost_something_is_begun_again(self, corpus, cache, tokenizer, monkeypatch, store):
        self.stopped(monkeypatch, 2)
        with pytest.raises(KeyboardInterrupt):
            build_token_store(corpus, tokenizer, cache=cache / "other")
        (draft,) = (cache / "other" / "tokens").glob(".draft-*")
        (draft / "tokens.bin").write_bytes(b"")
        again = build_token_store(corpus, tokenizer, cache=cache / "other")
        assert np.array_equal(again.tokens, store.tokens)

    def interrupted_draft(self, corpus, cache, tokenizer, monkeypatch) -> Path:
        with monkeypatch.context() as patch:
            self.stopped(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                build_token_store(corpus, tokenizer, cache=cache)
        (draft,) = (cache / "tokens").glob(".draft-*")
        return draft

    @given(data=st.data())
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_flipped_bit_in_a_draft_is_not_continued(self, store, corpus, cache, tokenizer, monkeypatch, data):
        cache = Path(tempfile.mkdtemp(dir=cache))
        draft = self.interrupted_draft(corpus, cache, tokenizer, monkeypatch)
        path = data.draw(
            st.sampled_from(
                sorted(path for path in draft.iterdir() if path.stat().st_size and path.name != "draft.json")
            )
        )
        flip(path, data.draw(st.integers(0, 8 * path.stat().st_size - 1)))
        said = []
        again = build_token_store(corpus, tokenizer, cache=cache, say=said.append)
        assert {p.name: p.read_bytes() for p in again.path.iterdir()} == {
            p.name: p.read_bytes() for p in store.path.iterdir()
        }
        assert all(str(draft) in sentence and "tokenised again" in sentence for sentence in said)
        assert len(said) == 1

    def test_a_disk_that_loses_what_was_written(self, corpus, cache, tokenizer, monkeypatch):
        keep = Draft.keep

        def keep_and_lose(draft, place):
            keep(draft, place)
            flip(draft.folder / "tokens.bin", 9)

        monkeypatch.setattr(Draft, "keep", keep_and_lose)
        with pytest.raises(DataError, match=r"tokens\.bin is not what was written to it.*disk or memory is failing"):
            build_token_store(corpus, tokenizer, cache=cache)
        assert built(cache) == []

    def test_with_max_tokens_reached_already(self, corpus, cache, tokenizer, monkeypatch):
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)

        def killed(self):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(tokens_module.Draft, "finish", killed)
            with pytest.raises(KeyboardInterrupt):
                build_token_store(corpus, tokenizer, cache=cache, max_tokens=1)
        assert len(build_token_store(corpus, tokenizer, cache=cache, max_tokens=1)) == 1

    def test_a_stream_killed_at_its_end(self, tmp_path, cache, tokenizer, monkeypatch):
        """The place of the last batch is asked when the stream has ended; its state is copied once a batch."""
        hub_of(datasets.Dataset.from_list([{"text": f"text {i}"} for i in range(12)]), tmp_path, monkeypatch)
        monkeypatch.setattr(tokens_module, "_BATCH_DOCUMENTS", 5)
        state_dict, copied = datasets.IterableDataset.state_dict, []
        monkeypatch.setattr(
            datasets.IterableDataset, "state_dict", lambda stream: copied.append(1) or state_dict(stream)
        )

        def killed(self):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Draft, "finish", killed)
            with pytest.raises(KeyboardInterrupt):
                build_token_store("owner/set", tokenizer, cache=cache, stream=True, max_tokens=10**9)
        assert len(copied) == 3
        store = build_token_store("owner/set", tokenizer, cache=cache, stream=True, max_tokens=10**9)
        assert list(store.names) == [f"owner/set:{row}" for row in range(1, 13)]

    def test_a_stream_that_broke_off(self, tmp_path, cache, tokenizer, monkeypatch):
        """Files of the hub that were left behind are not fetched again; of the first the columns' names are."""
        rows = datasets.Dataset.from_list([{"text": f"text {i}"} for i in range(12)])
        files = hub_of(rows, tmp_path, monkeypatch)
        monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1)
        last = files[3].read_bytes()
        files[3].write_bytes(b"no Parquet")
        with pytest.raises(
            DataError, match=r"owner/set: the stream broke off after row 9 \(.*run again to continue from there"
        ):
            build_token_store("owner/set", tokenizer, cache=cache, stream=True, max_tokens=10**9)
        first = files[0].read_bytes()
        files[0].write_bytes(first[:4] + bytes(60) + first[64:])
        files[3].write_bytes(last)
        store = build_token_store("owner/set", tokenizer, cache=cache, stream=True, max_tokens=10**9)
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


class TestChoosing:
    def test_vocabulary(self, store):
        check_vocabulary(store, store.largest_token + 1)
        index = next(i for i in range(4) if (store.document(i) >= 97).any())
        beyond = next(token for token in store.document(index) if token >= 97)
        with pytest.raises(DataError) as caught:
            check_vocabulary(store, 97)
        assert str(caught.value) == (
            f"document {index} ({store.names[index]}): token {beyond} is not below the model's vocabulary size "
            "97; tokenise the text with this model's own tokenizer"
        )

    @given(names=st.lists(st.text(), max_size=50), share=st.floats(0, 0.99))
    def test_split_is_a_partition_by_name(self, names, share):
        names = [name.encode(errors="ignore").decode() for name in names]
        train, held_out = split_by_name(_Named(names), share)
        assert sorted([*train, *held_out]) == list(range(len(names)))
        assert all(is_held_out(names[i], share) for i in held_out)
        assert not any(is_held_out(names[i], share) for i in train)


class _Named(SimpleNamespace):
    def __init__(self, names: list[str]) -> None:
        super().__init__(names=names)

    def __len__(self) -> int:
        return len(self.names)


def test_imports_neither_torch_nor_transformers():
    code = "import sys, skipwise.data.tokens; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_no_more_threads_than_cores(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    (tmp_path / "x.txt").write_text("some text")
    build_token_store(tmp_path / "x.txt", byte_tokenizer(), cache=tmp_path / "cache", workers=1_024)
    assert int(os.environ["RAYON_NUM_THREADS"]) == os.cpu_count()


def test_files_that_are_not_read_are_named(tmp_path, tokenizer):
    (folder := tmp_path / "mixed").mkdir()
    for name in ("a.txt", "b.json", "c.csv", "d.html", "e", ".hidden.json"):
        (folder / name).write_text("here we go")
    log = io.StringIO()
    store = tokenise(Data(source=str(folder), cache=str(tmp_path / "cache")), tokenizer, Console(file=log, width=400))
    assert list(store.names) == ["a.txt"]
    assert (
        "mixed: left out 4 files, whose endings are not those of text files: b.json, c.csv, d.html, ..."
        in log.getvalue()
    )

"""Every kind of source, and what is said of each that cannot be read."""

import ast
import gzip
import hashlib
import importlib
import json
import os
import shutil
import string
import sys
import sysconfig
from pathlib import Path
from unittest.mock import patch

import datasets
import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from skipwise.data import formats
from skipwise.data.documents import Document, is_held_out, open_corpus, other_source
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from skipwise.results.run_folder import RunFolder

ROWS = [{"text": "the sky\nis blue", "id": 7}, {"text": "grün ☘", "id": 8}, {"text": "", "id": 9}]
DOCUMENTS = [(f":{row}", record["text"]) for row, record in enumerate(ROWS, 1)]


def json_lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def opened(source, **options):
    return open_corpus(Data(source=str(source), **options))


def pairs(source, **options) -> list[tuple[str, str]]:
    return [(document.name, document.text) for document in opened(source, **options)]


def error_of(source, **options) -> str:
    with pytest.raises(DataError) as caught:
        list(opened(source, **options))
    return str(caught.value)


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


class TestHeldOut:
    def test_agrees_with_the_embedded_models_split(self):
        """The nano model was trained under ``< 2**64 // 10``: 103 of 2**64 hashes would tell them apart."""
        for name in (f"package/module_{i}.py" for i in range(20_000)):
            word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
            assert is_held_out(name, 0.1) == (word < 2**64 // 10)

    def test_known_names(self):
        """Their ``sha256sum`` begin with c4, b4, 3b and d9; half of 100 is 80."""
        held = [name for name in ("abc.py", "ast.py", "json/decoder.py", "os.py") if is_held_out(name, 0.5)]
        assert held == ["json/decoder.py"]

    @given(st.text(alphabet=string.printable), st.floats(0, 1), st.floats(0, 1))
    def test_grows_with_the_share(self, name, a, b):
        assert is_held_out(name, min(a, b)) <= is_held_out(name, max(a, b))
        assert not is_held_out(name, 0.0)
        assert is_held_out(name, 1.0)

    def test_holds_out_its_share(self):
        held = sum(is_held_out(str(i), 0.1) for i in range(20_000))
        assert abs(held - 2_000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5


class TestFiles:
    def test_text_file(self, tmp_path):
        path = write(tmp_path / "notes.txt", "\ufeffone\r\ntwo\rthree\n")
        assert pairs(path) == [("notes.txt", "one\ntwo\nthree\n")]

    def test_folder(self, tmp_path):
        for name in ("b.md", "a/z.rst", "a/b.TEX", "a.py", "a/c/x.txt"):
            write(tmp_path / name, name)
        for name in (".hidden.txt", ".git/x.txt", "picture.png", "README"):
            write(tmp_path / name, b"\xff")
        write(tmp_path / "c.jsonl", json_lines(ROWS))
        texts = ["a.py", "a/b.TEX", "a/c/x.txt", "a/z.rst", "b.md"]
        assert pairs(str(tmp_path)) == [
            *((name, name) for name in texts),
            *(("c.jsonl" + suffix, text) for suffix, text in DOCUMENTS),
        ]

    def test_is_lazy(self, tmp_path):
        write(tmp_path / "a.txt", "first")
        write(tmp_path / "b.txt", b"\xff")
        assert next(iter(open_corpus(tmp_path))) == Document("a.txt", "first")

    def test_file_names_beside_utf8_can_be_hashed(self, tmp_path):
        try:
            write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.txt")), "text")
        except OSError:
            pytest.skip("this file system has UTF-8 names only")
        ((name, _),) = pairs(tmp_path)
        assert name == r"n\xff.txt"
        is_held_out(name, 0.1)

    @pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
    def test_json_lines(self, tmp_path, ending):
        data = json_lines(ROWS[:2]) + json.dumps(ROWS[2]).encode()  # no line end at the end
        packed = {
            ".jsonl": lambda: data,
            ".jsonl.gz": lambda: gzip.compress(data),
            # Two frames, as appending makes, cut inside a line.
            ".jsonl.zst": lambda: zstandard.compress(data[:9]) + zstandard.compress(data[9:]),
        }[ending]()
        path = write(tmp_path / f"corpus{ending}", packed)
        assert pairs(path) == [(f"corpus{ending}{suffix}", text) for suffix, text in DOCUMENTS]

    def test_json_lines_count_empty_lines(self, tmp_path):
        path = write(tmp_path / "c.jsonl", b"\n" + json_lines(ROWS[:1]) + b"  \n" + json_lines(ROWS[1:2]))
        assert [name for name, _ in pairs(path)] == ["c.jsonl:2", "c.jsonl:4"]

    def test_other_field(self, tmp_path):
        path = write(tmp_path / "c.jsonl", b'{"body": "text"}\n')
        assert pairs(path, text_field="body") == [("c.jsonl:1", "text")]

    def test_parquet_beyond_one_batch(self, tmp_path):
        texts = [f"text {i}" for i in range(150)]
        parquet.write_table(pyarrow.table({"id": range(150), "text": texts}), tmp_path / "c.parquet")
        assert pairs(tmp_path / "c.parquet") == [(f"c.parquet:{i}", t) for i, t in enumerate(texts, 1)]

    def test_zst_larger_than_a_read(self, tmp_path):
        rows = [{"text": hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() * 4} for i in range(3_000)]
        path = write(tmp_path / "c.jsonl.zst", zstandard.compress(json_lines(rows)))
        assert path.stat().st_size > 2**16
        assert [text for _, text in pairs(path)] == [row["text"] for row in rows]


class TestStandardLibrary:
    def test_is_pythons_own_modules(self):
        documents = dict(pairs("stdlib"))
        root = Path(sysconfig.get_paths()["stdlib"])
        assert documents["ast.py"] == (root / "ast.py").read_text(encoding="utf-8")
        assert ast.parse(documents["json/decoder.py"])
        left_out = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
        for name in documents:
            assert name.endswith(".py")
            assert not left_out & set(name.split("/"))
            assert name.split("/")[0] not in {"encodings", "pydoc_data"}
        assert list(documents) == sorted(documents)

    def test_skips_what_is_not_utf8_and_only_here(self, tmp_path, monkeypatch):
        write(tmp_path / "good.py", "x = 1\n")
        write(tmp_path / "latin.py", b"# \xe9\n")
        write(tmp_path / "site-packages/other.py", "x = 2\n")
        write(tmp_path / "lib/encodings/kept.py", "x = 3\n")
        write(tmp_path / "encodings/table.py", "x = 4\n")
        assert "latin.py" in error_of(tmp_path)
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
        assert [name for name, _ in pairs("stdlib")] == ["good.py", "lib/encodings/kept.py"]


class TestHuggingFace:
    @pytest.fixture
    def saved(self, tmp_path) -> Path:
        data = datasets.Dataset.from_list(ROWS)
        data.save_to_disk(str(tmp_path / "one"))
        datasets.DatasetDict(train=data, validation=data.select([1])).save_to_disk(str(tmp_path / "many"))
        return tmp_path

    def test_saved_data_set(self, saved):
        assert pairs(saved / "one") == [("one" + suffix, text) for suffix, text in DOCUMENTS]
        assert pairs(saved / "many", split="validation") == [("many:1", ROWS[1]["text"])]

    def test_one_that_would_be_held_in_memory_is_known_by_its_files(self, saved, monkeypatch):
        monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 1e9)
        before = open_corpus(saved / "one").fingerprint()
        shutil.rmtree(saved / "one")
        datasets.Dataset.from_list([{"text": "other"}]).save_to_disk(str(saved / "one"))
        assert open_corpus(saved / "one").fingerprint() != before

    def test_a_folder_of_texts_with_a_state_is_no_saved_data_set(self, tmp_path):
        write(tmp_path / "state.json", "{}")
        write(tmp_path / "a.txt", "text")
        assert "a.txt" in [name for name, _ in pairs(tmp_path)]

    @pytest.mark.parametrize("setting", [{"split": "test"}, {"subset": "en"}, {"stream": True, "max_tokens": 9}])
    def test_settings_of_the_hub_that_nothing_would_read(self, saved, setting):
        (saved / "texts").mkdir()
        (saved / "texts" / "a.txt").write_text("a")
        name = next(iter(setting))
        for source in (saved / "texts", saved / "texts" / "a.txt", saved / "one", "stdlib", "pydoc"):
            said = error_of(source, **setting)
            assert f"data.{name} = " in said
            assert "read whole" in said

    def test_another_text_is_read_without_the_settings_of_a_set_on_the_hub(self, saved):
        (saved / "texts").mkdir()
        hub = Data(source="some/set", split="train[:10%]", subset="en", stream=True, max_tokens=9)
        for source in (str(saved / "texts"), "stdlib", "pydoc"):
            other = other_source(hub, source)
            assert (other.source, other.split, other.subset, other.stream) == (source, "train", None, False)
            assert other.max_tokens is None
        assert other_source(hub, str(saved / "many")).split == "train[:10%]"
        assert other_source(hub, "another/set") == hub.model_copy(update={"source": "another/set"})
        assert other_source(hub, hub.source) == hub

    def test_unknown_split(self, saved):
        message = error_of(saved / "many", split="trian")
        assert (
            "no split 'trian' (did you mean train?); choose one of train, validation: data.split of a recipe" in message
        )

    def test_missing_field(self, saved):
        message = error_of(saved / "one", text_field="body")
        assert "no field 'body' among 'text', 'id'" in message

    def test_damaged(self, saved):
        (saved / "one" / "state.json").write_text("{")
        assert "cannot be loaded" in error_of(saved / "one")

    def test_name_on_the_hub(self, monkeypatch):
        asked = []

        def load(name, subset, split):
            asked.append((name, subset, split))
            return datasets.Dataset.from_list(ROWS)

        monkeypatch.setattr(datasets, "load_dataset", load)
        assert pairs("owner/set", split="test") == [("owner/set" + s, text) for s, text in DOCUMENTS]
        assert asked == [("owner/set", None, "test")]

    def test_no_network(self, tmp_path, monkeypatch):
        def load(name, subset, split):
            raise ConnectionError("Couldn't reach 'my_corpsu' on the Hub\ntraceback")

        monkeypatch.setattr(datasets, "load_dataset", load)
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "my_corpus/a.txt", "text")
        message = error_of("my_corpsu")
        assert message.startswith("'my_corpsu' is neither a file nor a folder here (did you mean my_corpus?)")
        assert "(ConnectionError: Couldn't reach 'my_corpsu' on the Hub)" in message
        assert "save_to_disk" in message
        assert "\n" not in message


class TestRefusals:
    def test_missing_path(self, tmp_path):
        write(tmp_path / "corpus.jsonl", b"")
        message = error_of(tmp_path / "corpsu.jsonl")
        assert "neither a file nor a folder here (did you mean corpus.jsonl?)" in message
        assert "or stdlib" in message
        assert "neither a file nor a folder here;" in error_of("nowhere/to/be/found/")

    def test_is_refused_at_the_call(self, tmp_path):
        with pytest.raises(DataError):
            open_corpus(tmp_path / "missing.txt")

    def test_empty_folder(self, tmp_path):
        write(tmp_path / "picture.png", b"")
        assert error_of(tmp_path) == (
            f"{tmp_path} holds no document; readable files end in .txt, .md, .rst, .py, .tex, "
            ".jsonl, .jsonl.gz, .jsonl.zst, .parquet"
        )

    def test_no_record(self, tmp_path):
        assert "holds no document" in error_of(write(tmp_path / "c.jsonl", b"\n\n"))

    def test_unknown_ending(self, tmp_path):
        message = error_of(write(tmp_path / "table.csv", b"a,b"))
        assert "cannot read files ending in '.csv'; readable files end in .txt" in message

    def test_text_not_utf8(self, tmp_path):
        path = write(tmp_path / "latin.txt", b"caf\xe9 au lait")
        assert error_of(path) == (
            f"{path}: byte 3 (0xe9) is not UTF-8; convert the file, for example with `iconv -f latin1 -t utf-8`"
        )

    def test_line_not_utf8(self, tmp_path):
        path = write(tmp_path / "c.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n')
        assert error_of(path).startswith(f"{path}, line 2: byte 24 (0xe9) is not UTF-8")

    @pytest.mark.parametrize("line", [b'{"text": "a"', b"text", b"[" * 100_000])
    def test_broken_json(self, tmp_path, line):
        path = write(tmp_path / "c.jsonl", json_lines(ROWS) + line + b"\n")
        assert error_of(path).startswith(f"{path}, line 4: not JSON (")

    def test_record_is_no_object(self, tmp_path):
        path = write(tmp_path / "c.jsonl", b'"text"\n')
        assert (
            error_of(path)
            == f"{path}, line 1: holds a str, not an object with the field 'text'; write one object per line"
        )

    def test_missing_field(self, tmp_path):
        path = write(tmp_path / "c.jsonl", json_lines(ROWS) + b'{"body": "x", "id": 3}\n')
        assert error_of(path) == (
            f"{path}, line 4: no field 'text' among 'body', 'id', nor one of messages, conversations, prompt and completion, input_ids; "
            "name the field that holds the text: data.text_field of a recipe, --text-field of evaluate"
        )
        table = pyarrow.table({"body": ["x"]})
        parquet.write_table(table, tmp_path / "c.parquet")
        assert "no field 'text' among 'body'" in error_of(tmp_path / "c.parquet")

    @pytest.mark.parametrize(("value", "kind"), [("3", "of type int"), ("null", "empty (null)")])
    def test_field_is_not_text(self, tmp_path, value, kind):
        path = write(tmp_path / "c.jsonl", f'{{"text": {value}}}')
        assert f"line 1: field 'text' is {kind}, not text" in error_of(path)

    def test_parquet_field_is_not_text(self, tmp_path):
        parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "c.parquet")
        assert "row 2: field 'text' is empty (null), not text" in error_of(tmp_path / "c.parquet")

    def test_half_a_surrogate_pair(self, tmp_path):
        path = write(tmp_path / "c.jsonl", rb'{"text": "ab\ud83d"}')
        assert "line 1: field 'text', character 2 is half of a surrogate pair" in error_of(path)

    @pytest.mark.parametrize("keep", [0.5, 0.98])
    @pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
    def test_compressed_cut_short(self, tmp_path, ending, pack, keep):
        data = pack(json_lines([{"text": hashlib.sha256(bytes([i])).hexdigest()} for i in range(200)]))
        path = write(tmp_path / f"c.jsonl{ending}", data[: int(len(data) * keep)])
        assert "the compressed file is cut short or damaged" in error_of(path)

    @pytest.mark.parametrize("ending", [".gz", ".zst"])
    def test_not_compressed_at_all(self, tmp_path, ending):
        path = write(tmp_path / f"c.jsonl{ending}", json_lines(ROWS))
        assert "the compressed file is cut short or damaged" in error_of(path)

    def test_parquet_cut_short(self, tmp_path):
        path = tmp_path / "c.parquet"
        parquet.write_table(pyarrow.table({"text": ["text"] * 100}), path)
        path.write_bytes(path.read_bytes()[:-20])
        assert "after row 0: not Parquet, cut short or damaged" in error_of(path)

    @pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
    def test_vanished_between_listing_and_reading(self, tmp_path, name):
        path = write(tmp_path / name, b"")
        corpus = open_corpus(path)
        path.unlink()
        with pytest.raises(DataError, match=r"a\.\w+"):
            list(corpus)
        with pytest.raises(DataError, match="cannot be read"):
            corpus.fingerprint()


class TestFingerprint:
    def test_follows_names_contents_and_field_only(self, tmp_path):
        def fingerprint(folder: str, name: str, text: str, **options) -> str:
            path = write(tmp_path / folder / name, text)
            return opened(path.parent, **options).fingerprint()

        base = fingerprint("a", "x.txt", "text")
        assert fingerprint("b", "x.txt", "text") == base
        assert fingerprint("c", "y.txt", "text") != base
        assert fingerprint("d", "x.txt", "texT") != base
        assert fingerprint("e", "x.txt", "text", text_field="body") != base

    def test_saved_data_set_follows_its_files(self, tmp_path):
        def fingerprint(folder: str, rows: list[dict]) -> str:
            path = tmp_path / folder / "set"
            datasets.Dataset.from_list(rows).save_to_disk(str(path))
            return open_corpus(path).fingerprint()

        assert fingerprint("a", ROWS) == fingerprint("b", ROWS) != fingerprint("c", ROWS[:2])


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.txt").write_text("a")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b.txt").write_text("b")
    (tmp_path / "text" / "linked").symlink_to(tmp_path / "far")
    (tmp_path / "text" / "linked-again").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "round").symlink_to(tmp_path / "text")
    assert [d.name for d in open_corpus(tmp_path / "text")] == ["b.txt", "linked/a.txt"]


def test_a_run_that_lies_in_the_text_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("{}")  # of the user
    (tmp_path / "mine" / "b.txt").write_text("b")
    before = open_corpus(tmp_path)
    run = RunFolder(tmp_path / "runs" / "one")
    run.begin()
    run.results.write_text('{"kind": "step"}\n')
    run.model.mkdir()
    (run.model / "README.md").write_text("a card")
    assert [d.name for d in open_corpus(tmp_path)] == ["a.txt", "mine/b.txt"]
    assert open_corpus(tmp_path).fingerprint() == before.fingerprint()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_told_from_latin1(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.txt").write_bytes("\ufefftext".encode(encoding))
    with pytest.raises(DataError, match="iconv -f utf-16 -t utf-8"):
        list(open_corpus(tmp_path))


def test_the_language_reference_is_a_text() -> None:
    documents = list(open_corpus("pydoc"))
    names = [document.name for document in documents]
    assert names == sorted(names)
    assert len(names) > 50
    assert "specialnames" in names
    assert max(len(document.text) for document in documents) > 40_000


def test_another_language_reference_is_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_corpus("pydoc").fingerprint()
    assert open_corpus("pydoc").fingerprint() == before
    topics = importlib.import_module("pydoc_data.topics").topics
    monkeypatch.setitem(topics, "specialnames", f"{topics['specialnames']}.")
    assert open_corpus("pydoc").fingerprint() != before


def test_a_python_without_its_reference_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="this Python has no pydoc_data"):
        list(open_corpus("pydoc"))


class TestUnusualFiles:
    """Nothing hangs, and every message is one sentence with the value, the rule and the way out."""

    @pytest.fixture
    def pipe(self, tmp_path) -> Path:
        os.mkfifo(tmp_path / "pipe.txt")
        return tmp_path / "pipe.txt"

    def test_a_named_pipe(self, pipe):
        for source in (pipe, pipe.parent):
            assert error_of(source) == (
                f"{pipe}: is a named pipe, not a file; texts are read more than once, so write its content to a file and "
                "give that"
            )

    def test_a_device(self):
        assert error_of("/dev/zero").startswith("/dev/zero: is a device, not a file")

    def test_links_that_lead_nowhere(self, tmp_path):
        (tmp_path / "round.txt").symlink_to(tmp_path / "again.txt")
        (tmp_path / "again.txt").symlink_to(tmp_path / "round.txt")
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone" / "a.txt").symlink_to(tmp_path / "missing")
        for source in (tmp_path / "round.txt", tmp_path):
            assert "round.txt: is a link that leads to no file (Too many" in error_of(tmp_path / "round.txt"), source
        message = error_of(tmp_path / "gone")
        assert message.endswith("(No such file or directory); remove the link, or restore what it leads to")

    def test_the_standard_library_may_have_such_links(self, tmp_path, monkeypatch):
        write(tmp_path / "good.py", "x = 1\n")
        (tmp_path / "sitecustomize.py").symlink_to(tmp_path / "missing.py")
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
        assert [name for name, _ in pairs("stdlib")] == ["good.py"]

    def test_unreadable(self, tmp_path, monkeypatch):
        """As root every file can be read, so the system's refusal is made."""
        path = write(tmp_path / "a.txt", "text")

        def refused(*arguments, **options):
            raise PermissionError(13, "Permission denied", str(path))

        corpus = open_corpus(path)
        monkeypatch.setattr("builtins.open", refused)
        for read in (corpus.fingerprint, lambda: list(corpus)):
            with pytest.raises(DataError, match=r"a\.txt: cannot be read \(Permission denied\); make it readable"):
                read()
        monkeypatch.setattr(Path, "exists", refused)
        with pytest.raises(DataError, match="cannot be read"):
            open_corpus(path)

    def test_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        write(tmp_path / "a.txt", "text")
        assert pairs("~/a.txt") == [("a.txt", "text")]

    def test_long_paths(self, tmp_path):
        folder = tmp_path / ("a" * 200) / ("b" * 200)
        assert pairs(write(folder / "c.txt", "text").parent) == [("c.txt", "text")]

    def test_control_characters_reach_no_message_and_no_name(self, tmp_path):
        write(tmp_path / "a\x1b[31m.txt", "text")
        write(tmp_path / r"a\x1b[31m.txt", "text")
        assert [name for name, _ in pairs(tmp_path)] == [r"a\\x1b[31m.txt", r"a\x1b[31m.txt"]
        datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "set\x1b"))
        assert pairs(tmp_path / "set\x1b")[0][0] == r"set\x1b:1"
        for name in ("b\x1b.txt", "b\x1b.jsonl", "b\x1b.parquet", "b\x1b.jsonl.gz", "b\x1b.csv"):
            message = error_of(write(tmp_path / name, b"\xff\xfe{"))
            assert message.isprintable()
            assert r"b\x1b." in message
        assert opened(tmp_path / "a\x1b[31m.txt").source.isprintable()
        assert error_of(tmp_path / "c\x1b.txt").isprintable()
        write(tmp_path / "near\x1b.txt", "text")
        assert error_of(tmp_path / "near\x1b.tx").isprintable()

    def test_nul_bytes(self, tmp_path):
        path = write(tmp_path / "a.txt", "text".encode("utf-16-le"))
        assert error_of(path) == (
            f"{path}: character 1 is NUL, so this is UTF-16 or no text; convert the file, for example with "
            "`iconv -f utf-16le -t utf-8`, or remove the NULs with `tr -d '\\000'`"
        )
        assert pairs(write(tmp_path / "a.jsonl", rb'{"text": "a\u0000b"}')) == [("a.jsonl:1", "a\0b")]

    def test_an_empty_document_is_one(self, tmp_path):
        assert pairs(write(tmp_path / "a.txt", b"")) == [("a.txt", "")]

    def test_two_columns_of_one_name(self, tmp_path):
        column = pyarrow.array(["a"])
        parquet.write_table(pyarrow.table([column, column], names=["text", "text"]), tmp_path / "a.parquet")
        assert error_of(tmp_path / "a.parquet") == f"{tmp_path}/a.parquet: has 2 columns 'text'; rename all but one"

    def test_parquet_damaged_within(self, tmp_path):
        texts = [hashlib.sha256(bytes([i])).hexdigest() for i in range(200)]
        parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
        data = (tmp_path / "a.parquet").read_bytes()
        write(tmp_path / "a.parquet", data[:4] + bytes(4_000) + data[4_004:])
        assert "a.parquet, after row 0: not Parquet, cut short or damaged" in error_of(tmp_path / "a.parquet")


class TestSizes:
    """A document that would fill the memory is refused when it is met, by a limit on its bytes."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(formats, "_PART", 64)
        for name, limit, place in (
            ("LARGEST", 1_000, "file"),
            ("_IN_PARQUET", 500, "parquet"),
            ("_IN_MEMORY", 2_000, ""),
        ):
            monkeypatch.setattr(formats, name, limit)
            monkeypatch.setitem(formats._LIMITS, limit, place)
        monkeypatch.setattr(formats._require_bearable, "__defaults__", (1_000,))

    def test_of_a_text_file(self, tmp_path):
        assert len(pairs(write(tmp_path / "a.txt", "x" * 1_000))[0][1]) == 1_000
        path = write(tmp_path / "a.txt", "x" * 1_001)
        assert error_of(path) == (
            f"{path}: takes 1,001 bytes or more file; one document may take 1,000 there. "
            "Split it into several files or records"
        )

    def test_in_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(formats, "_PART", 512)
        path = write(tmp_path / "a.txt", "x" * 900 + "\U0001f600")
        assert "one document may take 2,000" in error_of(path)

    @pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zstandard.compress)])
    def test_of_a_line_however_well_it_is_packed(self, tmp_path, ending, pack):
        """Of a bomb no more is unpacked than a document may have."""
        line = json_lines([{"text": "x" * 10**6}])
        path = write(tmp_path / f"a.jsonl{ending}", pack(json_lines(ROWS[:1]) + line))
        assert f"{path}, line 2: takes 1,001 bytes or more" in error_of(path)

    def test_of_a_row(self, tmp_path):
        parquet.write_table(pyarrow.table({"text": ["x" * 500, "x" * 501]}), tmp_path / "a.parquet")
        assert "a.parquet, row 2: takes 501 bytes" in error_of(tmp_path / "a.parquet")

    def test_lines_may_be_as_long_as_they_like_together(self, tmp_path):
        rows = [{"text": "x" * 900}] * 20
        assert len(pairs(write(tmp_path / "a.jsonl.zst", zstandard.compress(json_lines(rows))))) == 20

    def test_surrogates_are_found_in_every_part(self, tmp_path):
        path = write(tmp_path / "a.jsonl", json.dumps({"text": "x" * 100 + "\ud83d"}))
        assert "character 100 is half of a surrogate pair" in error_of(path)


@given(
    st.lists(st.sampled_from(["a", "\r", "\n", "\r\n", "é", "天", "😀", "\ufeff", "\u2028"]), max_size=60).map("".join),
    st.integers(3, 9),  # bytes; a byte order mark lies in the first part
)
def test_text_is_decoded_the_same_in_parts(tmp_path_factory, text, part):
    path = write(tmp_path_factory.mktemp("parts") / "a.txt", text)
    with patch.object(formats, "_PART", part), patch.object(formats, "_IN_MEMORY", 10**9):
        ((_, read),) = pairs(path)
    assert read == text.encode().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

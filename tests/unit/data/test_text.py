"""Every kind of source, its names, and its refusals."""

import ast
import gzip
import hashlib
import json
import string
import sysconfig
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import given, strategies as st

from skipwise.data.text import is_held_out, open_corpus, other_source
from skipwise.errors import DataError
from skipwise.recipes.schema import Data
from skipwise.results.run_folder import RunFolder

ROWS = [{"text": "the sky\nis blue", "id": 7}, {"text": "grün ☘", "id": 8}, {"text": "😀", "id": 9}]
DOCUMENTS = [(f":{row}", record["text"]) for row, record in enumerate(ROWS, 1)]


def json_lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def zstd(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="zstd", asbytes=True)


MANY = json_lines([{"text": hashlib.sha256(bytes([i % 256, i >> 8])).hexdigest()} for i in range(9_000)])


def pairs(source, **options) -> list[tuple[str, str]]:
    return [(document.name, document.text) for document in open_corpus(Data(source=str(source), **options))]


def refused(source, match: str, **options) -> None:
    with pytest.raises(DataError, match=match):
        pairs(source, **options)


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

    @given(st.text(alphabet=string.printable), st.floats(0, 1), st.floats(0, 1))
    def test_grows_with_the_share(self, name, a, b):
        assert is_held_out(name, min(a, b)) <= is_held_out(name, max(a, b))
        assert is_held_out(name, 0.0) < is_held_out(name, 1.0)


class TestFiles:
    def test_folder(self, tmp_path):
        for name in ("b.md", "a/z.rst", "a/b.TEX", "a.py"):
            write(tmp_path / name, name)
        write(tmp_path / "a/c/x.txt", "\ufeffone\r\ntwo\rthree\n")
        for name in (".hidden.txt", ".git/x.txt", "picture.png", "README"):
            write(tmp_path / name, b"\xff")
        write(tmp_path / "c.jsonl", json_lines(ROWS))
        texts = {
            "a.py": "a.py",
            "a/b.TEX": "a/b.TEX",
            "a/c/x.txt": "one\ntwo\nthree\n",
            "a/z.rst": "a/z.rst",
            "b.md": "b.md",
        }
        assert pairs(tmp_path) == [*texts.items(), *(("c.jsonl" + suffix, text) for suffix, text in DOCUMENTS)]
        assert open_corpus(tmp_path).unread == ["README", "picture.png"]

    @pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
    def test_json_lines(self, tmp_path, ending):
        data = json_lines(ROWS[:2]) + b" \n" + json.dumps(ROWS[2]).encode()  # no line end at the end
        packed = {
            ".jsonl": lambda: data,
            ".jsonl.gz": lambda: gzip.compress(data),
            # Two frames, as appending makes, cut inside a line.
            ".jsonl.zst": lambda: zstd(data[:9]) + zstd(data[9:]),
        }[ending]()
        path = write(tmp_path / f"corpus{ending}", packed)
        numbered = zip((1, 2, 4), ROWS, strict=True)
        assert pairs(path) == [(f"corpus{ending}:{line}", row["text"]) for line, row in numbered]

    def test_parquet(self, tmp_path):
        datasets.Dataset.from_list(ROWS * 50).to_parquet(tmp_path / "c [1].parquet")
        expected = [(f"c [1].parquet:{row}", text) for row, (_, text) in enumerate(DOCUMENTS * 50, 1)]
        assert pairs(tmp_path / "c [1].parquet") == expected
        assert pairs(tmp_path) == expected
        assert next(open_corpus(tmp_path).read(140)).name == "c [1].parquet:141"

    def test_a_run_in_the_folder_is_left_out(self, tmp_path):
        write(tmp_path / "a.txt", "a")
        write(tmp_path / "mine/run.json", "{}")  # the user's
        write(tmp_path / "mine/b.txt", "b")
        before = open_corpus(tmp_path).fingerprint()
        run = RunFolder(tmp_path / "runs/one")
        run.begin()
        write(run.model / "README.md", "a card")
        assert pairs(tmp_path) == [("a.txt", "a"), ("mine/b.txt", "b")]
        assert open_corpus(tmp_path).fingerprint() == before


class TestPython:
    def test_standard_library(self, tmp_path, monkeypatch):
        assert dict(pairs("stdlib"))["ast.py"] == Path(ast.__file__).read_text(encoding="utf-8")
        assert dict(pairs("pydoc"))["specialnames"]
        for name in ("good.py", "site-packages/other.py", "lib/encodings/kept.py", "encodings/table.py", "a/test/x.py"):
            write(tmp_path / name, "x = 1\n")
        (tmp_path / "sitecustomize.py").symlink_to(tmp_path / "missing.py")
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
        assert [name for name, _ in pairs("stdlib")] == ["good.py", "lib/encodings/kept.py"]


class TestDataSets:
    @pytest.fixture
    def saved(self, tmp_path) -> Path:
        data = datasets.Dataset.from_list(ROWS)
        data.save_to_disk(str(tmp_path / "one"))
        datasets.DatasetDict(train=data, validation=data.select([1])).save_to_disk(str(tmp_path / "many"))
        return tmp_path

    def test_saved(self, saved):
        assert pairs(saved / "one") == [("one" + suffix, text) for suffix, text in DOCUMENTS]
        assert pairs(saved / "many", split="validation") == [("many:1", ROWS[1]["text"])]
        assert [document.name for document in open_corpus(saved / "one").read(2)] == ["one:3"]

    def test_settings_of_the_hub_are_refused_or_dropped_elsewhere(self, saved):
        write(saved / "texts/a.txt", "a")
        for setting in ({"split": "test"}, {"subset": "en"}, {"streaming": True, "max_train_tokens": 9}):
            for source in (saved / "texts/a.txt", saved / "one", "stdlib"):
                refused(source, f"data.{next(iter(setting))}", **setting)
        hub = Data(source="some/set", split="train[:10%]", subset="en", streaming=True, max_train_tokens=9)
        for source in (str(saved / "texts"), "stdlib"):
            assert other_source(hub, source) == Data(source=source)
        assert other_source(hub, str(saved / "many")).split == "train[:10%]"
        assert other_source(hub, "another/set") == hub.model_copy(update={"source": "another/set"})

    def test_name_on_the_hub(self, tmp_path, monkeypatch):
        calls = []

        def load(name, subset, split):
            calls.append((name, subset, split))
            if name == "my_corpsu":
                raise ConnectionError
            return datasets.Dataset.from_list(ROWS)

        monkeypatch.setattr(datasets, "load_dataset", load)
        assert pairs("owner/set", split="test") == [("owner/set" + s, text) for s, text in DOCUMENTS]
        assert calls == [("owner/set", None, "test")]
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "my_corpus/a.txt", "text")
        refused("my_corpsu", "'my_corpsu'.* my_corpus")


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "data", "place"),
        [
            ("table.csv", b"a,b", ""),
            ("latin.txt", b"caf\xe9 au lait", "byte 3"),
            ("c.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "line 2"),
            ("c.jsonl", json_lines(ROWS) + b'{"text": "a"', "line 4"),
            ("c.jsonl", json_lines(ROWS) + b'{"body": "x", "id": 3}\n', "line 4.*'text'.*'body', 'id'"),
            ("c.jsonl.gz", gzip.compress(json_lines(ROWS), mtime=0)[:-9], ""),
            ("c.jsonl.zst", zstd(MANY)[:-9], ""),
            ("c.parquet", b"PAR1" + bytes(99), "row 0"),
        ],
    )
    def test_the_place_is_named(self, tmp_path, name, data, place):
        refused(write(tmp_path / name, data), rf"{name}.*{place}")

    def test_missing_path(self, tmp_path):
        write(tmp_path / "corpus.jsonl", b"")
        refused(tmp_path / "corpsu.jsonl", r"corpus\.jsonl")
        refused("nowhere/to/be/found/", "nowhere")
        write(tmp_path / "pictures/picture.png", b"")
        refused(tmp_path / "pictures", "pictures")


def test_the_fingerprint_follows_names_contents_and_field(tmp_path):
    def fingerprint(folder: str, name: str, text: str, **options) -> str:
        path = write(tmp_path / folder / name, text)
        return open_corpus(Data(source=str(path.parent), **options)).fingerprint()

    def of_saved(rows: list[dict]) -> str:
        datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
        return open_corpus(tmp_path / "set").fingerprint()

    base = fingerprint("a", "x.txt", "text")
    assert fingerprint("b", "x.txt", "text") == base
    others = [fingerprint("c", "y.txt", "text"), fingerprint("d", "x.txt", "texT")]
    others += [fingerprint("e", "x.txt", "text", text_field="body"), of_saved(ROWS), of_saved(ROWS[:2])]
    assert len({base, *others}) == 6

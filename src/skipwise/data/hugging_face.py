"""Data sets of the Hugging Face ecosystem: saved in a folder, of the hub, or streamed from the hub."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skipwise.data.corpus import Corpus, Document, Place, hash_files, hash_parts, printable
from skipwise.data.formats import first_line, reader_of, require_field, text_of
from skipwise.errors import DataError
from skipwise.recipe import nearest


class RowCorpus(Corpus):
    """The rows of a ``datasets.Dataset``, named ``NAME:row`` from 1."""

    def __init__(
        self, source: str, name: str, dataset: Any, identity: Callable[[], str], text_field: str
    ) -> None:
        super().__init__(source, text_field)
        self.name = name
        self.dataset = dataset
        self._identity = identity
        require_field(dataset.column_names, text_field, source)

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        done = place or 0
        texts = self.dataset.select_columns([self.text_field]).with_format(None)
        for row, record in enumerate(texts.skip(done), done + 1):
            text = text_of(record, self.text_field, f"{self.source}, row {row:,}")
            yield Document(f"{self.name}:{row}", text), row

    def fingerprint(self) -> str:
        """Hash the name and the data set's identity: its files here, its own fingerprint on the hub."""
        return hash_parts(["rows", self.text_field, self.name, self._identity()])


class StreamError(DataError):
    """The stream broke off; it can be read on from there."""


class StreamCorpus(Corpus):
    """The rows of a data set as they come from the hub, none of it kept on the disk.

    Reading on begins in the file where it ended, or in the one before: the others are not fetched again.
    """

    def __init__(self, source: str, open_stream: Callable[[], Any], identity: str, text_field: str) -> None:
        super().__init__(source, text_field)
        self._open = open_stream
        self._identity = identity
        columns = open_stream().column_names
        if columns is not None:  # else the first record tells
            require_field(columns, text_field, source)

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        stream = self._open()
        if stream.column_names is not None:
            stream = stream.select_columns([self.text_field])
        row = 0
        if place is not None:
            row = place["row"]
            stream.load_state_dict(place["stream"])
        records = iter(stream)
        while True:
            try:
                record = next(records)
            except StopIteration:
                return
            except Exception as error:  # the network, the hub, a file of it: any of a dozen classes
                raise StreamError(
                    f"{self.source}: the stream broke off after row {row:,} ({type(error).__name__}: "
                    f"{first_line(error)}). What was tokenised is kept: run again, and it is read on from there"
                ) from error
            row += 1
            text = text_of(record, self.text_field, f"{self.source}, row {row:,}")
            yield Document(f"{self.source}:{row}", text), {"row": row, "stream": stream.state_dict()}

    def fingerprint(self) -> str:
        """Hash the name and the data set's identity, on the hub the commit."""
        return hash_parts(["stream", self.text_field, self.source, self._identity])


def open_saved(folder: Path, text_field: str, split: str) -> Corpus:
    """Open what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote.

    Raises:
        DataError: it cannot be loaded, or has no such split.
    """
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:  # datasets, pyarrow and json each raise their own
        raise DataError(
            f"{folder}: this saved Hugging Face data set cannot be loaded "
            f"({first_line(error)}); save it again"
        ) from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise DataError(
                f"{folder}: no split {split!r}{nearest(split, dataset)}; "
                f"choose of {', '.join(dataset)}: data.split of a recipe, --split of evaluate"
            )
        dataset = dataset[split]
    files = [Path(entry["filename"]) for entry in dataset.cache_files]

    def identity() -> str:
        return hash_parts(hash_files((file.name, file) for file in files))

    return RowCorpus(str(folder), printable(folder.resolve().name), dataset, identity, text_field)


def open_hub(source: str, text_field: str, split: str, subset: str | None, stream: bool) -> Corpus:
    """Open a data set by its name on the hub; what cannot be such a name is a path that is missing.

    Raises:
        DataError: neither is there.
    """
    path = Path(source).expanduser()
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    missing = f"{source!r} is neither a file nor a folder here{nearest(path.name, siblings)}"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) or reader_of(path) is not None:
        raise DataError(f"{missing}; the text must be one, a Hugging Face data set, or stdlib")
    import datasets

    try:
        if stream:
            builder = datasets.load_dataset_builder(source, subset)
            identity = hash_parts([builder.hash, builder.config.name, split])
            return StreamCorpus(
                source, lambda: builder.as_streaming_dataset(split=split), identity, text_field
            )
        dataset = datasets.load_dataset(source, subset, split=split)
    except DataError:
        raise
    except Exception as error:  # the network, the hub, a split, a configuration: any of a dozen classes
        part = f" and subset {subset!r}" if subset else ""
        raise DataError(
            f"{missing}, and the Hugging Face hub gave no data set of that name with split {split!r}{part} "
            f"({type(error).__name__}: {first_line(error)}). Check name, split, subset and network; "
            "or save it where there is one by `Dataset.save_to_disk` and give its folder"
        ) from error
    return RowCorpus(source, source, dataset, lambda: str(dataset._fingerprint), text_field)

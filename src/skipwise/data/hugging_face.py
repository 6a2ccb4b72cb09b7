"""Hugging Face data sets: saved in a folder, downloaded from the hub, or streamed from the hub."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from skipwise.data.corpus import Corpus, Document, Mark, Place, hash_files, hash_parts
from skipwise.data.formats import kind_of, reader_of, require_columns, text_of
from skipwise.data.names import document_name, printable
from skipwise.data.tokenised import Tokenised
from skipwise.errors import DataError, nearest, reason
from skipwise.recipes.schema import Data


@dataclass(frozen=True)
class RowCorpus(Corpus):
    """The rows of a ``datasets.Dataset``, named ``NAME:row`` from 1; ``identity`` stands for its content."""

    name: str
    dataset: Any
    identity: Callable[[], str]

    def __post_init__(self) -> None:
        self._columns()  # refuses a data set without them

    def _columns(self) -> tuple[str, ...]:
        return require_columns(self.dataset.column_names, self.text_field, self.source)

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        done = place or 0
        columns = list(self._columns())
        records = self.dataset.select_columns(columns).with_format("numpy" if self.kind() is Tokenised else None)
        for row, record in enumerate(records.skip(done), done + 1):
            text = text_of(record, self.text_field, f"{self.source}, row {row:,}")
            yield Document(f"{self.name}:{row}", text), row

    def share(self, place: Place) -> float | None:
        return place / len(self.dataset)

    def kind(self) -> type[str]:
        return kind_of(self._columns())

    def fingerprint(self) -> str:
        return hash_parts(["rows", self.text_field, self.name, self.identity()])


class StreamError(DataError):
    """The stream broke off; a new attempt continues from there."""


@dataclass(frozen=True)
class StreamCorpus(Corpus):
    """The rows of a data set as they come from the hub; none of it is kept on the disk.

    Reading continues in the file where it stopped, or in the one before; earlier files are not downloaded again.
    """

    open_stream: Callable[[], Any]
    identity: str

    def __post_init__(self) -> None:
        columns = self.open_stream().column_names
        if columns is not None:  # otherwise the first record shows them
            require_columns(columns, self.text_field, self.source)

    def _documents(self, place: Place) -> Iterator[tuple[Document, Mark]]:
        stream = self.open_stream()
        if stream.column_names is not None:
            stream = stream.select_columns(list(require_columns(stream.column_names, self.text_field, self.source)))
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
            except Exception as error:  # the network, the hub or a file raises any of a dozen classes
                raise StreamError(
                    f"{self.source}: the stream broke off after row {row:,} ({type(error).__name__}: "
                    f"{reason(error)}). What was tokenised is kept: run again to continue from there"
                ) from error
            row += 1
            text = text_of(record, self.text_field, f"{self.source}, row {row:,}")
            yield Document(f"{self.source}:{row}", text), (row, stream)

    def place(self, mark: Mark) -> Place:
        """Copy the state of the stream, not for every row: only the place of a batch's last one is kept."""
        row, stream = mark
        return {"row": row, "stream": stream.state_dict()}

    def kind(self) -> type[str]:
        columns = self.open_stream().column_names
        return super().kind() if columns is None else kind_of(require_columns(columns, self.text_field, self.source))

    def fingerprint(self) -> str:
        return hash_parts(["stream", self.text_field, self.source, self.identity])


def open_saved(folder: Path, data: Data) -> Corpus:
    """Open what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote."""
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder), keep_in_memory=False)  # in memory it would not name its files
    except Exception as error:  # datasets, pyarrow and json each raise their own
        raise DataError(
            f"{printable(folder)}: this saved Hugging Face data set cannot be loaded ({reason(error)}); save it again"
        ) from error
    if isinstance(dataset, datasets.DatasetDict):
        if data.split not in dataset:
            raise DataError(
                f"{printable(folder)}: no split {data.split!r}{nearest(data.split, dataset)}; choose one of "
                f"{', '.join(dataset)}: data.split of a recipe, --split of evaluate"
            )
        dataset = dataset[data.split]
    elif data.split != Data.model_fields["split"].default:
        raise DataError(
            f"{printable(folder)}: a saved data set without splits is read whole; leave data.split = {data.split!r} out"
        )
    files = [Path(entry["filename"]) for entry in dataset.cache_files]

    def identity() -> str:
        return hash_parts(hash_files((file.name, file) for file in files))

    return RowCorpus(printable(folder), data.text_field, document_name(folder.resolve().name), dataset, identity)


def open_hub(data: Data) -> Corpus:
    """Open a data set by its name on the hub; a source that cannot be such a name is a missing path."""
    source, path = data.source, Path(data.source)
    siblings = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and path.parent.is_dir() else []
    missing = f"{source!r} is neither a file nor a folder here{printable(nearest(path.name, siblings))}"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) or reader_of(path) is not None:
        raise DataError(f"{missing}; give a file, a folder, a Hugging Face data set, or stdlib")
    import datasets

    try:
        if data.stream:
            builder = datasets.load_dataset_builder(source, data.subset)
            identity = hash_parts([builder.hash, builder.config.name, data.split])
            stream = partial(builder.as_streaming_dataset, split=data.split)
            return StreamCorpus(source, data.text_field, stream, identity)
        dataset = datasets.load_dataset(source, data.subset, split=data.split)
    except DataError:
        raise
    except Exception as error:  # the network, the hub, a split or a configuration raises any of a dozen classes
        part = f" and subset {data.subset!r}" if data.subset else ""
        raise DataError(
            f"{missing}, and the Hugging Face hub gave no data set of that name with split {data.split!r}{part} "
            f"({type(error).__name__}: {reason(error)}). Check name, split, subset and network; or save it on a "
            "connected machine with `Dataset.save_to_disk` and give the folder"
        ) from error
    return RowCorpus(source, data.text_field, source, dataset, lambda: str(dataset._fingerprint))

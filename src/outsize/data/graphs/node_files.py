"""Files that list nodes: ids, labels, attributes, and the columns that a split needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_text
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.column_values import to_numbers, to_text
from outsize.data.encoding.ids import Bags, CodedText
from outsize.data.encoding.recipe import feature_name, require_distinct_features
from outsize.data.encoding.sources import Chunk, find_files, first_of, read_chunks
from outsize.data.encoding.splits import SplitConfig
from outsize.data.encoding.text_keys import Column
from outsize.data.graphs.graph import IdBags
from outsize.data.graphs.raw_ids import NodeIds, id_keys, id_names
from outsize.errors import ConfigError, DataError, one_line
from outsize.interrupts import check_stop


@dataclass(frozen=True)
class NodeFile:
    """Files with one node per row.

    Attributes:
        path: Files or patterns. `.parquet` and `.pq` are Parquet, everything else is text with a
            header, compressed if its name ends in `.gz`.
        id: Column of the node's id: text or integers, as in the files of edges.
        label: Column of the class, compared as text; nodes without a value are unlabelled.
        label_separator: If nodes may have several classes: what separates them.
        min_class_size: Nodes of classes with fewer nodes than this are unlabelled.
        attributes: Columns with one value per node; a missing value is an empty bag.
        multi_valued: Columns with several values per node, which become bags.
        separator: Separator between the values of a multi-valued column.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        comment: Lines at the top of a text file that start with this are skipped, such as "#".
    """

    path: tuple[str, ...]
    id: str = "id"
    label: str = ""
    label_separator: str = ""
    min_class_size: int = 1
    attributes: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    comment: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path is empty: name at least one file or pattern")
        require_text(self, "path", "id", "attributes", "multi_valued", "columns")
        require_at_least(self, 1, "min_class_size")
        names = [self.id, *self.attributes, *self.multi_valued]
        names += [self.label] if self.label else []
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"column {name!r} is used twice: give it one role")
        require_distinct_features((*self.attributes, *self.multi_valued))
        if self.multi_valued and not self.separator:
            raise ConfigError("multi_valued columns need a separator that is not empty")


@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type, in the order of their file.

    Attributes:
        ids: Their ids.
        attributes: Name → bags.
        texts: Text column → values, of the label and of what a split needs.
        numbers: Numeric column → values, of what a split needs.
    """

    ids: NodeIds
    attributes: dict[str, IdBags] = field(default_factory=dict)
    texts: dict[str, CodedText] = field(default_factory=dict)
    numbers: dict[str, NDArray[np.float64]] = field(default_factory=dict)


def read_nodes(
    file: NodeFile, split: SplitConfig | None, *, as_text: bool, max_bad_rows: float
) -> NodeTable:
    """Read the nodes of one type.

    Args:
        file: What to read.
        split: What the nodes are split by, if they are.
        as_text: Whether ids are compared as text.
        max_bad_rows: The largest share of malformed rows that is skipped.

    Raises:
        NotIntegersError: An id is not an integer, and `as_text` is false.
    """
    files, bad = find_files(file.path), BadRows()
    origin = first_of(file.path)
    texts = list(dict.fromkeys([*file.attributes, *file.multi_valued]))
    texts += [file.label] if file.label else []
    texts += [name for name in (split.text_columns if split else ()) if name not in texts]
    numbers = list(split.number_columns if split else ())
    parts = _Parts(texts, numbers, as_text)
    for chunk in _chunks(files, tuple(dict.fromkeys([file.id, *texts, *numbers])), file, bad):
        parts.add(chunk, files[chunk.file], file, bad)
    bad.require_share(max_bad_rows)
    ids = parts.ids()
    if not ids.num_nodes:
        raise DataError(f"{origin}: there is no node in it")
    if repeated := ids.repeated():
        name = repeated[0] if ids.names is None else ids.names[repeated[0]].as_py()
        first, second = (number + 1 for number in repeated)
        raise DataError(
            f"{origin}: the id {name!r:.80} is there twice, as node {first:,} and node {second:,}: "
            "a node has one row"
        )
    joined = parts.texts()
    attributes = {feature_name(name): single_values(joined[name]) for name in file.attributes}
    attributes |= {
        feature_name(name): bags_of(joined[name], file.separator) for name in file.multi_valued
    }
    return NodeTable(ids, attributes, joined, parts.numbers())


def _chunks(
    files: list[Path], wanted: tuple[str, ...], form: NodeFile, bad: BadRows
) -> Iterator[Chunk]:
    for chunk in read_chunks(files, wanted, form, bad, form.comment):
        check_stop()
        bad.num_rows += chunk.num_rows
        yield chunk


class _Parts:
    """The columns of the chunks read so far."""

    def __init__(self, texts: Sequence[str], numbers: Sequence[str], as_text: bool) -> None:
        self._as_text = as_text
        self._keys: list[NDArray[np.int64]] = []
        self._names: list[Column] = []
        self._texts: dict[str, list[CodedText]] = {name: [] for name in texts}
        self._numbers: dict[str, list[NDArray[np.float64]]] = {name: [] for name in numbers}

    def add(self, chunk: Chunk, path: Path, file: NodeFile, bad: BadRows) -> None:
        keys, missing = id_keys(chunk.columns[file.id], as_text=self._as_text)
        texts, numbers = {}, {}
        good = ~missing
        chunk.refuse(bad, f"no value of {file.id!r}", missing, path)
        for name in self._texts:
            separator = file.label_separator if name == file.label else file.separator
            texts[name], wrong = _converted(to_text, path, name, chunk.columns[name], separator)
            if wrong is not None:
                chunk.refuse(bad, f"bytes in {name!r} that are not UTF-8", wrong & good, path)
                good &= ~wrong
        for name in self._numbers:
            numbers[name], wrong = _converted(to_numbers, path, name, chunk.columns[name])
            if wrong is not None:
                chunk.refuse(bad, f"no number in {name!r}", wrong & good, path)
                good &= ~wrong
        rows = np.flatnonzero(good)
        self._keys.append(keys[rows])
        self._names.append(id_names(chunk.columns[file.id], rows, as_text=self._as_text))
        for name, text in texts.items():
            self._texts[name].append(text.take(good))
        for name, values in numbers.items():
            self._numbers[name].append(values[good])

    def ids(self) -> NodeIds:
        import pyarrow as pa

        if not self._keys:
            return NodeIds(np.zeros(0, np.int64), None, as_text=self._as_text)
        names = pa.concat_arrays(self._names)
        return NodeIds(np.concatenate(self._keys), names, as_text=self._as_text)

    def texts(self) -> dict[str, CodedText]:
        return {name: join_texts(parts) for name, parts in self._texts.items()}

    def numbers(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.concatenate(parts) for name, parts in self._numbers.items()}


def _converted(convert: Any, path: Path, name: str, column: Column, *arguments: Any) -> Any:
    import pyarrow as pa

    try:
        return convert(column, *arguments)
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: column {name!r} of {column.type!s:.60} cannot be used: {one_line(error, 200)}"
        ) from None


def join_texts(parts: Sequence[CodedText]) -> CodedText:
    """The rows of several chunks of a column, without values that no row has."""
    import pyarrow as pa

    text = CodedText.concatenate(parts)
    used, codes = np.unique(text.codes, return_inverse=True)
    has_missing = bool(len(used)) and used[0] < 0
    values = text.values.take(pa.array(used[1:] if has_missing else used))
    return CodedText(codes.astype(np.int64) - has_missing, values)


def single_values(text: CodedText) -> IdBags:
    """A bag of one id for each row, empty if its value is missing."""
    starts = np.concatenate((np.zeros(1, np.int64), (text.codes >= 0).cumsum()))
    values = text.codes[text.codes >= 0].astype(np.int32)
    return IdBags(starts, values, len(text.values), text.values)


def bags_of(text: CodedText, separator: str) -> IdBags:
    """The bag of each row, whose values are split at a separator and trimmed."""
    import pyarrow.compute as pc

    split = Bags.split(text, separator, 0)
    coded = pc.utf8_trim_whitespace(split.tokens.values).dictionary_encode()
    values, lengths = split.rows(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    starts = np.concatenate((np.zeros(1, np.int64), lengths.cumsum())).astype(np.int64)
    return IdBags(starts, values.astype(np.int32), len(coded.dictionary), coded.dictionary)

"""Reading rows and checking them: valid numbers, UTF-8 text, and labels 0 or 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.derived import DERIVED
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.recipe import Recipe
from outsize.data.encoding.sources import Chunk, read_chunks
from outsize.data.encoding.text_keys import Column
from outsize.data.encoding.unreadable import UNREADABLE
from outsize.errors import DataError, one_line

_LARGEST = float(np.finfo(np.float32).max)
_FEW_VALUES = 64
_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def read_rows(files: list[Path], recipe: Recipe, bad: BadRows) -> Iterator[Rows]:
    """Stream the good rows of all files, and count the bad ones."""
    first = seen = 0
    for chunk in read_chunks(files, wanted_columns(recipe), recipe, bad):
        start = -seen % recipe.subsample
        seen += chunk.num_rows
        if recipe.subsample > 1:
            chunk = _subsample(chunk, start, recipe.subsample)
        rows, _ = check_rows(chunk, files[chunk.file], recipe, bad, first)
        yield rows
        first += len(rows)


def wanted_columns(recipe: Recipe) -> tuple[str, ...]:
    """The columns that a recipe reads."""
    derived = DERIVED[recipe.derive]
    numeric, textual = _columns_by_kind(recipe)
    wanted = dict.fromkeys((recipe.label.column, *numeric, *textual))
    wanted.pop("", None)  # there may be no label column
    for name in derived.makes:
        wanted.pop(name, None)
    wanted.update(dict.fromkeys(derived.needs))
    return tuple(wanted)


def _columns_by_kind(recipe: Recipe) -> tuple[dict[str, None], dict[str, None]]:
    numeric = dict.fromkeys((*recipe.dense_columns, *recipe.split.number_columns))
    textual = dict.fromkeys((*recipe.id_columns, *recipe.split.text_columns))
    return numeric, textual


def check_rows(
    chunk: Chunk, path: Path | None, recipe: Recipe, bad: BadRows, first: int = 0
) -> tuple[Rows, NDArray[np.bool_]]:
    """The rows of a chunk that pass all checks, and a mask of these; the others are counted.

    Args:
        chunk: The wanted columns of a recipe.
        path: The file they come from; `None` for rows in memory.
        recipe: What is read.
        bad: Counts the bad rows.
        first: Number of the first row among the good rows of all files.
    """
    derived = DERIVED[recipe.derive]
    numeric, textual = _columns_by_kind(recipe)
    if recipe.missing:
        chunk = replace(
            chunk, columns={n: _blank(c, recipe.missing) for n, c in chunk.columns.items()}
        )
    checked = _Checked(chunk, path, bad)
    labels = checked.labels(recipe)
    numbers = {name: checked.number(name) for name in recipe.dense_columns}
    for name in numeric:
        if name not in numbers:
            numbers[name] = checked.number(name, time_format=recipe.split.time_format)
    texts = {
        name: checked.text(name, recipe.separator) for name in textual if name not in derived.makes
    }
    sources = {name: checked.text(name, recipe.separator) for name in derived.needs}
    made, wrong = derived.make(sources)
    if wrong is not None:
        checked.refuse(f"a value of {derived.needs[0]!r} of another form", wrong)
    texts.update({name: made[name] for name in textual if name in derived.makes})
    bad.num_rows += chunk.num_rows
    rows = Rows(chunk.file, first, labels, numbers, texts, chunk.num_bytes)
    if not checked.is_good.all():
        rows = rows.take(checked.is_good)
    return rows, checked.is_good


class _Checked:
    """The checks of one chunk; `is_good` is a mask of the rows that passed all of them so far."""

    def __init__(self, chunk: Chunk, path: Path | None, bad: BadRows) -> None:
        self._chunk = chunk
        self._path = path
        self._bad = bad
        self.is_good: NDArray[np.bool_] = np.ones(chunk.num_rows, bool)

    @property
    def _source(self) -> str:
        return "the rows" if self._path is None else str(self._path)

    def labels(self, recipe: Recipe) -> NDArray[np.uint8]:
        rule = recipe.label
        if not rule.column:
            return np.ones(self._chunk.num_rows, np.uint8)
        if rule.positive_values:
            text = self.text(rule.column, recipe.separator)
            self.refuse("no label", text.codes < 0)
            positive = [value in rule.positive_values for value in text.values.to_pylist()]
            return np.array([*positive, False], np.uint8)[text.codes]
        numbers = self.number(rule.column, "label")
        self.refuse("no label", np.isnan(numbers))
        dropped = np.isin(numbers, rule.dropped)
        if rule.positive_from is None:
            self.refuse("a label other than 0 and 1", ~np.isin(numbers, (0, 1)) & ~dropped, numbers)
            labels = numbers == 1
        else:
            labels = numbers >= rule.positive_from
        self.is_good &= ~dropped
        return np.asarray(labels, np.uint8)

    def number(
        self, name: str, role: str = "numeric value", time_format: str | None = None
    ) -> NDArray[np.float64]:
        column = self._chunk.columns[name]
        with self._naming(name, column):
            numbers, wrong = to_numbers(column)
            if time_format is not None and wrong is not None and wrong.any():
                numbers, wrong = to_times(column, time_format)
        if wrong is not None:
            what = {None: "a number", "": "a number or time"}.get(time_format, "a time")
            self.refuse(f"a {role} in {name!r} that is not {what}", wrong, column)
        with np.errstate(invalid="ignore"):
            self.refuse(f"a {role} in {name!r} too large", np.abs(numbers) > _LARGEST, column)
        return numbers

    def text(self, name: str, separator: str) -> CodedText:
        column = self._chunk.columns[name]
        with self._naming(name, column):
            text, wrong = to_text(column, separator)
        if wrong is not None:
            self.refuse(f"bytes in {name!r} that are not UTF-8", wrong)
        return text

    @contextlib.contextmanager
    def _naming(self, name: str, column: Column) -> Iterator[None]:
        """Turn an error of pyarrow into a `DataError` that names the column."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise DataError(
                f"{self._source}: column {name!r} holds {_type(column)}, which is neither text "
                "nor a number"
            ) from None
        except pa.ArrowException as error:
            raise DataError(
                f"{self._source}: column {name!r} of {_type(column)} cannot be used: "
                f"{one_line(error, 200)}"
            ) from None

    def refuse(self, kind: str, wrong: NDArray[np.bool_], values: object = None) -> None:
        """Mark rows as bad, and count those that were good until now."""
        wrong = wrong & self.is_good
        if not wrong.any():
            return
        row = int(np.flatnonzero(wrong)[0])
        where = f"row {self._chunk.numbers[row]:,}"
        if self._path is not None:
            unit = "row" if self._path.suffix in (".parquet", ".pq") else "line"
            where = f"{self._path} {unit} {self._chunk.numbers[row]:,}"
        if values is not None:
            where += f": {_shown(values[row])}"  # type: ignore[index]
        self._bad.add(kind, int(wrong.sum()), where)
        self.is_good &= ~wrong


def to_numbers(column: Column) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """A column as float64, NaN if missing, and a mask of invalid numbers, if there are any."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_temporal(column.type):
        # Dates become days, times keep the unit they are stored in.
        is_short = pa.types.is_date32(column.type) or pa.types.is_time32(column.type)
        column = column.cast(pa.int32() if is_short else pa.int64())
    try:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.large_string())
        numbers = column.cast(pa.float64(), safe=not pa.types.is_integer(column.type))
        return numbers.to_numpy(zero_copy_only=False), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        coded = column.dictionary_encode()
    parsed = [_number(value) for value in _as_bytes(coded.dictionary).to_pylist()]
    values = np.array([np.nan if number is None else number for number in parsed] + [np.nan])
    wrong = np.array([number is None for number in parsed] + [False])
    codes = _codes(coded)
    return values[codes], wrong[codes]


def to_times(
    column: Column, time_format: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Dates and times in texts as seconds since 1970, and a mask of those that are none, if any.

    Args:
        column: Text. Where there is no format and some are numbers, these stay as they are and
            all others are refused: dates among numbers would be of another scale.
        time_format: As for `strptime`; empty for ISO 8601. Times without a zone are UTC.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes, texts = _codes(coded), _as_bytes(coded.dictionary)
    if not time_format:
        values = texts.to_pylist()
        parsed = [_number(value) for value in values]
        if all(number is None for number in parsed):
            parsed = [_iso_time(value) for value in values]
    else:
        read = pc.strptime(
            texts.cast(pa.string()), format=time_format, unit="s", error_is_null=True
        )
        parsed = read.cast(pa.int64()).to_pylist()
    times = np.array([np.nan if time is None else time for time in parsed] + [np.nan])
    wrong = np.array([time is None for time in parsed] + [False])[codes]
    return times[codes], wrong if wrong.any() else None


def to_text(column: Column, separator: str = "|") -> tuple[CodedText, NDArray[np.bool_] | None]:
    """A column as distinct texts, and a mask of rows that are not valid UTF-8, if there are any.

    Lists are joined by the separator they would have in a text file; null elements are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        kind = pa.list_ if pa.types.is_list(column.type) else pa.large_list
        column = pc.binary_join(_without_nulls(column).cast(kind(pa.string())), separator)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes, values, wrong = _codes(coded), _as_bytes(coded.dictionary), None
    try:
        values = values.cast(pa.large_string())
    except pa.ArrowInvalid:
        if not pa.types.is_large_binary(values.type):
            raise
        values = pa.array([_text(value) for value in values.to_pylist()], pa.large_string())
    marked, empty = _marked_and_empty(values)
    if marked.any():
        wrong = np.append(marked, False)[codes]
    if empty.any():
        codes = np.where(np.append(empty, False)[codes], -1, codes)
    return CodedText(codes, values), wrong


def _marked_and_empty(values: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of texts that were marked as unreadable, and of empty ones."""
    import pyarrow.compute as pc

    if len(values) <= _FEW_VALUES:  # calls of pyarrow would take longer
        texts = values.to_pylist()
        marked = np.array([UNREADABLE in (text or "") for text in texts], bool)
        return marked, np.array([text == "" for text in texts], bool)
    marked = pc.match_substring(values, UNREADABLE).to_numpy(zero_copy_only=False).astype(bool)
    return marked, pc.equal(values, "").to_numpy(zero_copy_only=False).astype(bool)


def _without_nulls(lists: Column) -> Column:
    """Lists without their null elements; a null list stays null."""
    import pyarrow as pa

    if not lists.flatten().null_count:
        return lists
    cleaned = [
        None if members is None else [value for value in members if value is not None]
        for members in lists.to_pylist()
    ]
    return pa.array(cleaned, lists.type)


def _as_bytes(values: Column) -> Column:
    """Convert text to bytes, so that invalid UTF-8 can be found; other types are unchanged."""
    import pyarrow as pa

    is_bytes = str(values.type) in _TEXTS or pa.types.is_fixed_size_binary(values.type)
    return values.cast(pa.large_binary()) if is_bytes else values


def _codes(coded: Column) -> NDArray[np.int64]:
    """The indices of a dictionary array, −1 for null."""
    import pyarrow.compute as pc

    indices = coded.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast("int64"), -1)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _number(value: object) -> float | None:
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if value == "":  # missing, as in a text file
            return np.nan
        return None if "_" in str(value) else float(str(value))
    except ValueError:
        return None


def _iso_time(value: object) -> float | None:
    try:
        time = datetime.fromisoformat(value.decode() if isinstance(value, bytes) else str(value))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _blank(column: Column, missing: tuple[str, ...]) -> Column:
    """A column of text with null for each text that stands for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if coded else column.type
    if str(kind) not in _TEXTS:
        return column
    values = column.dictionary_decode() if coded else column
    words = pa.array([word.encode() for word in missing], pa.binary()).cast(kind)
    return pc.if_else(pc.is_in(values, value_set=words), pa.scalar(None, kind), values)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return UNREADABLE


def _shown(value: object) -> str:
    """A value of a bad row, for an error message."""
    try:
        plain = value.as_py() if hasattr(value, "as_py") else float(value)  # type: ignore[arg-type]
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return f"{plain!r:.80}"


def _type(column: Column) -> str:
    """The type of a column, for an error message."""
    return f"{column.type!s:.60}"


def _subsample(chunk: Chunk, start: int, step: int) -> Chunk:
    """Rows `start, start + step, …` of a chunk."""
    import pyarrow as pa

    taken = np.arange(start, chunk.num_rows, step)
    columns = {name: column.take(pa.array(taken)) for name, column in chunk.columns.items()}
    return Chunk(chunk.file, columns, len(taken), chunk.numbers[taken], chunk.num_bytes)

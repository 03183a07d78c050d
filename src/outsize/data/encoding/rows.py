"""Reading rows and checking them: valid numbers, UTF-8 text, and labels 0 or 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.column_values import TEXT_TYPES, to_numbers, to_text, to_times
from outsize.data.encoding.derived import DERIVED
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.recipe import Recipe
from outsize.data.encoding.sources import Chunk, read_chunks
from outsize.data.encoding.text_keys import Column
from outsize.errors import DataError, one_line

_LARGEST = float(np.finfo(np.float32).max)


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
    checked = _Checked(chunk, path, bad, recipe.decimal)
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

    def __init__(self, chunk: Chunk, path: Path | None, bad: BadRows, decimal: str) -> None:
        self._chunk = chunk
        self._path = path
        self._bad = bad
        self._decimal = decimal
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
            numbers, wrong = to_numbers(column, self._decimal)
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

    def refuse(self, kind: str, wrong: NDArray[np.bool_], values: Any = None) -> None:
        """Mark rows as bad, and count those that were good until now."""
        wrong = wrong & self.is_good
        value_of = None if values is None else lambda row: _shown(values[row])
        self._chunk.refuse(self._bad, kind, wrong, self._path, value_of)
        self.is_good &= ~wrong


def _blank(column: Column, missing: tuple[str, ...]) -> Column:
    """A column of text with null for each text that stands for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if coded else column.type
    if str(kind) not in TEXT_TYPES:
        return column
    values = column.dictionary_decode() if coded else column
    words = pa.array([word.encode() for word in missing], pa.binary()).cast(kind)
    return pc.if_else(pc.is_in(values, value_set=words), pa.scalar(None, kind), values)


def _shown(value: object) -> str:
    """A value of a bad row, for an error message."""
    try:
        plain = value.as_py() if hasattr(value, "as_py") else float(value)  # type: ignore[arg-type]
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    text = plain.decode(errors="backslashreplace") if isinstance(plain, bytes) else plain
    return f"{text!r:.80}"


def _type(column: Column) -> str:
    """The type of a column, for an error message."""
    return f"{column.type!s:.60}"


def _subsample(chunk: Chunk, start: int, step: int) -> Chunk:
    """Rows `start, start + step, …` of a chunk."""
    import pyarrow as pa

    taken = np.arange(start, chunk.num_rows, step)
    columns = {name: column.take(pa.array(taken)) for name, column in chunk.columns.items()}
    return Chunk(chunk.file, columns, len(taken), chunk.numbers[taken], chunk.num_bytes)

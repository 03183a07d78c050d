"""Rows in memory as chunks of columns: dicts, Arrow tables, pandas and polars frames.

Frames are recognized by what they offer (the Arrow interface, or columns by name), so neither
pandas nor polars is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from outsize.data.encoding.sources import Chunk
from outsize.data.encoding.text_keys import Column
from outsize.errors import DataError, one_line
from outsize.suggestions import few

_CHUNK_ROWS = 1 << 16
_KNOWN = "a dict of lists, a list of dicts, a pyarrow table, or a pandas or polars frame"


def frame_chunks(rows: Any, wanted: Sequence[str]) -> Iterator[Chunk]:
    """The wanted columns of rows in memory, in chunks; rows are numbered from 0.

    Args:
        rows: A dict of lists or arrays, a list of dicts, a pyarrow Table or RecordBatch, or a
            frame of pandas or polars; further columns are ignored. In a list of dicts, a name that
            a row lacks is a missing value.
        wanted: The columns.
    """
    table = _as_table(rows, wanted)
    first = 0
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        columns = {name: batch.column(name) for name in wanted}
        numbers = np.arange(first, first + batch.num_rows)
        first += batch.num_rows
        yield Chunk(0, columns, batch.num_rows, numbers, 0)


def frame_columns(rows: Any) -> list[str]:
    """The names of the columns of rows in memory; none if the rows are of no known form."""
    if isinstance(rows, Mapping):
        return [str(name) for name in rows]
    if isinstance(rows, list | tuple):
        names = (name for row in rows if isinstance(row, Mapping) for name in row)
        return list(dict.fromkeys(map(str, names)))
    if hasattr(rows, "column_names"):  # Arrow
        return list(rows.column_names)
    if hasattr(rows, "columns"):  # pandas, polars
        return [str(name) for name in rows.columns]
    if hasattr(rows, "schema"):  # a RecordBatch
        return [str(name) for name in rows.schema.names]
    return []


def _as_table(rows: Any, wanted: Sequence[str]) -> Any:
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return _selected(rows, wanted)
    if isinstance(rows, Mapping):
        return _from_columns(rows, list(rows), wanted)
    if isinstance(rows, list | tuple):
        return _from_records(rows, wanted)
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):  # pandas
        names = [str(name) for name in rows.columns]
        _require_columns(names, wanted)
        places = [names.index(name) for name in wanted]
        return _from_columns(
            {name: rows.iloc[:, place] for name, place in zip(wanted, places, strict=True)},
            names,
            wanted,
        )
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "to_arrow"):
        try:
            found = rows.to_arrow() if hasattr(rows, "to_arrow") else pa.table(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(
                f"the rows cannot be read as an Arrow table: {one_line(error, 200)}"
            ) from None
        if isinstance(found, pa.Table):
            return _selected(found, wanted)
    raise DataError(f"rows must be {_KNOWN}, but got {type(rows).__name__}")


def _selected(table: Any, wanted: Sequence[str]) -> Any:
    _require_columns(table.column_names, wanted)
    return table.select(list(wanted)).unify_dictionaries()


def _from_columns(columns: Mapping[str, Any], names: Sequence[str], wanted: Sequence[str]) -> Any:
    import pyarrow as pa

    _require_columns(names, wanted)
    arrays = {name: _to_array(name, columns[name]) for name in wanted}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise DataError(
            f"the columns differ in length: {short!r} has {lengths[short]:,} rows and {long!r} has "
            f"{lengths[long]:,}"
        )
    return pa.table(arrays)


def _from_records(rows: Sequence[Any], wanted: Sequence[str]) -> Any:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"rows must be {_KNOWN}, but row {number:,} is {type(row).__name__}")
        names.update(dict.fromkeys(map(str, row)))
    if not rows:
        names = dict.fromkeys(wanted)
    return _from_columns(
        {name: [row.get(name) for row in rows] for name in wanted if name in names},
        list(names),
        wanted,
    )


def _to_array(name: str, values: Any) -> Column:
    """A column as a pyarrow array; NaN is a missing value."""
    import pyarrow as pa

    if isinstance(values, str | bytes) or not (
        hasattr(values, "__len__") or hasattr(values, "__arrow_array__")
    ):
        raise DataError(
            f"column {name!r} must be a list or an array with a value for each row, but got "
            f"{type(values).__name__}"
        )
    if hasattr(values, "detach"):  # a tensor of torch
        values = values.detach().cpu().numpy()
    try:
        array = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Values of several types: as texts, so that each is judged on its own.
        array = pa.array([_as_text(name, value) for value in values], pa.string())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"  # as Arrow writes it
    if not isinstance(value, str | int | float | np.generic):
        raise DataError(
            f"column {name!r} mixes values of several types, {type(value).__name__} among them: "
            "give it one type"
        )
    return str(value)


def _require_columns(names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(f"the rows have no column {name!r}; they have: {few(names, name)}")
        if list(names).count(name) > 1:
            raise DataError(f"the rows have several columns {name!r}: rename all but one")

"""Reading JSON lines: one object per line, in UTF-8, compressed if the name ends in `.gz`."""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.sources import Chunk
from outsize.errors import DataError, one_line
from outsize.interrupts import check_stop
from outsize.suggestions import few

_LINES_PER_CHUNK = 1 << 14


def read_json_lines(
    path: Path,
    wanted: Sequence[str],
    bad: BadRows,
    optional: Sequence[str] = (),
) -> Iterator[Chunk]:
    """Stream members of the objects of a file as columns of strings.

    A line that is not a JSON object in UTF-8 is counted as bad and left out.

    Args:
        path: The file.
        wanted: Members that the first object must have; one that another object lacks is null.
        bad: Counts the bad lines.
        optional: Members that may be absent throughout.
    """
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    names = (*wanted, *optional)
    is_first, line_number = True, 0
    lines: list[dict[str, Any]] = []
    numbers: list[int] = []
    num_bytes = 0
    try:
        with opened(path, "rb") as file:
            for line in file:
                line_number += 1
                num_bytes += len(line)
                if not line.strip():
                    continue
                if is_first and line.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
                    raise DataError(f"{path} holds a list: write one object per line, without [ ]")
                found = _parsed(line, path, line_number, bad)
                if found is None:
                    continue
                if is_first:
                    _require_members(path, wanted, found)
                    is_first = False
                lines.append(found)
                numbers.append(line_number)
                if len(lines) == _LINES_PER_CHUNK:
                    check_stop()
                    yield _chunk(lines, names, numbers, num_bytes)
                    lines, numbers, num_bytes = [], [], 0
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {one_line(error, 200)}") from None
    if lines:
        yield _chunk(lines, names, numbers, num_bytes)


def _parsed(line: bytes, path: Path, number: int, bad: BadRows) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError:
        kind = "text that is not UTF-8"
    except (ValueError, RecursionError):
        kind = "no JSON"
    else:
        if isinstance(found, dict):
            return found
        kind = "no JSON object"
    bad.add(kind, 1, f"{path} line {number:,}")
    bad.num_rows += 1
    return None


def _require_members(path: Path, wanted: Sequence[str], found: dict[str, Any]) -> None:
    for name in wanted:
        if name not in found:
            raise DataError(f"{path} has no member {name!r}; it has: {few(found, name)}")


def _chunk(
    lines: list[dict[str, Any]], names: Sequence[str], numbers: list[int], num_bytes: int
) -> Chunk:
    import pyarrow as pa

    columns = {
        name: pa.array([_text(line.get(name)) for line in lines], pa.large_string())
        for name in names
    }
    return Chunk(0, columns, len(lines), np.array(numbers), num_bytes)


def _text(value: Any) -> str | None:
    """A member as text: numbers as they are written, nothing for null and nested values."""
    if isinstance(value, str):
        # Half of a surrogate pair is valid JSON, but no text.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, dict | list):
        return None
    return json.dumps(value)

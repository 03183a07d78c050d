"""Random edits of a CSV file, which may become a compressed one, Parquet or JSON lines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_BAD_VALUES = ("", "nan", "inf", "-inf", "1e400", "x", "7", "-1", "2", "0.5", " 1", "1,5", "\x00",
               "é\u2028", "9" * 400, "x" * 100_000, "1|2||3", "None", "true", "2024-01-01", "0x1f",
               '"', "''", "\\N", "\ufeff")  # fmt: skip
_TEXT_EDITS = ("value", "value", "many values", "ragged", "short row", "no column", "column twice",
               "empty", "header only", "no header", "newline in quotes", "open quote", "carriage",
               "blank lines", "nothing")  # fmt: skip
_BYTE_EDITS = ("cut", "no utf-8", "nul", "flipped", "none", "none", "none")


def edit_table(path: Path, draw: random.Random, describe: Callable[[str], None]) -> Path:
    """Edit a CSV file once or twice; the file to read in place of it, which is then the only one.

    Args:
        path: The file.
        draw: Draws all choices.
        describe: Is told what was done.
    """
    rows = list(csv.reader(io.StringIO(path.read_text())))
    text = ""
    for _ in range(draw.choice([1, 1, 2])):
        way = draw.choice(_TEXT_EDITS)
        describe(way)
        rows, text = _edit_rows(rows, way, draw)
    kind = draw.choice(["csv", "csv", "csv", "csv.gz", "parquet", "parquet", "jsonl"])
    content = _as_bytes(rows, text, kind)
    way = draw.choice(_BYTE_EDITS)
    describe(f"as {kind}, bytes: {way}")
    content = _edit_bytes(content, way, draw)
    path.unlink()
    written = path.with_suffix(f".{kind}")
    written.write_bytes(content)
    return written


def _edit_rows(rows: list[list[str]], way: str, draw: random.Random) -> tuple[list[list[str]], str]:
    """The edited rows, and text that stands after them as it is."""
    rows = [list(row) for row in rows]
    if not rows:
        return rows, ""
    width = max(1, len(rows[0]))
    place = draw.randrange(len(rows))
    column = draw.randrange(width)
    if way == "value" and column < len(rows[place]):
        rows[place][column] = draw.choice(_BAD_VALUES)
    elif way == "many values":
        for row in rows[1:]:
            if draw.random() < 0.3 and column < len(row):
                row[column] = draw.choice(_BAD_VALUES)
    elif way == "ragged":
        rows[place] = rows[place] + ["more"] * draw.randrange(1, 4)
    elif way == "short row":
        rows[place] = rows[place][: draw.randrange(width)]
    elif way == "no column":
        rows = [row[:column] + row[column + 1 :] for row in rows]
    elif way == "column twice":
        rows = [row + row[column : column + 1] for row in rows]
    elif way == "empty":
        rows = []
    elif way == "header only":
        rows = rows[:1]
    elif way == "no header":
        rows = rows[1:]
    elif way == "newline in quotes" and column < len(rows[place]):
        rows[place][column] = "a\nb"
    elif way == "carriage" and column < len(rows[place]):
        rows[place][column] = "a\rb"
    elif way == "blank lines":
        rows.insert(place, [])
    return rows, '"open, and never closed\n1,2' if way == "open quote" else ""


def _as_bytes(rows: list[list[str]], text: str, kind: str) -> bytes:
    if kind == "jsonl":
        head = rows[0] if rows else []
        lines = [json.dumps(dict(zip(head, row, strict=False))) for row in rows[1:]]
        return "\n".join(lines).encode(errors="replace")
    if kind == "parquet":
        return _as_parquet(rows)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    content = (written.getvalue() + text).encode(errors="replace")
    return gzip.compress(content, mtime=0) if kind == "csv.gz" else content


def _as_parquet(rows: list[list[str]]) -> bytes:
    """Numbers as numbers where a column has nothing else, texts otherwise."""
    head = rows[0] if rows else []
    columns = []
    for place in range(len(head)):
        values: list[str | None] = [row[place] if place < len(row) else None for row in rows[1:]]
        try:
            columns.append(pa.array([float(value) if value else None for value in values]))
        except ValueError:
            columns.append(pa.array(values, pa.string()))
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, head), file)
    return file.getvalue()


def _edit_bytes(content: bytes, way: str, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    if way == "cut":
        return content[:place]
    if way in ("no utf-8", "nul"):
        return content[:place] + (b"\xff\xfe" if way == "no utf-8" else b"\x00") + content[place:]
    if way == "flipped" and place < len(content):
        return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    return content

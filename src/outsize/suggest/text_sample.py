"""A sample of text files: the delimiter, the header, and blocks spread over each file."""

from __future__ import annotations

import csv
import io
import re
import zlib
from pathlib import Path
from typing import Any

from outsize.data.encoding.sources import BLOCK_BYTES, delimiter_of, reason_not_read
from outsize.data.encoding.unreadable import ReadableStream
from outsize.errors import DataError, one_line
from outsize.suggest.sample import MAX_ROWS, Sample, thinned
from outsize.suggestions import few

_HEAD_BYTES, _BLOCK_BYTES, _NUM_BLOCKS = 1 << 20, 1 << 19, 32
_MAX_BYTES = _HEAD_BYTES + _BLOCK_BYTES * _NUM_BLOCKS
_DELIMITERS = (",", "\t", ";", "|", " ", "\x01")
_LINES_LOOKED_AT = 200
_LINE_END = re.compile("\r\n|\r|\n")
_MAX_BAD_SHARE = 0.2


def read_text_sample(pattern: str, files: list[Path], chosen: list[Path]) -> Sample:
    """Read a sample of text files of one form.

    Args:
        pattern: The files, as a run file names them.
        files: All of them.
        chosen: Those that are looked into.
    """
    if chosen[0].suffix in (".json", ".jsonl", ".ndjson"):
        raise DataError(f"{chosen[0]} is JSON: write its rows as CSV or Parquet")
    first_lines = _first_lines(chosen[0])[:_LINES_LOOKED_AT]
    if not first_lines:
        raise DataError(f"{chosen[0]} is empty: there is nothing to read in it")
    if re.fullmatch(r"sep=.", first_lines[0]):
        raise DataError(
            f"{chosen[0]} begins with {first_lines[0]!r}, which only Excel reads: delete that line"
        )
    delimiter = _find_delimiter(chosen[0], first_lines)
    rows = _parsed(first_lines, delimiter)
    has_header = _has_header(rows)
    if _parsed(first_lines[:1], delimiter)[0] != rows[0]:
        raise DataError(
            f"{chosen[0]}: a name in its header has a line break: write all names on the first line"
        )
    if has_header and not _is_utf8(_head_of(chosen[0]).partition(b"\n")[0]):
        raise DataError(
            f"{chosen[0]}: names in its header are not UTF-8: convert the file, such as with iconv "
            "-f latin1 -t utf-8"
        )
    has_breaks = any("\n" in value for row in rows for value in row)
    names = list(rows[0]) if has_header else [f"c{i + 1}" for i in range(len(rows[0]))]
    pieces, shares = [], []
    for path in chosen:
        if has_header and (other := _parsed(_first_lines(path)[:1], delimiter)[0]) != names:
            raise DataError(
                f"{path} has other columns than {chosen[0]}: {few(other)}; name files of one form"
            )
        text, share = _read_blocks(path, _MAX_BYTES // len(chosen), has_header, has_breaks)
        pieces.append(text)
        shares.append(share)
    share_read = sum(shares) / len(shares)
    table, num_bad = _parse(b"".join(pieces), names, delimiter, chosen[0])
    seen = table.num_rows + num_bad
    sizes = sum(path.stat().st_size for path in files) / sum(path.stat().st_size for path in chosen)
    is_whole = share_read >= 1.0 and len(chosen) == len(files) and table.num_rows <= MAX_ROWS
    sample = table.take(thinned(table.num_rows, MAX_ROWS))
    columns = {name: sample.column(place) for place, name in enumerate(names)}
    repeated = tuple(sorted({name for name in names if names.count(name) > 1 or not name.strip()}))
    reading: dict[str, Any] = {} if has_header else {"columns": names}
    if delimiter != delimiter_of(chosen[0]):
        reading["delimiter"] = delimiter
    notes = (
        []
        if has_header
        else [f"the first line is data, not a header: columns are c1 to c{len(names)}"]
    )
    if share_read < 1.0 and (chosen[0].suffix == ".gz" or has_breaks):
        what = "compressed text" if chosen[0].suffix == ".gz" else "text with line breaks in values"
        notes.append(f"only the beginning of {what} was looked at")
    return Sample(
        (pattern,),
        {name: column.combine_chunks() for name, column in columns.items() if name not in repeated},
        sample.num_rows,
        round(seen * sizes / share_read) if share_read < 1.0 else round(seen * sizes),
        is_whole,
        True,
        reading,
        tuple(notes),
        num_bad / max(1, seen),
        repeated,
    )  # fmt: skip


def _open(path: Path) -> Any:
    import gzip

    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _head_of(path: Path, size: int = _HEAD_BYTES) -> bytes:
    """The first bytes of a file, without a byte order mark."""
    try:
        with _open(path) as file:
            return bytes(file.read(size).removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {one_line(error, 200)}") from None


def _first_lines(path: Path) -> list[str]:
    """The whole lines at the beginning of a file that are not blank."""
    head = _head_of(path)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16: convert it, such as with iconv -f utf-16 -t utf-8")
    if head.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{path} is a zip archive or an Excel workbook: unpack it, or save its sheet as CSV"
        )
    if b"\0" in head:
        raise DataError(f"{path} holds NUL bytes: it is neither Parquet nor text in UTF-8")
    text = head.decode("utf-8", errors="replace")
    lines = _LINE_END.split(text)
    if len(head) >= _HEAD_BYTES and len(lines) > 1:
        lines.pop()  # it may be cut
    return [line for line in lines if line.strip()]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parsed(lines: list[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader((line + "\n" for line in lines), delimiter=delimiter))
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _find_delimiter(path: Path, lines: list[str]) -> str:
    """The delimiter that cuts most lines into as many values as the first."""
    usual = delimiter_of(path)
    best, most = usual, (0.0, 0)
    for delimiter in dict.fromkeys((usual, *_DELIMITERS)):
        widths = [len(row) for row in _parsed(lines, delimiter)]
        agreeing = sum(width == widths[0] for width in widths) / len(widths)
        if widths[0] > 1 and agreeing > 0.8 and (agreeing, widths[0]) > most:
            if delimiter == usual:
                return usual
            best, most = delimiter, (agreeing, widths[0])
    return best


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first line names columns: no column of numbers begins with a number there."""
    first, others = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if not others:
        return not all(_is_number(cell) for cell in first)
    named = numbers = repeats = 0
    for place, cell in enumerate(first):
        below = [row[place] for row in others if row[place] != ""]
        if not below:
            continue
        if sum(map(_is_number, below)) > 0.8 * len(below):
            named += cell != "" and not _is_number(cell)
            numbers += _is_number(cell)
        else:
            repeats += cell in below
    if named or numbers:
        return named > 0
    return repeats == 0 and "" not in first and len(set(first)) == len(first)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_blocks(path: Path, most: int, has_header: bool, has_breaks: bool) -> tuple[bytes, float]:
    """Whole lines spread over a file, without its header, and the share of it that they are.

    Values with line breaks need the beginning: a line in the middle may be within one.
    """
    size = path.stat().st_size
    if path.suffix == ".gz" or size <= most or has_breaks:
        return _read_beginning(path, most, has_header)
    num_blocks = max(2, most // _BLOCK_BYTES)
    block = most // num_blocks
    pieces, num_read = [], 0
    with path.open("rb") as file:
        for number in range(num_blocks):
            file.seek((size - block) * number // (num_blocks - 1))
            piece = file.read(block)
            if number == 0:
                piece = piece.removeprefix(b"\xef\xbb\xbf")
            if number or has_header:
                piece = piece.partition(b"\n")[2]
            piece = piece[: piece.rfind(b"\n") + 1]
            pieces.append(piece)
            num_read += len(piece)
    return b"".join(pieces), num_read / size


def _read_beginning(path: Path, most: int, has_header: bool) -> tuple[bytes, float]:
    text = _head_of(path, most)
    size, share = path.stat().st_size, 1.0
    if path.suffix != ".gz":
        share = 1.0 if size <= most else len(text) / size
    elif len(text) >= most - 3:
        unzip = zlib.compressobj(6, wbits=31)
        share = min(1.0, len(unzip.compress(text) + unzip.flush()) / size)
    if share < 1.0:
        text = text[: text.rfind(b"\n") + 1]
        while text.count(b'"') % 2:  # the last value goes on
            text = text[: text.rfind(b"\n", 0, text.rfind(b'"')) + 1]
    elif not text.endswith(b"\n"):
        text += b"\n"
    return (text.partition(b"\n")[2] if has_header else text), share


def _parse(text: bytes, names: list[str], delimiter: str, path: Path) -> tuple[Any, int]:
    """The rows of a text with as many values as there are names, and the number of others."""
    import pyarrow as pa
    import pyarrow.csv as pc

    places, num_bad, example = [str(place) for place in range(len(names))], 0, ""

    def skip(row: Any) -> str:
        nonlocal num_bad, example
        num_bad += 1
        example = example or f"{row.actual_columns} values, not {row.expected_columns}"
        return "skip"

    if not text.strip():
        return pa.table({place: pa.array([], pa.string()) for place in places}), 0
    try:
        table = pc.read_csv(
            pa.PythonFile(ReadableStream(io.BytesIO(text)), mode="r"),
            read_options=pc.ReadOptions(
                use_threads=False, column_names=places, block_size=BLOCK_BYTES
            ),
            parse_options=pc.ParseOptions(
                delimiter=delimiter, invalid_row_handler=skip, newlines_in_values=True
            ),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(places, pa.large_string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path} cannot be read as text columns: {reason_not_read(error)}"
        ) from None
    if num_bad > _MAX_BAD_SHARE * (table.num_rows + num_bad):
        raise DataError(
            f"{path}: {num_bad:,} of {table.num_rows + num_bad:,} rows have another number of "
            f"values than the first line ({example}, cut at {delimiter!r}): mend the file, such as "
            "by deleting lines before the names of the columns"
        )
    return table, num_bad

"""Small files of every reader, and ways to damage them."""

import gzip
import io

import pyarrow.csv as pc
import pyarrow.parquet as pq

from outsize.data import (
    AvazuConfig,
    CriteoConfig,
    InteractionsConfig,
    MovieLensConfig,
    TabularConfig,
)
from outsize.data.avazu import CATEGORICAL
from outsize.data.criteo import DENSE
from outsize.data.encoding.splits import HashSplit, TimeSplit

NUM_ROWS = 60
_LENIENT = {"max_bad_rows": 0.5}


def _lines(delimiter, header, row):
    rows = ([str(value) for value in row(i)] for i in range(NUM_ROWS))
    lines = [*([header] if header else []), *rows]
    return "".join(delimiter.join(line) + "\n" for line in lines).encode()


def _click(i):
    return i % 2, i * 1.5, f"c{i % 7}", f"a{i % 3}|b{i % 5}"


def _criteo(i):
    counts = ("" if (i + j) % 9 == 0 else i * j % 50 for j in range(13))
    return i % 2, *counts, *(f"{i * j * 7919 % 4096:08x}" for j in range(26))


def _avazu(i):
    hour = f"1410{21 + i * 9 // NUM_ROWS:02d}{i % 24:02d}"
    return i, i % 2, hour, *(f"v{i % (j + 2)}" for j in range(len(CATEGORICAL)))


def _rating(i):
    return i % 6, i % 11, 1 + i % 5, 1000 + i


def _pair(i):
    return f"u{i % 9}", f"i{i % 13}", 20 + i % 30, f"k{i % 3}|z", i


_CLICK = ["label", "price", "city", "tags"]
_PAIR = ["user_id", "item_id", "age", "kinds", "day"]
TEXT = {
    "clicks.csv": _lines(",", _CLICK, _click),
    "clicks.tsv": _lines("\t", _CLICK, _click),
    "criteo.txt": _lines("\t", None, _criteo),
    "avazu.csv": _lines(",", ["id", "click", "hour", *CATEGORICAL], _avazu),
    "ratings.dat": _lines("::", None, _rating),
    "ratings.csv": _lines(",", ["userId", "movieId", "rating", "timestamp"], _rating),
    "films.tsv": _lines("\t", ["user_id", "movie", "rating", "timestamp"], _rating),
    "pairs.csv": _lines(",", _PAIR, _pair),
}


def _parquet(name, delimiter, names=None):
    table = pc.read_csv(
        io.BytesIO(TEXT[name]),
        read_options=pc.ReadOptions(column_names=names),
        parse_options=pc.ParseOptions(delimiter=delimiter),
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, compression="none")
    return sink.getvalue()


COMPRESSED = {f"{name}.gz": gzip.compress(content) for name, content in TEXT.items()}
PARQUET = {
    "clicks.parquet": _parquet("clicks.csv", ","),
    "criteo.parquet": _parquet(
        "criteo.txt", "\t", ["label", *DENSE, *(f"C{i}" for i in range(1, 27))]
    ),
    "avazu.parquet": _parquet("avazu.csv", ","),
    "films.parquet": _parquet("films.tsv", "\t"),
    "pairs.parquet": _parquet("pairs.csv", ","),
}


def config_of(path):
    """The configuration that reads a file, known by its name."""
    kind, place = path.name.split(".")[0], str(path)
    if kind == "clicks":
        split = TimeSplit("price") if ".tsv" in path.name else HashSplit()
        return TabularConfig(
            (place,), "label", standardize=("price",), categorical=("city",),
            multi_valued=("tags",), split=split, **_LENIENT,
        )  # fmt: skip
    if kind == "criteo":
        return CriteoConfig(path=(place,), **_LENIENT)
    if kind == "avazu":
        return AvazuConfig(path=(place,), **_LENIENT)
    if kind == "pairs":
        return InteractionsConfig(
            (place,), query_features=("age",), numeric=("age",), item_features=("kinds",),
            multi_valued=("kinds",), split=HashSplit(validation=0.2, test=0.2), **_LENIENT,
        )  # fmt: skip
    return MovieLensConfig(path=place, **_LENIENT)


def truncated(content, draw):
    return content[: draw.integers(len(content))]


def flipped(content, draw):
    changed = bytearray(content)
    for _ in range(draw.integers(1, 6)):
        changed[draw.integers(len(changed))] ^= 1 << draw.integers(8)
    return bytes(changed)


def wrong_head(content, draw):
    changed = bytearray(content)
    for _ in range(draw.integers(1, 4)):
        changed[draw.integers(min(16, len(changed)))] = draw.integers(256)
    return bytes(changed)


def wrong_tail(content, draw):
    changed = bytearray(content)
    for _ in range(draw.integers(1, 6)):
        changed[-1 - draw.integers(min(300, len(changed)))] = draw.integers(256)
    return bytes(changed)


def _inserted(content, draw, piece):
    place = draw.integers(len(content))
    return content[:place] + piece + content[place:]


def with_nul(content, draw):
    return _inserted(content, draw, b"\0" * draw.integers(1, 5))


def with_newline_in_quotes(content, draw):
    return _inserted(content, draw, b'"x\ny"')


def with_a_quote(content, draw):
    return _inserted(content, draw, b'"')


def noise(content, draw):
    return draw.bytes(draw.integers(1, 300))


def blank_lines(content, draw):
    return b"\n" * draw.integers(1, 5)


def wrong_delimiter(content, draw):
    return content.replace(b",", b";").replace(b"\t", b" ").replace(b"::", b";")


def as_utf_16(content, draw):
    return content.decode().encode("utf-16")


def old_newlines(content, draw):
    return content.replace(b"\n", b"\r")


def endless_line(content, draw):
    return content + b"x" * (5 << 20) + b"\n"


def _by_column(content, change):
    delimiter = next(d for d in (b"\t", b",", b"::") if d in content)
    rows = [line.split(delimiter) for line in content.splitlines()]
    return b"".join(delimiter.join(change(row)) + b"\n" for row in rows)


def column_missing(content, draw):
    place = draw.integers(4)
    return _by_column(content, lambda row: row[:place] + row[place + 1 :])


def column_doubled(content, draw):
    place = draw.integers(4)
    return _by_column(content, lambda row: row[: place + 1] + row[place:])


def columns_reversed(content, draw=None):
    return _by_column(content, lambda row: row[::-1])


OF_BYTES = (truncated, flipped, wrong_head, wrong_tail, noise)
OF_TEXT = (
    *OF_BYTES, with_nul, with_newline_in_quotes, with_a_quote, blank_lines, wrong_delimiter,
    as_utf_16, old_newlines, endless_line, column_missing, column_doubled, columns_reversed,
)  # fmt: skip

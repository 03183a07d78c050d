"""Columns of every type a Parquet file may hold: read as what they say, or refused in one line."""

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outsize.data import InteractionsConfig, TabularConfig
from outsize.data.encoding.splits import ColumnSplit
from outsize.errors import OutsizeError

NUM_ROWS = 12
BY_PART = ColumnSplit("part", ("t",), ("v",), ("x",))


def column(values, kind=None):
    return pa.array([values[i % len(values)] for i in range(NUM_ROWS)], kind)


def extension(kind, values, storage):
    return pa.ExtensionArray.from_storage(kind, column(values, storage))


def text_that_is_no_utf_8():
    offsets = np.arange(0, NUM_ROWS + 1, dtype=np.int32)
    data = pa.py_buffer(b"\xff\xfe" * (NUM_ROWS // 2))
    return pa.StringArray.from_buffers(NUM_ROWS, pa.py_buffer(offsets), data)


NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
# Type → the column, the first numbers it gives, and the first texts; None where it is refused.
TYPES = {
    "list": (column([["a", "b"], None]), None, ["a|b", None]),
    "list with nulls": (column([["a", None, "b"], [None]]), None, ["a|b", None]),
    "list of numbers": (column([[1, 2], []]), None, ["1|2", None]),
    "large list": (column([["a"], None], pa.large_list(pa.string())), None, ["a", None]),
    "fixed-size list": (column([[1, 2], None], pa.list_(pa.int32(), 2)), None, None),
    "list of lists": (column([[[1]], None]), None, None),
    "list of structs": (column([[{"a": 1}], None]), None, None),
    "struct": (column([{"a": 1}, None]), None, None),
    "map": (column([[("a", 1)], None], pa.map_(pa.string(), pa.int32())), None, None),
    "decimal128": (column([Decimal("1.50"), None], pa.decimal128(9, 2)), [1.5, 0], ["1.50", None]),
    "decimal256": (column([Decimal("1.50"), None], pa.decimal256(50, 2)), [1.5, 0], ["1.50", None]),
    "dictionary": (column(["7", None]).dictionary_encode(), [7, 0], ["7", None]),
    "dictionary of numbers": (column([7, None]).dictionary_encode(), [7, 0], ["7", None]),
    "timestamp": (
        column([datetime(1970, 1, 2), None], pa.timestamp("ms")),
        [86_400_000, 0],
        ["1970-01-02 00:00:00.000", None],
    ),
    "unknown time zone": (column([NOON], pa.timestamp("ms", "Nowhere")), "any", None),
    "date32": (column([date(1970, 1, 3), None]), [2, 0], ["1970-01-03", None]),
    "date64": (column([date(1970, 1, 3), None], pa.date64()), [2, 0], ["1970-01-03", None]),
    "duration": (column([timedelta(seconds=3)], pa.duration("s")), [3, 3], ["3", "3"]),
    "time32": (column([time(0, 1), None], pa.time32("ms")), [60_000, 0], ["00:01:00.000", None]),
    "time64": (column([time(0, 1)], pa.time64("us")), [6e7, 6e7], ["00:01:00.000000"] * 2),
    "binary": (column([b"7", None]), [7, 0], ["7", None]),
    "large binary": (column([b"7", None], pa.large_binary()), [7, 0], ["7", None]),
    "fixed-size binary": (column([b"12", None], pa.binary(2)), [12, 0], ["12", None]),
    "large text": (column(["7", None], pa.large_string()), [7, 0], ["7", None]),
    "text view": (column(["7", None], pa.string_view()), [7, 0], ["7", None]),
    "binary view": (column([b"7", None], pa.binary_view()), [7, 0], ["7", None]),
    "no UTF-8": (text_that_is_no_utf_8(), None, None),
    "binary that is not UTF-8": (column([b"\xff", b"\xfe"]), None, None),
    "null": (pa.nulls(NUM_ROWS), [0, 0], [None, None]),
    "float16": (column([1.5, None], pa.float16()), [1.5, 0], ["1.5", None]),
    "uint64": (
        column([2**64 - 1, 1], pa.uint64()),
        [2.0**64, 1],
        ["18446744073709551615", "1"],
    ),
    "bool": (column([True, None]), [1, 0], ["true", None]),
    "infinity": (column([math.inf]), None, ["inf", "inf"]),
    "extension": (extension(pa.bool8(), [0, 1], pa.int8()), [0, 1], None),
    "JSON": (extension(pa.json_(), ['{"a": 1}'], pa.string()), None, None),
    "UUID": (extension(pa.uuid(), [b"0123456789abcdef"], pa.binary(16)), None, None),
}


@pytest.fixture(params=TYPES)
def odd(request, tmp_path):
    """A Parquet file with a column of an odd type, and what that column says."""
    values, numbers, texts = TYPES[request.param]
    columns = {
        "label": column([0, 1]),
        "user": column(["a", "b", "c"]),
        "item": column(list("defgh")),
        "odd": values,
        "part": ["t"] * 8 + ["v"] * 2 + ["x"] * 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "odd.parquet")
    return str(tmp_path / "odd.parquet"), numbers, texts


def build_or_refuse(config, *words):
    """The data, or nothing where it was refused in one line with any of some words."""
    try:
        return config.build()
    except OutsizeError as error:
        said = str(error).replace(config.path[0], "odd.parquet")
        assert any(word in said for word in words)
        assert "\n" not in said
        assert len(said) < 400
        return None


def test_a_column_of_any_type_is_read_as_numbers_or_refused(odd):
    path, numbers, _ = odd
    config = TabularConfig(
        (path,), "label", dense=("odd",), categorical=("user",), split=BY_PART, shuffle=False
    )
    data = build_or_refuse(config, "'odd'")
    if numbers is None or data is None:
        assert (numbers, data) == (None, None)
    elif numbers != "any":
        found = data.examples("train", 0, 2).dense[:, 0]
        assert found.tolist() == np.array(numbers, np.float32).tolist()


def test_a_column_of_any_type_is_read_as_text_or_refused(odd):
    path, _, texts = odd
    config = TabularConfig((path,), "label", categorical=("odd",), split=BY_PART, shuffle=False)
    data = build_or_refuse(config, "'odd'")
    if texts is None or data is None:
        assert (texts, data) == (None, None)
    else:
        values = data.values("odd")
        assert [values[i] for i in data.examples("train", 0, 2).ids["odd"]] == texts


@pytest.mark.parametrize(
    "roles",
    [
        {"label": "odd", "categorical": ("user",)},
        {"label": "odd", "categorical": ("user",), "positive_values": ("7",)},
        {"label": "label", "categorical": ("user",), "multi_valued": ("odd",)},
    ],
    ids=["label", "label as text", "bags"],
)
def test_a_column_of_any_type_has_any_role_or_is_refused(odd, roles):
    data = build_or_refuse(TabularConfig((odd[0],), split=BY_PART, **roles), "'odd'", "label")
    if data is not None:
        assert data.examples("train", 0, 1).num_examples == 1


@pytest.mark.parametrize(
    "roles",
    [
        {"query": "odd", "item": "item"},
        {"query": "user", "item": "item", "query_features": ("odd",)},
        {"query": "user", "item": "item", "query_features": ("odd",), "numeric": ("odd",)},
        {"query": "user", "item": "item", "item_features": ("odd",), "multi_valued": ("odd",)},
        {"query": "user", "item": "item", "positive": "odd"},
    ],
    ids=["query", "feature", "numeric feature", "bags", "positive"],
)
def test_pairs_with_a_column_of_any_type_are_read_or_refused(odd, roles):
    config = InteractionsConfig((odd[0],), split=BY_PART, max_bad_rows=0.6, **roles)
    data = build_or_refuse(config, "'odd'", "label", "there is no row", "no pair")
    if data is not None:
        assert data.num_pairs("train") > 0


def test_a_column_whose_pages_are_damaged_is_named(tmp_path):
    path = tmp_path / "damaged.parquet"
    columns = {"label": column([0, 1]), "user": column(["a", "b"]), "part": column(["t", "v", "x"])}
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(path.read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[chunk.data_page_offset : end] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)

    config = TabularConfig((str(path),), "label", categorical=("user",), split=BY_PART)
    with pytest.raises(OutsizeError, match=r"not a readable Parquet file \(column 'user'\)"):
        config.build()

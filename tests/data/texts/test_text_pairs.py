"""Pairs of texts in files: every form, splits, and what is left out or refused."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.data import TextPairsConfig
from outsize.data.encoding.splits import ColumnSplit
from outsize.data.texts.text_column import distinct_texts
from outsize.errors import ConfigError, DataError

ROWS = [
    {"query": f"question {n}", "item": f'answer "{n}", with a comma', "part": part, "id": f"a{n}"}
    for n, part in enumerate(["train"] * 6 + ["dev"] * 2 + ["test"] * 2)
]
SPLIT = ColumnSplit("part", validation=("dev",))


def write(path, rows=ROWS):
    kind = path.with_suffix("") if path.suffix == ".gz" else path
    if kind.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    if kind.suffix == ".jsonl":
        text = "\n".join(json.dumps(row) for row in rows)
    else:
        quoted = [[str(v).replace('"', '""') for v in row.values()] for row in rows]
        lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row) for row in quoted)]
        text = "\n".join(lines)
    data = (text + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path, **settings):
    return TextPairsConfig((str(path),), **{"item_id": "id", "split": SPLIT, **settings}).read()


def as_lists(pairs):
    """Split → (query, item id) of each pair."""
    return {
        split: [
            (pairs.queries.texts[int(q)].as_py(), pairs.items.ids[int(i)].as_py())
            for q, i in zip(*own, strict=True)
        ]
        for split, own in pairs.pairs.items()
    }


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.jsonl", "a.csv", "a.jsonl.gz", "a.csv.gz"], ids=str
)
def test_every_form_of_file_holds_the_same_pairs(tmp_path, name):
    pairs = read(write(tmp_path / name))
    found = as_lists(pairs)
    assert found["train"] == [(f"question {n}", f"a{n}") for n in range(6)]
    assert found["validation"] == [("question 6", "a6"), ("question 7", "a7")]
    assert found["test"] == [("question 8", "a8"), ("question 9", "a9")]
    assert pairs.items.texts[3].as_py() == 'answer "3", with a comma'
    assert not pairs.is_graded
    assert pairs.notes == ()


def test_equal_texts_without_ids_are_one(tmp_path):
    rows = [*ROWS, {**ROWS[0], "item": ROWS[1]["item"]}, ROWS[0]]
    pairs = read(write(tmp_path / "a.jsonl", rows), item_id="")
    assert len(pairs.items) == len(pairs.queries) == 10
    assert pairs.items.ids.to_pylist() == [str(n) for n in range(10)]
    asked, wanted = pairs.pairs["train"]
    assert [(q, i) for q, i in zip(asked.tolist(), wanted.tolist(), strict=True) if q == 0] == [
        (0, 0), (0, 1)
    ]  # fmt: skip


def test_a_hash_keeps_equal_queries_in_one_split(tmp_path):
    rows = [{"query": f"q{n % 50}", "item": f"i{n}", "id": str(n)} for n in range(400)]
    config = TextPairsConfig((str(write(tmp_path / "a.jsonl", rows)),), item_id="id")
    pairs = config.read()
    queries = [set(own[0].tolist()) for own in pairs.pairs.values()]
    assert all(queries)
    assert sum(map(len, queries)) == 50
    assert as_lists(config.read()) == as_lists(pairs)


def test_without_a_validation_set_training_queries_are_taken(tmp_path):
    rows = [{**row, "part": "train" if n < 90 else "test"}
            for n, row in enumerate({"query": f"q {n}", "item": f"i {n}", "id": str(n)}
                                    for n in range(100))]  # fmt: skip
    pairs = read(write(tmp_path / "a.jsonl", rows), validation=0.2)
    sizes = {split: len(own[0]) for split, own in pairs.pairs.items()}
    assert sizes["test"] == 10
    assert sizes["train"] + sizes["validation"] == 90
    assert 5 < sizes["validation"] < 35


def test_without_a_test_set_the_validation_set_is_used_for_both(tmp_path):
    pairs = read(write(tmp_path / "a.jsonl", ROWS[:8]))
    assert as_lists(pairs)["test"] == as_lists(pairs)["validation"]
    assert pairs.notes == ("there is no test set: the validation set is used for both",)


def test_grades_stay_with_their_pairs(tmp_path):
    rows = [{**row, "grade": n % 3 if n else "2.0"} for n, row in enumerate(ROWS)]
    pairs = read(write(tmp_path / "a.jsonl", rows), grade="grade")
    assert pairs.is_graded
    assert as_lists(pairs)["train"] == [(f"question {n}", f"a{n}") for n in (0, 1, 2, 4, 5)]
    assert pairs.grades["train"].tolist() == [2, 1, 2, 1, 2]
    assert "3 of 10 queries have no relevant item: left out" in pairs.notes  # 3, 6 and 9
    rows[1]["grade"] = "good"
    path = write(tmp_path / "b.jsonl", rows)
    flaw = r"1 with a grade that is not a whole number \(first: .*b.jsonl line 2: good\)"
    with pytest.raises(DataError, match=flaw):
        read(path, grade="grade")
    rows[1]["grade"] = " 2 "
    assert read(write(tmp_path / "c.jsonl", rows), grade="grade").grades["train"][1] == 2


def test_of_a_repeated_pair_the_highest_grade_counts(tmp_path):
    rows = [{**row, "grade": 1} for row in ROWS]
    rows += [{**rows[8], "grade": grade} for grade in (3, 0, 2)]
    pairs = read(write(tmp_path / "a.jsonl", rows), grade="grade")
    assert as_lists(pairs)["test"] == [("question 8", "a8"), ("question 9", "a9")]
    assert pairs.grades["test"].tolist() == [3, 1]


def test_rows_of_a_parquet_file_are_named_and_lists_refused(tmp_path):
    path = write(tmp_path / "a.parquet", [*ROWS[:3], {**ROWS[3], "item": ""}, *ROWS[4:]])
    with pytest.raises(DataError, match=r"an empty item \(first: .*a.parquet row 4\)"):
        read(path)
    write(path, [{**row, "item": [row["item"]]} for row in ROWS])
    with pytest.raises(DataError, match=r"a.parquet: column 'item' holds values of type list<.*"):
        read(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": "  "}, "an empty query"),
        ({"item": ""}, "an empty item"),
        ({"item": None}, "an empty item"),
        ({"id": ""}, "an empty item id"),
    ],
)
def test_empty_texts_are_counted_and_limited(tmp_path, change, words):
    rows = [*ROWS[:3], {**ROWS[3], **change}, *ROWS[4:]]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=f"1 with {words}.*a.jsonl line 4.*max_bad_rows"):
        read(path)
    pairs = read(path, max_bad_rows=0.2)
    assert len(pairs.items) == 9
    assert words in pairs.notes[0]


def test_lines_that_are_no_json_are_named(tmp_path):
    path = write(tmp_path / "a.jsonl")
    lines = path.read_bytes().split(b"\n")
    for bad, kind in (
        (b'{"query": "a', "no JSON"), (b"[1]", "no JSON object"), (b'{"a": "\xff"}', "not UTF-8")
    ):  # fmt: skip
        path.write_bytes(b"\n".join([*lines[:2], bad, *lines[2:]]))
        with pytest.raises(DataError, match=rf"{kind} \(first: .*a.jsonl line 3\)"):
            read(path)
        assert len(read(path, max_bad_rows=0.2).items) == 10


def test_a_list_of_objects_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "a.json"
    for text in (json.dumps(ROWS), json.dumps(ROWS, indent=1)):
        path.write_text(text)
        with pytest.raises(DataError, match=r"a.json holds a list: write one object per line"):
            read(path, max_bad_rows=1.0)


def test_a_wrong_encoding_is_named(tmp_path):
    path = write(tmp_path / "a.csv")
    path.write_bytes(path.read_bytes().replace(b"question 2", "Fräge 2".encode("latin-1")))
    with pytest.raises(DataError, match=r"1 with text that is not UTF-8.*line 4"):
        read(path)


def test_two_texts_with_one_id_are_refused(tmp_path):
    rows = [*ROWS, {**ROWS[1], "query": "another", "item": "another text"}]
    with pytest.raises(
        DataError, match=r"a.jsonl: two different texts have the item id 'a1': give"
    ):
        read(write(tmp_path / "a.jsonl", rows))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_missing_column_is_named_with_the_nearest(tmp_path, name):
    path = write(tmp_path / name)
    with pytest.raises(DataError, match=r"has no (column|member) 'queri'; it has: query"):
        read(path, query="queri")


def test_a_split_without_training_pairs_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"there is no training pair"):
        read(path, split=ColumnSplit("part", train=("none",)))
    with pytest.raises(DataError, match=r"no row has a value of the split's column"):
        read(path, split=ColumnSplit("part", ("x",), ("y",), ("z",)))


def test_damaged_and_missing_files_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl.gz")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"a.jsonl.gz cannot be read"):
        read(path)
    with pytest.raises(DataError, match=r"no such file"):
        read(tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match=r"is both query and item"):
        TextPairsConfig(("a",), query="x", item="x")
    with pytest.raises(ConfigError, match=r"validation must be between 0 and 1"):
        TextPairsConfig(("a",), validation=1.0)
    with pytest.raises(ConfigError, match=r"tokenized by the model"):
        TextPairsConfig(("a",)).build()


@given(st.lists(st.text(max_size=3), max_size=20))
def test_distinct_texts_keep_their_order_and_their_rows(values):
    texts, rows = distinct_texts(None, pa.array(values, pa.large_string()), "item", "a")
    assert texts.texts.to_pylist() == list(dict.fromkeys(values))
    assert [texts.texts[int(row)].as_py() for row in rows] == values

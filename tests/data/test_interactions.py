import numpy as np
import pytest
import torch

from outsize.data import InteractionsConfig
from outsize.data.encoding.splits import ColumnSplit, LastOfEachSplit, TimeSplit
from outsize.data.interactions import standardized
from outsize.errors import ConfigError, DataError
from outsize.training.strict_toml import decode

TABLE = """user,film,genres,stars,day,part,age
ann,Alien,horror|space,5,1,0,30
bob,Alien,horror,4,2,0,
ann,Brazil,,4,3,0,31
bob,Cube,maths,2,4,0,
cid,Brazil,dystopia,5,5,1,40
ann,Cube,maths|space,5,6,1,30
ann,Dune,space,5,7,0,30
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


def read(table, **changes):
    settings = {"query": "user", "item": "film", "validation": 0.3,
                "split": ColumnSplit("part", ("0",), (), ("1",)), **changes}  # fmt: skip
    return InteractionsConfig(path=(table,), **settings).build()


def pairs(data, split):
    batches = list(data.batches(split, 3))
    return sorted(
        (int(q), int(i)) for b in batches for q, i in zip(b.query_rows, b.items, strict=True)
    )


def test_ids_are_numbered_by_first_appearance(table):
    data = read(table)
    assert data.queries.num_rows == 3
    assert data.items.num_rows == 4
    assert pairs(data, "test") == [(0, 2), (2, 1)]  # ann took Cube, cid took Brazil
    held_out = pairs(data, "validation")
    assert held_out  # a share of the training pairs
    assert sorted(held_out + pairs(data, "train")) == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2)]


def test_only_rows_that_count_make_pairs_and_ids(table):
    data = read(table, positive="stars", at_least=4.0)
    assert sorted(pairs(data, "train") + pairs(data, "validation")) == [
        (0, 0), (0, 1), (0, 3), (1, 0),
    ]  # fmt: skip


def test_features_are_those_of_the_first_row(table):
    data = read(table, query_features=("age",), item_features=("genres",), multi_valued=("genres",))
    assert data.queries.features["age"].tolist() == [1, 0, 2]  # bob's is unknown
    assert data.vocabularies == {"user": 3, "age": 3, "film": 4, "genres": 4}
    # Alien: horror, space; Brazil: none; Cube: maths; Dune: space
    assert data.items.features["genres"].tolist() == [[1, 2], [-1, -1], [3, -1], [2, -1]]
    by_name = {feature.name: feature for feature in data.features}
    assert (by_name["genres"].pooling, by_name["genres"].padding_id) == ("mean", -1)
    batch = next(data.batches("test", 8))
    assert batch.queries["age"].tolist() == [2, 1]


def test_numbers_are_standardized_over_all_queries_or_items(table):
    data = read(table, query_features=("age",), item_features=("day",), numeric=("age", "day"))
    assert data.vocabularies == {"user": 3, "film": 4}
    assert [feature.name for feature in data.features] == ["user", "film"]
    # ann is 30, bob's age is missing, cid is 40: the mean is 35, the deviation 5.
    assert data.queries.features["age"].tolist() == [-1.0, 0.0, 1.0]
    days = torch.tensor([1.0, 3.0, 4.0, 7.0])
    expected = (days - days.mean()) / days.std(correction=0)
    torch.testing.assert_close(data.items.features["day"], expected)
    assert next(data.batches("test", 8)).queries["age"].tolist() == [1.0, -1.0]
    assert data.count_ids().keys() == {"user", "film"}
    assert data.fingerprint != read(table, query_features=("age",), numeric=("age",)).fingerprint


def test_numbers_that_are_all_alike_or_missing_are_zeros():
    assert standardized(np.array([3.0, np.nan, 3.0])).tolist() == [0.0, 0.0, 0.0]
    assert standardized(np.array([np.nan, np.nan])).tolist() == [0.0, 0.0]


def test_the_first_values_of_a_bag_are_kept(table):
    data = read(table, item_features=("genres",), multi_valued=("genres",), max_length=1)
    assert data.items.features["genres"].tolist() == [[1], [-1], [2], [3]]


def test_cold_queries_are_kept_and_not_evaluated(table):
    data = read(table)
    assert data.num_cold_queries >= 1  # cid has a test pair only
    assert data.relevant("test").counts().tolist() == [1, 0, 0]


def test_the_last_of_each_query_are_held_out(table):
    data = read(table, split=LastOfEachSplit("user", "day"))
    assert pairs(data, "test") == [(0, 3), (1, 2), (2, 1)]
    assert pairs(data, "validation") == [(0, 2), (1, 0)]


def test_the_latest_pairs_are_held_out(table):
    data = read(table, split=TimeSplit("day", validation=0.3, test=0.15))
    assert pairs(data, "test") == [(0, 3)]
    assert pairs(data, "validation") == [(0, 2), (2, 1)]


def test_one_held_out_set_may_serve_both_purposes(table):
    data = read(table, split=LastOfEachSplit("user", "day", "validation"))
    assert pairs(data, "test") == pairs(data, "validation")
    assert data.relevant("test").counts().tolist() == data.relevant("validation").counts().tolist()
    assert data.relevant("test").counts()[0] == 2


def test_a_run_file_names_the_split(table):
    tree = {"path": [table], "query": "user", "item": "film",
            "split": {"kind": "last-of-each", "group": "user", "order": "day"}}  # fmt: skip
    assert decode(InteractionsConfig, tree, "test").split == LastOfEachSplit("user", "day")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"item": "movie"}, DataError, "has no column 'movie'; it has: user, film"),
        ({"positive": "stars", "at_least": 9.0}, DataError, "there is no row with stars >= 9"),
        ({"split": ColumnSplit("part", ("0",), (), ("7",))}, DataError, "no pair to test on"),
        ({"split": LastOfEachSplit("user", "genres")}, DataError, "that is not a number"),
        ({"at_least": 4.0}, ConfigError, "name it as positive"),
        ({"multi_valued": ("genres",)}, ConfigError, "which is neither in query_features"),
        ({"numeric": ("age",)}, ConfigError, "numeric names 'age', which is neither in query_fea"),
        (
            {"item_features": ("genres",), "multi_valued": ("genres",), "numeric": ("genres",)},
            ConfigError,
            "column 'genres' is used twice",
        ),
        ({"item_features": ("genres",), "numeric": ("genres",)}, DataError, "numeric value"),
        ({"validation": 1.5}, ConfigError, "validation must be between 0 and 1"),
        ({"query_features": ("film",)}, ConfigError, "column 'film' is used twice"),
        ({"query": "age"}, DataError, "2 with no value of 'age'"),
    ],
)
def test_a_mistake_is_said_in_one_line(table, changes, kind, words):
    with pytest.raises(kind, match=words) as caught:
        read(table, **changes)
    assert "\n" not in str(caught.value)


def test_parquet_and_text_give_the_same_data(table, tmp_path):
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    path = tmp_path / "table.parquet"
    pq.write_table(pc.read_csv(table), path)
    assert read(str(path)).fingerprint == read(table).fingerprint
    assert read(table, positive="stars", at_least=4.0).fingerprint != read(table).fingerprint


def test_amazon_book_has_the_pairs_its_source_has(shared_data):
    path = str(shared_data / "ctr" / "amazon_book_kgat.parquet")
    config = InteractionsConfig(path=(path,), split=ColumnSplit("split", ("0",), (), ("1",)))
    data = config.build()
    assert (data.queries.num_rows, data.items.num_rows) == (70_679, 24_915)
    assert data.num_pairs("train") + data.num_pairs("validation") == 652_514
    assert data.num_pairs("test") == 193_920
    assert int(data.item_counts.sum()) == data.num_pairs("train")

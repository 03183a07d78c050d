"""Settings that cannot work are refused in one line, and extreme ones work."""

import math

import numpy as np
import pytest

from outsize.data import CriteoConfig, InteractionsConfig, TabularConfig
from outsize.data.encoding import VocabularyConfig
from outsize.data.encoding.splits import ColumnSplit, LastOfEachSplit, TimeSplit
from outsize.errors import ConfigError, DataError

ROWS = "".join(f"{i % 2},{i},c{i % 7},a|b{i % 3}\n" for i in range(200))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("label,price,city,tags\n" + ROWS)
    return str(path)


def clicks(path, label="label", **changes):
    return TabularConfig((path,), label, **{"categorical": ("city",), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": ""}, "label must not be empty"),
        ({"categorical": ("",)}, "categorical must not be empty"),
        ({"dense": ("",)}, "dense must not be empty"),
        ({"positive_from": math.nan}, "positive_from must be a finite number, but got nan"),
        ({"positive_from": math.inf}, "positive_from must be a finite number, but got inf"),
        ({"subsample": 10**30}, "subsample must be <= 2147483647"),
        ({"delimiter": "\n"}, "delimiter must be one character other than a line end"),
        ({"delimiter": '"'}, "delimiter must be one character other than a line end"),
        ({"cache": "a\0b"}, "cache must be the name of a folder"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(path, changes, message):
    with pytest.raises(ConfigError, match=message):
        clicks(path, **changes)


@pytest.mark.parametrize(
    "split",
    [
        lambda: TimeSplit(""),
        lambda: ColumnSplit(""),
        lambda: LastOfEachSplit("", "day"),
        lambda: LastOfEachSplit("user", ""),
    ],
)
def test_a_split_by_a_column_without_a_name_is_refused(split):
    with pytest.raises(ConfigError, match="split needs the name of a column"):
        split()


@pytest.mark.parametrize("bound", ["validation_from", "test_from"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_split_at_no_time_is_refused(bound, value):
    bounds = {"validation_from": 1.0, "test_from": 2.0, bound: value}
    with pytest.raises(ConfigError, match=f"{bound} must be a finite number"):
        TimeSplit("day", **bounds)


def test_a_modulus_beyond_all_hexadecimal_values_is_refused():
    with pytest.raises(ConfigError, match="modulus must be between 1 and 2\\*\\*32"):
        CriteoConfig(modulus=(2**70,))


def test_bags_of_pairs_need_a_separator(path):
    with pytest.raises(ConfigError, match="need a separator"):
        InteractionsConfig(
            (path,), "city", "price", item_features=("tags",), multi_valued=("tags",), separator=""
        )


def test_the_rule_that_no_row_meets_is_named_also_when_it_is_0(path):
    with pytest.raises(DataError, match="there is no row with price >= 1000"):
        InteractionsConfig((path,), "city", "tags", positive="price", at_least=1000.0).build()
    negative = path.replace("clicks", "negative")
    with open(negative, "w") as file:
        file.write("price,city,tags\n-1,a,b\n")
    with pytest.raises(DataError, match="there is no row with price >= 0"):
        InteractionsConfig((negative,), "city", "tags", positive="price", at_least=0.0).build()


def test_a_path_that_no_file_can_have_is_refused(path):
    with pytest.raises(DataError, match="no such file"):
        clicks("x" * 5000).build()


def test_a_column_with_an_endless_name_becomes_a_feature(tmp_path):
    names = ["x" * 300, "x" * 299 + "y"]
    path = tmp_path / "wide.csv"
    path.write_text(f"label,{names[0]},{names[1]}\n" + "1,a,b\n0,b,a\n" * 50)
    data = clicks(str(path), categorical=tuple(names)).build()
    assert len(set(data.vocabularies)) == 2
    assert max(map(len, data.vocabularies)) <= 200
    assert data.values(next(iter(data.vocabularies))) == [None, "a", "b"] or data.values(
        next(iter(data.vocabularies))
    ) == [None, "b", "a"]


def test_ids_of_64_bits_are_a_copy_that_can_be_written(path):
    vocabulary = VocabularyConfig(hashed=("city",), num_buckets=2**40)
    data = clicks(path, vocabulary=vocabulary, shuffle=False).build()
    ids = data.examples("train", 0, 5).ids["city"]
    before = ids.clone()
    ids += 1
    assert np.array_equal(data.examples("train", 0, 5).ids["city"], before)

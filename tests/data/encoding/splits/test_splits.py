import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.splits import (
    ColumnSplit,
    HashSplit,
    LastDaySplit,
    LastOfEachSplit,
    TimeSplit,
)
from outsize.errors import ConfigError


def assign(config, chunks):
    """The splits of rows that come in chunks: (number of the file, column → values)."""
    rows, first = [], 0
    for file, columns in chunks:
        size = len(next(iter(columns.values())))
        numbers, texts = {}, {}
        for name, values in columns.items():
            if any(isinstance(value, str) for value in values):
                texts[name] = to_text(pa.array(values, pa.large_string()))[0]
            else:
                numbers[name] = np.array(values, np.float64)
        rows.append(Rows(file, first, np.zeros(size, np.uint8), numbers, texts, 0))
        first += size
    splitter = config.build()
    for part in rows:
        splitter.observe(part)
    splitter.finish()
    return [int(split) for part in rows for split in splitter.assign(part)]


def test_a_hash_splits_rows_in_the_wanted_shares():
    splits = assign(HashSplit(validation=0.2, test=0.1), [(0, {"x": range(20_000)})])
    shares = np.bincount(splits) / len(splits)
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.01)


def test_a_hash_of_a_column_keeps_its_values_together():
    users = [f"u{i % 50}" for i in range(1000)]
    splits = assign(HashSplit("user", 0.3, 0.3), [(0, {"user": users})])
    assert len(set(zip(users, splits, strict=True))) == 50
    assert set(splits) == {0, 1, 2}
    assert splits != assign(HashSplit("user", 0.3, 0.3, seed=1), [(0, {"user": users})])


def test_a_column_says_the_split_and_other_values_are_left_out():
    config = ColumnSplit("part", train=("0", "a"), validation=("1",), test=("2",))
    assert assign(config, [(0, {"part": ["0", "1", "2", "a", "x"]})]) == [0, 1, 2, 0, -1]


def test_times_are_cut_at_the_values_given():
    config = TimeSplit("year", validation_from=2007, test_from=2009)
    assert assign(config, [(0, {"year": [2006, 2007, 2008, 2009, 1999, np.nan]})]) == [
        0, 1, 1, 2, 0, -1,
    ]  # fmt: skip


def test_what_is_held_out_is_halved_in_order_across_chunks():
    config = TimeSplit("year", validation_from=2007)
    chunks = [(0, {"year": [2008, 2000, 2007]}), (0, {"year": [2010, 2001, 2011, 2008]})]
    assert assign(config, chunks) == [1, 0, 1, 1, 0, 2, 2]


def test_what_is_held_out_is_halved_by_hash():
    years = [2000] * 100 + [2007] * 1000
    splits = np.array(assign(TimeSplit("year", 2007, halves="hash"), [(0, {"year": years})]))
    assert (splits[:100] == 0).all()
    assert np.mean(splits[100:] == 1) == pytest.approx(0.5, abs=0.05)
    assert set(splits[100:].tolist()) == {1, 2}


@given(st.permutations(range(40)))
def test_shares_of_time_are_cut_by_rank(times):
    splits = assign(TimeSplit("t", validation=0.25, test=0.1), [(0, {"t": times})])
    assert splits == [0 if t < 26 else 1 if t < 36 else 2 for t in times]


def test_rows_of_one_time_stay_together():
    times = [1] * 40 + [2] * 35 + [3] * 25
    splits = assign(TimeSplit("t", validation=0.3, test=0.3), [(0, {"t": times})])
    assert splits == [0] * 40 + [1] * 35 + [2] * 25


def test_negative_times_come_before_positive_ones():
    splits = assign(TimeSplit("t", validation=0.25, test=0.25), [(0, {"t": [3, -5, 0.5, -1]})])
    assert splits == [2, 0, 1, 0]


def test_many_distinct_times_are_cut_nearly_right_in_bounded_memory(monkeypatch):
    monkeypatch.setattr("outsize.data.encoding.splits.by_time._MAX_DISTINCT_TIMES", 500)
    times = np.random.default_rng(0).permutation(10_000) + 1_400_000_000
    chunks = [(0, {"t": part}) for part in np.split(times, 10)]
    splits = np.array(assign(TimeSplit("t"), chunks))
    assert np.bincount(splits) / 10_000 == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert times[splits == 0].max() < times[splits == 1].min()
    assert times[splits == 1].max() < times[splits == 2].min()


def test_the_last_of_seven_equal_days_is_halved():
    splits = assign(LastDaySplit(), [(0, {"x": range(8)}), (0, {"x": range(6)})])
    assert splits == [0] * 12 + [1, 2]


def test_the_last_file_is_the_last_day():
    chunks = [(0, {"x": range(3)}), (1, {"x": range(2)}), (1, {"x": range(3)})]
    assert assign(LastDaySplit(), chunks) == [0, 0, 0, 1, 1, 1, 2, 2]


def last_two_by_sorting(users, times, both):
    """The same split, found the obvious way."""
    splits = [0] * len(users)
    for user in set(users):
        mine = sorted((time, i) for i, time in enumerate(times) if users[i] == user)
        for place, (_, i) in enumerate(reversed(mine[-2:])):
            splits[i] = 1 if both or place == 1 else 2
    return splits


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 4)), min_size=1, max_size=40),
    st.integers(1, 9),
    st.booleans(),
)
def test_the_last_two_of_each_user_are_held_out(rows, size, both):
    users, times = [user for user, _ in rows], [time for _, time in rows]
    chunks = [
        (0, {"user": users[i : i + size], "time": times[i : i + size]})
        for i in range(0, len(rows), size)
    ]
    config = LastOfEachSplit("user", "time", "validation" if both else "split")
    assert assign(config, chunks) == last_two_by_sorting(users, times, both)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashSplit(validation=0.6, test=0.5), "a sum below 1"),
        (lambda: HashSplit(validation=0.0), "above 0"),
        (lambda: TimeSplit("t", test_from=3), "test_from needs validation_from"),
        (lambda: TimeSplit("t", 3, 3), "later than validation_from = 3"),
        (lambda: ColumnSplit("s", ("a",), ("b",), ("a",)), "share no value"),
        (lambda: LastDaySplit(1), "num_days must be >= 2"),
    ],
)
def test_a_split_that_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()

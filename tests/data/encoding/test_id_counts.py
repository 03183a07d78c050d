from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.data.encoding import id_counts
from outsize.data.encoding.id_counts import KeyCounts, limit_held

streams = st.lists(st.lists(st.integers(0, 30), max_size=30), max_size=8)


def add(counts, values):
    keys, times = np.unique(np.array(values, np.uint64), return_counts=True)
    counts.add(keys, times)


@given(streams)
def test_counts_are_those_of_a_counter(chunks):
    counts = KeyCounts()
    for chunk in chunks:
        add(counts, chunk)
    counts.merge()
    expected = Counter(value for chunk in chunks for value in chunk)
    assert dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True)) == expected
    assert counts.keys.tolist() == sorted(expected)
    assert counts.max_error == 0


@given(streams, st.integers(1, 10))
def test_a_count_is_too_low_by_no_more_than_the_stated_error(chunks, limit):
    counts = KeyCounts()
    for chunk in chunks:
        add(counts, chunk)
        limit_held([counts], limit)
        assert len(counts) <= limit
    counts.merge()
    held = dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True))
    for value, count in Counter(value for chunk in chunks for value in chunk).items():
        assert count - counts.max_error <= held.get(value, 0) <= count


def test_the_longest_column_pays_for_the_limit():
    short, long = KeyCounts(), KeyCounts()
    add(short, range(10))
    add(long, [*range(100), *range(5)])
    limit_held([short, long], 60)
    assert (len(short), long.keys.tolist()) == (10, [0, 1, 2, 3, 4])
    assert (short.max_error, long.max_error) == (0, 1)


def test_merging_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    whole, parts = KeyCounts(), KeyCounts()
    values = np.random.default_rng(0).integers(0, 500, 5000)
    add(whole, values)
    monkeypatch.setattr(id_counts, "_MIN_PENDING", 10)
    for chunk in np.split(values, 50):
        add(parts, chunk)
    whole.merge()
    parts.merge()
    assert whole.keys.tolist() == parts.keys.tolist()
    assert whole.counts.tolist() == parts.counts.tolist()

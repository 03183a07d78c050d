from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.kernels.distinct.distinct import LEAST_IDS, distinct, offset_ids

pytest.importorskip("numba")
BOUNDS = [1, 2, 7, 8192, 8193, 10**6, 2**26 + 1, 2**31 - 1]


@pytest.fixture(autouse=True)
def compiled_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


@given(data=st.data(), bound=st.sampled_from(BOUNDS))
def test_it_equals_torch_unique(data, bound):
    values = data.draw(st.lists(st.integers(0, bound - 1), max_size=40))
    ids = torch.tensor(values, dtype=torch.int64)
    found = distinct(ids, bound)
    unique, inverse = torch.unique(ids, return_inverse=True)
    assert torch.equal(found.ids, unique)
    assert torch.equal(found.inverse, inverse)
    assert found.places is not None
    order, starts = found.places.order.tolist(), found.places.starts.tolist()
    places = [order[a:b] for a, b in pairwise(starts)]
    assert places == [(ids == value).nonzero().flatten().tolist() for value in unique]


def test_ids_beyond_31_bits_and_small_lists_are_left_to_torch(monkeypatch):
    ids = torch.tensor([2**33, 5, 2**33])
    assert distinct(ids, 2**34).places is None
    assert distinct(ids, 2**34).ids.tolist() == [5, 2**33]
    monkeypatch.delenv("OUTSIZE_KERNELS")
    assert distinct(torch.zeros(LEAST_IDS - 1, dtype=torch.int64), 1).places is None
    assert distinct(torch.zeros(LEAST_IDS, dtype=torch.int64), 1).places is not None


def test_a_slice_of_a_matrix_is_read_with_its_stride():
    matrix = torch.arange(60).view(20, 3) % 11
    found = distinct(matrix[:, 1], 11)
    assert torch.equal(found.ids[found.inverse], matrix[:, 1])


def test_offsets_are_added_to_ids_within_their_bounds():
    ids, bounds = torch.tensor([[1, 0], [0, 4]]), torch.tensor([2, 5])
    offsets = torch.tensor([10, 20])
    assert offset_ids(ids.unbind(1), bounds, offsets).tolist() == [11, 20, 10, 24]
    assert offset_ids(ids[:0].unbind(1), bounds, offsets).tolist() == []
    for bad in (-1, 2):
        wrong = ids.clone()
        wrong[1, 0] = bad
        assert offset_ids(wrong.unbind(1), bounds, offsets) is None

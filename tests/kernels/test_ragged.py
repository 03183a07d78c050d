"""Lists of any length against lists of Python."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(-1, 6), max_size=9), min_size=1, max_size=6)


def ragged(lists):
    values = torch.tensor([value for each in lists for value in each], dtype=torch.int64)
    return Ragged.from_sizes(values, torch.tensor([len(each) for each in lists]))


def as_python(lists):
    edges = lists.offsets.tolist()
    return [lists.values[a:b].tolist() for a, b in itertools.pairwise(edges)]


def assert_right(found, expected):
    assert as_python(found) == expected
    assert found.num_lines == len(expected)
    assert found.sizes().tolist() == [len(each) for each in expected]
    assert found.lines().tolist() == [line for line, each in enumerate(expected) for _ in each]


@settings(deadline=None, max_examples=60)
@given(LISTS, LISTS, st.integers(0, 6), st.integers(0, 6), st.integers(0, 4))
def test_lists_are_taken_apart_and_put_together_as_those_of_python_are(one, other, a, b, num):
    lists = ragged(one)
    assert_right(lists, one)
    assert_right(lists.first(num), [each[:num] for each in one])
    assert_right(lists.where(lists.values > 2), [[v for v in each if v > 2] for each in one])
    assert_right(lists.with_values(lists.values + 1), [[v + 1 for v in each] for each in one])
    start, stop = sorted((min(a, len(one)), min(b, len(one))))
    assert_right(lists.part(start, stop), one[start:stop])
    assert_right(Ragged.stacked([lists, ragged(other), lists]), one + other + one)
    num_lines = min(len(one), len(other))
    both = lists.part(0, num_lines).concatenate_lists(ragged(other[:num_lines]))
    assert_right(both, [x + y for x, y in zip(one[:num_lines], other[:num_lines], strict=True)])


@settings(deadline=None, max_examples=60)
@given(LISTS)
def test_a_value_is_in_its_list_or_not(lists):
    asked = torch.arange(-1, 6).repeat(len(lists), 1)
    found = ragged(lists).contains(asked, bound=6)
    assert found.tolist() == [[v in each and v >= 0 for v in range(-1, 6)] for each in lists]


def test_pairs_ascend_and_values_past_the_bound_stand_for_nothing():
    for lists in ([[2, 9, 0], [], [-1, 2]], [[0, 2, 7], [], [-1, 2]]):
        found = ragged(lists)
        assert as_python(found) == lists
        pairs = found.pairs(bound=3).tolist()
        assert [(pair // 5, pair % 5 - 1) for pair in pairs] == [
            (0, 0), (0, 2), (0, 3), (2, -1), (2, 2)
        ]  # fmt: skip
    in_order = Ragged(found.values, found.offsets, ascending=True)
    assert in_order.pairs(bound=3).tolist() == pairs


def test_a_matrix_is_lists_of_one_width():
    matrix = torch.tensor([[1, -1], [4, 5]])
    assert as_python(Ragged.of(matrix)) == matrix.tolist()
    assert as_python(Ragged.of(torch.tensor([7, 8]))) == [[7], [8]]
    assert as_python(Ragged.of(torch.empty(3, 0, dtype=torch.int64))) == [[], [], []]
    lists = ragged([[1]])
    assert Ragged.of(lists) is lists
    with pytest.raises(ConfigError, match="lists must be int64, a line for each query, but got"):
        Ragged.of(torch.ones(2, 2))


def test_lists_made_in_inference_mode_leave_nothing_that_training_cannot_use():
    with torch.inference_mode():
        Ragged.of(torch.arange(34).view(17, 2)).lines()
    lists = Ragged.of(torch.arange(34).view(17, 2))
    weights = torch.ones(17, requires_grad=True)
    weights[lists.lines()].sum().backward()  # saves the lines for the backward pass
    assert torch.equal(weights.grad, torch.full((17,), 2.0))

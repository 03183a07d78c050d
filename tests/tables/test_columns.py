import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables.columns import (
    column_widths,
    columns_of,
    gather_columns,
    gather_pieces,
    stack_columns,
    unstack_columns,
)


@given(st.integers(1, 70), st.data())
def test_widths_add_up_and_differ_by_one_at_most(dim, data):
    columns = data.draw(st.integers(1, dim))
    widths = column_widths(dim, columns)
    assert sum(widths) == dim
    assert len(widths) == columns
    assert widths == sorted(widths, reverse=True)
    assert widths[0] - widths[-1] <= 1


@pytest.mark.parametrize(("dim", "columns"), [(8, 4), (8, 1), (7, 3), (5, 5), (17, 4)])
def test_a_vector_is_put_together_column_by_column(dim, columns):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, dim, generator=generator)
    pointers = torch.randint(6, (9, columns), generator=generator)
    vectors = gather_columns(weight, pointers)
    for i in range(9):
        expected, first = [], 0
        for j, width in enumerate(column_widths(dim, columns)):
            expected.append(weight[pointers[i, j], first : first + width])
            first += width
        assert torch.equal(vectors[i], torch.cat(expected))


def test_a_piece_may_come_from_any_column():
    weight = torch.arange(12.0).view(3, 4)
    vectors = gather_pieces(weight, torch.tensor([[5, 0], [1, 1]]))
    assert vectors.tolist() == [[10.0, 11.0, 0.0, 1.0], [2.0, 3.0, 2.0, 3.0]]


@pytest.mark.parametrize(("dim", "columns"), [(8, 4), (7, 3), (5, 5)])
def test_stacking_pads_narrow_columns_and_can_be_undone(dim, columns):
    vectors = torch.randn(10, dim, generator=torch.Generator().manual_seed(0))
    stacked = stack_columns(vectors, columns)
    assert stacked.shape == (columns, 10, column_widths(dim, columns)[0])
    assert torch.equal(unstack_columns(stacked, dim), vectors)
    assert stacked.abs().max() == vectors.abs().max()
    assert int((stacked == 0).sum()) == stacked.numel() - vectors.numel()


def test_four_columns_by_default_and_fewer_for_narrow_vectors():
    assert columns_of(TableSpec("t", 10, 16), None) == 4
    assert columns_of(TableSpec("t", 10, 3), None) == 3
    with pytest.raises(ConfigError, match="between 1 and its dim of 3, but got 4"):
        columns_of(TableSpec("t", 10, 3), 4)

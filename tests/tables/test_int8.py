"""Tables of 8-bit rows."""

import pytest
import torch

import outsize
from outsize.errors import ConfigError
from outsize.tables.int8 import to_int8

SPEC = outsize.TableSpec("user", 70_000, 6)  # more than one chunk


def test_every_number_is_within_half_a_step():
    table = outsize.FullTable(SPEC, seed=1)
    rounded = outsize.Int8Table.from_table(table)
    step = table.weight.detach().abs().amax(dim=1, keepdim=True) / 127
    error = (rounded.materialize().weight - table.weight).abs()
    assert bool((error <= step * 0.5001).all())
    assert rounded.memory_use().total_bytes == SPEC.num_rows * (SPEC.dim + 4)


def test_a_torch_embedding_is_rounded_too():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(9, 4)
    rounded = outsize.Int8Table.from_table(embedding)
    torch.testing.assert_close(
        rounded(torch.arange(9)), embedding.weight.detach(), atol=0.02, rtol=0
    )


def test_the_largest_number_and_zeros_are_exact():
    rows = torch.tensor([[0.0, -2.54, 1.27], [0.0, 0.0, 0.0], [1e-44, 0.0, 0.0]])
    integers, scale = to_int8(rows)
    assert integers.tolist() == [[0, -127, 64], [0, 0, 0], [0, 0, 0]]
    assert scale.tolist() == pytest.approx([0.02, 1.0, 1.0])


def test_rows_that_are_no_numbers_have_scales_that_are_none():
    _, scale = to_int8(torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [1.0, 2.0]]))
    assert scale.isfinite().tolist() == [False, False, True]


def test_rows_and_scales_of_another_shape_are_refused():
    with pytest.raises(ConfigError, match=r"'user' has 70,000 rows of 6, but got .*\(3, 6\)"):
        outsize.Int8Table(SPEC, torch.zeros(3, 6, dtype=torch.int8), torch.ones(3))
    with pytest.raises(ConfigError, match=r"use Int8Table\.from_table"):
        outsize.Int8Table.within(SPEC, outsize.Budget())

import pytest
import torch

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables import TensorTrainTable, build_table
from outsize.tables.tensor_train import even_factors


def test_vectors_are_rows_of_the_dense_tensor_train():
    spec = TableSpec("table", num_rows=100, dim=12)
    table = TensorTrainTable(spec, rank_sum=7)
    assert (table.bases, table.dims, table.ranks) == ([5, 5, 4], [3, 2, 2], [4, 3])
    first = table.cores[0].view(5, 3, 4)
    second = table.cores[1].view(5, 4, 2, 3)
    third = table.cores[2].view(4, 3, 2)
    dense = torch.einsum("aup,bpvq,cqw->abcuvw", first, second, third).reshape(100, 12)
    torch.testing.assert_close(table(torch.arange(100)), dense)


@pytest.mark.parametrize("num_cores", [2, 3, 4])
def test_exact_ranks_can_hold_any_table(num_cores):
    spec = TableSpec("table", num_rows=16, dim=8)
    table = build_table("tensor-train", spec, max_params=10**6, num_cores=num_cores)
    target = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(table.parameters(), lr=0.03)
    for _ in range(400):
        optimizer.zero_grad()
        error = (table(torch.arange(16)) - target).square().mean()
        error.backward()
        optimizer.step()
    assert error < 0.01


@pytest.mark.parametrize(
    ("number", "factors"),
    [(1, [1, 1, 1]), (17, [17, 1, 1]), (16, [4, 2, 2]), (64, [4, 4, 4]), (100, [5, 5, 4])],
)
def test_a_width_is_split_as_evenly_as_it_can_be(number, factors):
    assert even_factors(number, 3) == factors


def test_ranks_differ_by_one_at_most_to_use_the_budget():
    spec = TableSpec("table", num_rows=10**6, dim=64)
    ranks = {tuple(build_table("tensor-train", spec, max_params=n).ranks) for n in (5200, 7200)}
    assert ranks == {(3, 2), (3, 3)}


def test_no_rank_is_larger_than_an_exact_table_needs():
    table = build_table("tensor-train", TableSpec("t", num_rows=8, dim=17), max_params=10**6)
    assert table.bases == [2, 2, 2]
    assert table.ranks == [4, 2]


def test_tt_recs_draw_has_the_variance_of_its_target():
    spec = TableSpec("table", num_rows=10_000, dim=16)
    table = build_table("tensor-train", spec, max_params=20_000, papers_init=True)
    std = table(torch.arange(10_000)).std()
    assert 0.85 < std / 30_000**-0.5 < 1.15


def test_one_core_is_refused():
    with pytest.raises(ConfigError, match="num_cores must be >= 2, but got 1"):
        build_table("tensor-train", TableSpec("t", num_rows=8, dim=4), max_params=99, num_cores=1)

import pytest
import torch

from outsize.spec import TableSpec
from outsize.tables import build_table

SPEC = TableSpec("table", num_rows=100, dim=8)


@pytest.mark.parametrize(("limit", "rank"), [(108, 1), (215, 1), (216, 2), (10**6, 8)])
def test_the_rank_is_solved_from_the_budget(limit, rank):
    table = build_table("low-rank", SPEC, max_params=limit)
    assert table.weight.shape == (100, rank)
    assert table.widen.shape == (rank, 8)


def test_vectors_are_rows_of_the_product():
    table = build_table("low-rank", SPEC, max_params=400)
    vectors = table(torch.arange(100))
    torch.testing.assert_close(vectors, table.weight @ table.widen)
    for i in (0, 99):
        for k in range(8):
            terms = [table.weight[i, r] * table.widen[r, k] for r in range(3)]
            torch.testing.assert_close(vectors[i, k], sum(terms))

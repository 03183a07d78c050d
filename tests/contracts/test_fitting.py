"""Tables that start from given rows, such as those of a trained `nn.Embedding`."""

import pytest
import torch

from outsize.errors import DataError, NonFiniteError
from outsize.spec import TableSpec
from outsize.tables import TABLES, build_table

SPEC = TableSpec("item", num_rows=300, dim=8)


def rows_of_clusters(num_rows=300, dim=8, spread=0.1, dtype=torch.float32):
    """Rows around eight centres that are far from zero."""
    generator = torch.Generator().manual_seed(1)
    centres = 2 + torch.randn(8, dim, generator=generator)
    labels = torch.randint(8, (num_rows,), generator=generator)
    return (centres[labels] + spread * torch.randn(num_rows, dim, generator=generator)).to(dtype)


def fitted(method, rows, counts=None, **options):
    spec = TableSpec("item", *rows.shape, dtype=rows.dtype)
    table = build_table(method, spec, max_params=None if method == "full" else 800, **options)
    table.fit_rows(rows, counts)
    return table


def squared_error(table, rows):
    with torch.no_grad():
        return (table(torch.arange(len(rows))).double() - rows.double()).square().sum(dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", TABLES)
def test_every_method_comes_closer_to_given_rows_than_their_mean(method, dtype):
    rows = rows_of_clusters(dtype=dtype)
    table = fitted(method, rows)
    variance = (rows.double() - rows.double().mean(dim=0)).square().sum(dim=1).mean()
    assert squared_error(table, rows).mean() < 1.01 * variance
    for parameter in table.parameters():
        assert parameter.dtype == dtype
        assert parameter.requires_grad
        assert parameter.grad is None


def test_a_full_table_keeps_rows_exactly():
    rows = rows_of_clusters()
    assert torch.equal(fitted("full", rows).weight, rows)


def test_a_hashed_row_is_the_mean_of_the_rows_that_share_it():
    rows = rows_of_clusters()
    table = fitted("hash", rows)
    vectors = table(torch.arange(300)).detach()
    for vector in vectors.unique(dim=0)[:5]:
        shared = (vectors == vector).all(dim=1)
        torch.testing.assert_close(vector, rows[shared].mean(dim=0), atol=1e-4, rtol=1e-4)


def test_low_rank_rows_are_the_best_approximation_of_their_rank():
    rows = rows_of_clusters()
    table = fitted("low-rank", rows)
    rank = table.widen.shape[0]
    missing = torch.linalg.svdvals(rows.double())[rank:].square().sum()
    torch.testing.assert_close(squared_error(table, rows).sum(), missing, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_cce_finds_the_clusters_of_rows_and_can_be_clustered_again(shared):
    rows = rows_of_clusters(spread=0.001)
    table = fitted("cce", rows, shared=shared)
    old = table.codes_version
    assert squared_error(table, rows).mean() < 1e-3
    assert table.recluster().mse < 1e-3
    assert table.codes_version != old


@pytest.mark.parametrize("method", ["cce", "hash", "low-rank"])
def test_rows_that_never_occur_do_not_take_part(method):
    rows = rows_of_clusters()
    with_outlier = rows.clone()
    with_outlier[7] = 1e6
    counts = torch.ones(300, dtype=torch.int64)
    counts[7] = 0
    others = torch.arange(300) != 7
    one = squared_error(fitted(method, with_outlier, counts), with_outlier)[others]
    other = squared_error(fitted(method, rows, counts), rows)[others]
    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_rows_of_another_shape_or_without_a_value_are_refused(unchecked_shapes):
    table = build_table("cce", SPEC, max_params=800)
    with pytest.raises(DataError, match=r"'item': expected rows of the shape \(300, 8\)"):
        table.fit_rows(torch.zeros(299, 8))
    bad = torch.zeros(300, 8)
    bad[3, 3] = torch.nan
    with pytest.raises(NonFiniteError, match="the rows to fit hold NaN or infinity"):
        table.fit_rows(bad)


@pytest.mark.parametrize(
    "counts", [torch.ones(299, dtype=torch.int64), torch.arange(300) - 1, torch.full((300,), 1e400)]
)
@pytest.mark.parametrize("method", TABLES)
def test_counts_that_are_not_one_per_id_are_refused(method, counts, unchecked_shapes):
    with pytest.raises(DataError, match="'item': counts must be 300 numbers >= 0"):
        fitted(method, rows_of_clusters(), counts)

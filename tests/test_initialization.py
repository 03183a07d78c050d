import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outsize.initialization import fill_initial_rows, initial_rows
from outsize.spec import Init, TableSpec

DISTRIBUTIONS = ["uniform", "normal"]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 2**40), max_size=30),
    st.integers(0, 30),
    st.sampled_from(DISTRIBUTIONS),
    st.integers(1, 9),
)
def test_a_row_is_the_same_in_any_company(ids, cut, distribution, dim):
    spec = TableSpec("t", 2**40 + 1, dim, Init(distribution))
    together = initial_rows(spec, torch.tensor(ids, dtype=torch.int64), seed=3)
    parts = [torch.tensor(part, dtype=torch.int64) for part in (ids[:cut], ids[cut:])]
    assert torch.equal(torch.cat([initial_rows(spec, part, seed=3) for part in parts]), together)
    for row, key in enumerate(ids):
        assert torch.equal(initial_rows(spec, torch.tensor([key]), seed=3)[0], together[row])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 1), (9_000, 64), (3, 2**18 + 1), (5, 7)])
def test_a_table_filled_at_once_equals_its_rows(distribution, num_rows, dim):
    spec = TableSpec("t", num_rows, dim, Init(distribution))
    weight = torch.full((num_rows, dim), math.nan)
    fill_initial_rows(weight, spec, seed=1)
    backwards = torch.arange(num_rows).flip(0)
    assert torch.equal(weight.flip(0), initial_rows(spec, backwards, seed=1))


def test_a_parameter_is_filled_without_a_gradient():
    weight = torch.nn.Parameter(torch.empty(3, 2))
    fill_initial_rows(weight, TableSpec("t", 3, 2), seed=1)
    assert weight.grad_fn is None
    assert weight.is_leaf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_table_of_another_type_holds_the_rounded_rows(dtype):
    spec = TableSpec("t", 500, 8, Init("normal"), dtype=dtype)
    weight = torch.empty(500, 8, dtype=dtype)
    fill_initial_rows(weight, spec, seed=1)
    exact = initial_rows(spec, torch.arange(500), seed=1)
    assert exact.dtype == torch.float32
    assert torch.equal(weight, exact.to(dtype))
    assert weight.dtype == dtype


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("std", [None, 0.02, 3.0])
def test_values_have_mean_zero_and_the_std_that_was_asked_for(distribution, std):
    spec = TableSpec("t", 20_000, 16, Init(distribution, std))
    values = initial_rows(spec, torch.arange(20_000), seed=5).double().flatten()
    asked = 1 / math.sqrt(3 * 16) if std is None else std
    assert values.mean().item() == pytest.approx(0, abs=4.5 * asked / math.sqrt(values.numel()))
    assert values.std().item() == pytest.approx(asked, rel=0.01)


def test_values_follow_the_named_distribution():
    ids = torch.arange(5_000)
    uniform = initial_rows(TableSpec("t", 5_000, 16, Init("uniform", 2.0)), ids, seed=5)
    bound = 2 * math.sqrt(3)
    shape = stats.uniform(-bound, 2 * bound)
    assert stats.kstest(uniform.flatten().double().numpy(), shape.cdf).pvalue > 1e-5
    normal = initial_rows(TableSpec("t", 5_000, 16, Init("normal", 2.0)), ids, seed=5)
    shape = stats.norm(0, 2)
    assert stats.kstest(normal.flatten().double().numpy(), shape.cdf).pvalue > 1e-5


@pytest.mark.parametrize("dim", [1, 4, 64])
def test_by_default_rows_have_the_squared_norm_of_a_uniform_draw_on_one_over_root_dim(dim):
    rows = initial_rows(TableSpec("t", 20_000, dim), torch.arange(20_000), seed=5)
    assert rows.square().sum(dim=1).mean().item() == pytest.approx(1 / 3, rel=0.03)
    assert rows.abs().max() <= dim**-0.5
    assert rows.abs().max() > 0.999 * dim**-0.5


@pytest.mark.parametrize("init", [Init("zeros"), Init("zeros", 1.0), Init("uniform", 0.0)])
def test_zeros_are_zeros(init):
    spec = TableSpec("t", 10, 4, init)
    rows = initial_rows(spec, torch.arange(10), seed=1)
    assert rows.shape == (10, 4)
    assert not rows.any()
    weight = torch.ones(10, 4)
    fill_initial_rows(weight, spec, seed=1)
    assert not weight.any()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_tables_seeds_rows_and_columns_all_have_values_of_their_own(distribution):
    init = Init(distribution)
    tables = [
        initial_rows(TableSpec(name, 300, 64, init), torch.arange(300), seed)
        for name, seed in [("a", 0), ("b", 0), ("a", 1)]
    ]
    rows = torch.cat(tables).double()
    # Unrelated rows of 64 values correlate by 1/8, and unrelated columns of 900 by 1/30.
    between_rows = torch.corrcoef(rows) - torch.eye(900)
    assert between_rows.abs().max() < 6 / 8
    between_columns = torch.corrcoef(rows.t()) - torch.eye(64)
    assert between_columns.abs().max() < 5.5 / 30


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_value_of_a_model_is_used_twice(distribution):
    init, ids = Init(distribution), torch.arange(20)
    tables = [initial_rows(TableSpec(name, 20, 8, init), ids, seed=1) for name in "ab"]
    assert torch.cat(tables).unique().numel() == 2 * 20 * 8


def test_the_number_of_rows_does_not_change_a_row():
    small, large = TableSpec("t", 10, 4), TableSpec("t", 1000, 4)
    ids = torch.arange(10)
    assert torch.equal(initial_rows(small, ids, seed=1), initial_rows(large, ids, seed=1))


def test_no_ids_give_no_rows():
    for init in (Init(), Init("normal"), Init("zeros")):
        none = torch.empty(0, dtype=torch.int64)
        assert initial_rows(TableSpec("t", 10, 4, init), none, seed=1).shape == (0, 4)

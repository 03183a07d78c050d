"""A budget is never exceeded, and used as far as a method can."""

import pytest
import torch
from counting import CountedNumbers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.spec import Budget, Init, TableSpec
from outsize.tables import (
    TABLES,
    CEConcatTable,
    DHETable,
    HashEmbeddingTable,
    HashTable,
    LowRankTable,
    QRTable,
    RobeTable,
    TensorTrainTable,
    build_table,
)

SPECS = [
    TableSpec("wide", num_rows=1000, dim=16),
    TableSpec("prime", num_rows=997, dim=17),
    TableSpec("half", num_rows=300, dim=8, dtype=torch.bfloat16),
]
ONE_LARGER = {
    "hash": lambda t: HashTable(t.spec, num_buckets=t.num_buckets + 1),
    "qr": lambda t: QRTable(t.spec, base=t.base + 1, num_digits=len(t.bases)),
    "hash-embedding": lambda t: HashEmbeddingTable(
        t.spec, num_buckets=t.num_buckets + 1, num_importance=t.num_importance
    ),
    "ce-concat": lambda t: CEConcatTable(t.spec, num_buckets=t.num_buckets + 1),
    "robe": lambda t: RobeTable(t.spec, size=t.size + 1),
    "dhe": lambda t: DHETable(t.spec, width=t.hashes.shape[0] + 1),
    "tensor-train": lambda t: TensorTrainTable(t.spec, rank_sum=t.rank_sum + 1),
    "low-rank": lambda t: LowRankTable(t.spec, rank=t.widen.shape[0] + 1),
}
FREE_OF_ROWS = ["hash", "qr", "hash-embedding", "ce-concat", "robe", "dhe", "tensor-train"]


def spent(table, unit):
    use = table.memory_use()
    return use.num_parameters if unit == "max_params" else use.total_bytes


def built(method, spec, unit, limit, **options):
    """The table, or None where even the smallest is refused in words."""
    try:
        return build_table(method, spec, **{unit: limit}, **options)
    except ConfigError as error:
        message = str(error)
    assert spec.name in message
    return None


@pytest.mark.parametrize("unit", ["max_params", "max_bytes"])
@pytest.mark.parametrize("method", TABLES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    num_rows=st.integers(1, 400),
    dim=st.integers(4, 18),
    limit=st.integers(1, 20_000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_sizes_are_solved_exactly(method, unit, num_rows, dim, limit, dtype):
    spec = TableSpec("table", num_rows=num_rows, dim=dim, dtype=dtype)
    table = built(method, spec, unit, limit)
    if table is None:
        return
    cost = spent(table, unit)
    assert cost <= limit
    assert spent(built(method, spec, unit, cost), unit) == cost
    smaller = built(method, spec, unit, cost - 1)
    assert smaller is None or spent(smaller, unit) < cost


@pytest.mark.parametrize("unit", ["max_params", "max_bytes"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("method", ONE_LARGER)
def test_one_size_larger_would_be_over(method, spec, unit):
    limit = spec.num_rows * spec.dim // 3 * (1 if unit == "max_params" else spec.dtype.itemsize)
    larger = ONE_LARGER[method](build_table(method, spec, **{unit: limit}))
    assert spent(larger, unit) > limit


@pytest.mark.parametrize("method", FREE_OF_ROWS)
def test_a_billion_rows_cost_no_more_than_the_budget_and_no_more_work(method):
    spec = TableSpec("huge", num_rows=10**9, dim=64)
    with CountedNumbers() as counted:
        table = build_table(method, spec, max_params=1_000_000)
    assert counted.total < 50 * 1_000_000  # numbers, where all rows would be 64,000 million
    assert 900_000 < table.memory_use().num_parameters <= 1_000_000
    assert table(torch.tensor([0, 10**9 - 1])).shape == (2, 64)


def test_rows_of_their_own_are_refused_where_they_do_not_fit():
    spec = TableSpec("huge", num_rows=10**9, dim=64)
    with pytest.raises(ConfigError, match="smallest low-rank table needs 1,000,000,064 parameters"):
        build_table("low-rank", spec, max_params=1_000_000)


@pytest.mark.parametrize("method", [name for name in TABLES if name != "full"])
def test_a_compressed_table_asks_for_a_budget(method):
    with pytest.raises(ConfigError, match="needs a budget"):
        TABLES[method].within(TableSpec("table", num_rows=100, dim=8), Budget())


@pytest.mark.parametrize(("num_rows", "dim"), [(1, 1), (1, 8), (2, 4), (50, 1), (100, 17)])
@pytest.mark.parametrize("limit", [1, 5, 20, 100, 1000, 10_000])
@pytest.mark.parametrize("method", TABLES)
def test_small_tables_work_or_are_refused(method, num_rows, dim, limit):
    spec = TableSpec("small", num_rows=num_rows, dim=dim)
    table = built(method, spec, "max_params", limit)
    if table is not None:
        vectors = table(torch.arange(num_rows))
        assert vectors.shape == (num_rows, dim)
        assert vectors.isfinite().all()
        assert spent(table, "max_params") <= limit


@pytest.mark.parametrize("method", [name for name in TABLES if name != "circular"])
def test_a_generous_budget_holds_any_table(method):  # circular needs two columns
    for spec in (TableSpec("one", num_rows=1, dim=1), TableSpec("line", num_rows=50, dim=1)):
        assert built(method, spec, "max_params", 10_000) is not None


@pytest.mark.parametrize("method", TABLES)
def test_every_parameter_learns_from_all_ids(method):
    spec = TableSpec("table", num_rows=500, dim=8)
    table = build_table(method, spec, max_params=None if method == "full" else 1500)
    (table(torch.arange(500)) * torch.randn(500, 8, generator=torch.Generator())).sum().backward()
    for name, parameter in table.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("init", [Init("zeros"), Init("uniform", std=0.0)])
@pytest.mark.parametrize("method", TABLES)
def test_a_table_of_zeros_can_learn(method, init):
    spec = TableSpec("table", num_rows=60, dim=8, init=init)
    table = build_table(method, spec, max_params=None if method == "full" else 240)
    ids = torch.arange(3)
    assert not table(ids).any()
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (table(ids) - 1).square().mean().backward()
        optimizer.step()
    assert (table(ids) - 1).square().mean() < 0.9


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("share", [2, 4, 10])
@pytest.mark.parametrize("method", [name for name in TABLES if name != "full"])
def test_the_scale_is_the_asked_one_at_any_budget(method, share, distribution):
    spec = TableSpec("table", num_rows=4096, dim=16, init=Init(distribution, std=0.01))
    table = built(method, spec, "max_params", spec.num_rows * spec.dim // share)
    if table is not None:
        assert 0.007 < table(torch.arange(4096)).std() < 0.014


@pytest.mark.gpu
@pytest.mark.parametrize("method", TABLES)
def test_vectors_and_gradients_are_the_same_on_cuda(method):
    spec = TableSpec("table", num_rows=1000, dim=17, dtype=torch.float64)
    limit = None if method == "full" else 5000
    here, there = (build_table(method, spec, max_params=limit).to(d) for d in ("cpu", "cuda"))
    ids = torch.arange(1000)
    expected, got = here(ids), there(ids.cuda())
    torch.testing.assert_close(got.cpu(), expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad)

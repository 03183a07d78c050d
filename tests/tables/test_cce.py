"""CCE against Algorithm 3 of its text, and against the bugs of its public code."""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch

import outsize
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.hashing import hash_ids
from outsize.interrupts import StopRequested, stopping_when
from outsize.spec import TableSpec
from outsize.tables import CCETable, build_table, reclustering
from outsize.tables.columns import gather_columns
from outsize.tables.reclustering import ids_to_cluster

SPEC = TableSpec("ad", num_rows=3000, dim=8)
ALL = torch.arange(SPEC.num_rows)


def planted(num_rows=3000, num_clusters=6, dim=8, seed=0):
    """Vectors in tight clusters, and the cluster of each id."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(num_clusters, dim, generator=generator)
    labels = torch.randint(num_clusters, (num_rows,), generator=generator)
    return centres[labels] + 0.01 * torch.randn(num_rows, dim, generator=generator), labels


def taught(table, target, steps=300):
    """Train a table towards target vectors."""
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (table(torch.arange(len(target))) - target).square().sum(dim=1).mean().backward()
        optimizer.step()
    return optimizer


def error(table, target):
    with torch.no_grad():
        return (table(torch.arange(len(target))) - target).square().sum(dim=1).mean().item()


@pytest.mark.parametrize("shared", [True, False])
def test_before_clustering_a_vector_is_a_sum_of_two_hashed_ones(shared):
    table = CCETable(SPEC, num_buckets=11, columns=4, shared=shared, seed=3)
    assert (table.num_main, table.num_helper) == (6, 5)
    pool = 4 if shared else 1
    ids = torch.tensor([0, 1, 2999])
    main = table.pointers_of(ids)
    helper = hash_ids(ids, table.helper_hashes, 5 * pool)
    assert int(main.max()) < 6 * pool
    pieces = table.weight.view(11 * 4, 2)
    for i in range(3):
        for j in range(4):
            first = main[i, j] if shared else main[i, j] * 4 + j
            second = helper[i, j] + 24 if shared else (helper[i, j] + 6) * 4 + j
            expected = pieces[first] + pieces[second]
            assert torch.equal(table(ids)[i, 2 * j : 2 * j + 2], expected)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dim", [8, 7])
def test_reclustering_makes_codes_the_centroids_and_the_helper_zero(shared, dim):
    if shared and dim == 7:
        pytest.skip("columns of unequal width share no codes")
    spec = TableSpec("ad", num_rows=500, dim=dim)
    table = CCETable(spec, num_buckets=20, columns=4, shared=shared)
    old, hashes = table(torch.arange(500)).detach(), table.helper_hashes.clone()
    report = table.recluster()
    assert not table.weight[table.num_main :].any()
    assert not torch.equal(table.helper_hashes, hashes)
    assert int(table.num_clusterings) == 1
    new = table(torch.arange(500)).detach()
    if not shared:
        assert torch.equal(new, gather_columns(table.weight, table.pointers_of(torch.arange(500))))
        for column in range(4):  # each code is the mean of the old vectors that point to it
            first = sum((dim // 4 + (j < dim % 4)) for j in range(column))
            width = dim // 4 + (column < dim % 4)
            pointers = table.pointers_of(torch.arange(500))[:, column]
            for code in pointers.unique().tolist():
                mean = old[pointers == code, first : first + width].mean(dim=0)
                row = table.weight[code, first : first + width]
                torch.testing.assert_close(row, mean, atol=2e-3, rtol=2e-3)
    expected = (new - old).square().sum(dim=1).mean().item()
    assert report.mse == pytest.approx(expected, rel=1e-5)
    assert report.mse < 0.7 * report.variance


def test_a_report_has_the_seconds_that_its_clock_counted(monkeypatch):
    ticks = itertools.count(100.0, 2.5)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr("outsize.tables.reclustering.time", clock)
    table = CCETable(TableSpec("ad", num_rows=50, dim=8), num_buckets=20, columns=4)
    assert table.recluster().seconds == 2.5


@pytest.mark.parametrize("shared", [True, False])
def test_clustering_finds_what_hashes_cannot(shared):
    target, _ = planted(num_rows=200)
    spec = TableSpec("ad", num_rows=200, dim=8)
    table = CCETable(spec, num_buckets=24, columns=2, shared=shared, seed=1)
    for _ in range(10):
        table.recluster(taught(table, target, 60))
    taught(table, target, 100)
    hashed = build_table("ce-hybrid", spec, max_params=24 * 8, columns=2)
    taught(hashed, target, 700)
    assert error(table, target) < 0.7 * error(hashed, target)


def test_every_id_is_clustered_by_its_old_vector():
    """The public code reads ids after the first batch through new hashes: their error is then
    the variance of the data."""
    spec = TableSpec("ad", num_rows=300_000, dim=4)
    table = CCETable(spec, num_buckets=64, columns=2, shared=False)
    old = table(torch.arange(300_000)).detach()
    table.recluster(iterations=5)
    errors = (table(torch.arange(300_000)) - old).square().sum(dim=1)
    first, last = errors[:1000].mean(), errors[-1000:].mean()
    assert 0.8 < (last / first).item() < 1.25
    assert last < 0.2 * old.var(dim=0).sum()


@pytest.mark.parametrize("shared", [True, False])
def test_the_batch_does_not_change_the_result(shared):
    spec = TableSpec("ad", num_rows=300_000, dim=4)
    table = CCETable(spec, num_buckets=16, columns=2, shared=shared)
    results = []
    for batch_rows in (1, 150_000, 10**9):
        again = copy.deepcopy(table)
        again.recluster(iterations=3, batch_rows=batch_rows)
        results.append(again.state_dict())
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


@pytest.mark.parametrize("method", ["cce", "circular"])
def test_k_means_of_a_clustering_stops_at_a_tolerance(method):
    spec = TableSpec("ad", num_rows=2_000, dim=8)
    table = build_table(method, spec, max_params=128, columns=4, seed=1)

    def clustered(**options):
        again = copy.deepcopy(table)
        again.plan_recluster(**options).write()  # apply() may warn of collapse
        return again.weight.detach()

    loose = clustered(tolerance=0.1)
    few = [clustered(iterations=number) for number in range(1, 20)]
    for column in (slice(low, low + 2) for low in range(0, 8, 2)):  # each stops by itself
        assert any(torch.equal(loose[:, column], weight[:, column]) for weight in few)
    assert not torch.equal(loose, clustered())
    assert torch.equal(clustered(tolerance=0.0), clustered())
    with pytest.raises(ConfigError, match="tolerance must be >= 0 and < 1, but got 1"):
        clustered(tolerance=1.0)


def test_the_seed_decides_the_clustering():
    one, same, other = (CCETable(SPEC, num_buckets=16, seed=s) for s in (1, 1, 2))
    other.load_state_dict(one.state_dict())
    for table in (one, same, other):
        table.recluster()
    assert torch.equal(one.pointers, same.pointers)
    assert torch.equal(one(ALL), same(ALL))
    assert not torch.equal(one.helper_hashes, other.helper_hashes)


def test_counts_make_popular_ids_exact():
    target, _ = planted(num_clusters=300)
    counts = torch.ones(3000, dtype=torch.int64)
    counts[:8] = 10**6
    table = CCETable(SPEC, num_buckets=16, shared=False)
    with torch.no_grad():
        table.weight.copy_(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)))
    plain, weighted = copy.deepcopy(table), copy.deepcopy(table)
    old = table(ALL).detach()
    plain.recluster()
    weighted.recluster(counts=counts)

    def popular_error(it):
        return (it(ALL[:8]) - old[:8]).square().sum().item()

    assert popular_error(weighted) < 0.01 * popular_error(plain)
    assert len(target) == 3000


def test_ids_without_counts_take_no_part_but_get_vectors():
    counts = torch.zeros(3000, dtype=torch.int64)
    counts[:100] = 5
    table = CCETable(SPEC, num_buckets=24)
    old = table(ALL).detach()
    table.recluster(counts=counts)
    new = table(ALL)
    assert new.isfinite().all()
    before = (old - old.mean(dim=0)).square().sum(dim=1)[100:].mean()
    assert (new - old).square().sum(dim=1)[100:].mean() < before
    assert (new - old).square().sum(dim=1)[:100].mean() < 0.5 * before


def test_counts_of_the_wrong_length_or_all_zero_are_refused_and_nothing_changes():
    table = CCETable(SPEC, num_buckets=16)
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(DataError, match=r"'ad'.*3,000 numbers.*shape \(7,\)"):
        table.recluster(counts=torch.ones(7, dtype=torch.int64))
    with pytest.raises(DataError, match="every count is 0"):
        table.recluster(counts=torch.zeros(3000, dtype=torch.int64))
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
        lambda p: torch.optim.SGD(p, lr=0.01),
    ],
    ids=["adam", "amsgrad", "momentum", "adagrad", "rmsprop", "sgd"],
)
def test_after_reclustering_an_optimizer_is_as_good_as_new(make):
    table = CCETable(SPEC, num_buckets=16)
    other = torch.nn.Parameter(torch.ones(3))
    optimizer = make([*table.parameters(), other])

    def step(it, its_optimizer, its_other):
        its_optimizer.zero_grad()
        (it(ALL[:50]).square().sum() + its_other.square().sum()).backward()
        its_optimizer.step()

    for _ in range(3):
        step(table, optimizer, other)
    kept = copy.deepcopy(optimizer.state.get(other, {}))
    table.recluster(optimizer)
    for name, value in optimizer.state.get(other, {}).items():  # others' moments are untouched
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(kept[name])), name
    fresh = copy.deepcopy(table)
    step(table, optimizer, other)
    step(fresh, make(list(fresh.parameters())), torch.zeros(1, requires_grad=True))
    assert torch.equal(table.weight, fresh.weight)


def test_an_optimizer_of_other_parameters_is_refused():
    table = CCETable(SPEC, num_buckets=16)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(DataError, match=r"'ad'.*does not train this table"):
        table.recluster(optimizer)


@pytest.mark.parametrize("shared", [True, False])
def test_pointers_can_stand_for_ids(shared):
    table = CCETable(SPEC, num_buckets=16, shared=shared)
    table.recluster()
    ids = torch.tensor([[5, 7], [2999, 0]])
    codes = table.encode(ids)
    assert codes.values.shape == (2, 2, 8)
    assert codes.values.dtype == torch.uint8
    assert torch.equal(table.decode(codes), table(ids))
    without_ids = copy.deepcopy(table)
    without_ids.pointers.zero_()
    assert torch.equal(without_ids.decode(codes), table(ids))
    table.decode(codes).sum().backward()
    assert table.weight.grad is not None


@pytest.mark.parametrize("number", [1, 10, 40, -1])
def test_a_clustering_that_is_stopped_changes_nothing(number):
    """Whichever of its questions is answered with a stop, from the first to the last."""
    table = CCETable(SPEC, num_buckets=16)
    optimizer = taught(table, planted()[0], 2)
    asked = []
    with stopping_when(lambda: bool(asked.append(None))):
        copy.deepcopy(table).recluster()
    number = len(asked) if number == -1 else number
    assert len(asked) >= number
    state, moments = copy.deepcopy((table.state_dict(), optimizer.state_dict()["state"][0]))
    asked.clear()

    def asks():
        asked.append(None)
        return len(asked) >= number

    with stopping_when(asks), pytest.raises(StopRequested):
        table.recluster(optimizer)
    assert all(torch.equal(state[name], value) for name, value in table.state_dict().items())
    now = optimizer.state_dict()["state"][0]
    assert all(torch.equal(now[name], value) for name, value in moments.items())


def test_weights_that_are_no_numbers_are_refused_and_nothing_changes():
    table = CCETable(SPEC, num_buckets=16)
    with torch.no_grad():
        table.weight[3, 3] = float("inf")
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(NonFiniteError, match="'ad': its weight holds NaN or infinity"):
        table.recluster()
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


def test_pointers_are_small_buffers_and_the_helper_costs_none():
    spec = TableSpec("ad", num_rows=100_000, dim=16)
    table = build_table("cce", spec, max_params=8_000)
    use = table.memory_use()
    assert use.num_parameters == 8_000
    assert table.pointers.dtype == torch.int16
    assert use.bytes_of("index") == 100_000 * 4 * 2 + 4 * 72 + 24
    assert all(not p.dtype.is_signed or p.dtype.is_floating_point for p in table.parameters())
    text = build_table("cce", spec, max_params=8_000, shared=False)
    assert text.pointers.dtype == torch.uint8


def test_pointers_may_stay_in_main_memory():
    table = CCETable(SPEC, num_buckets=16, pointers_on="cpu")
    expected = table(ALL[:10])
    moved = table.to("meta")
    assert moved.weight.device.type == "meta"
    assert moved.pointers.device.type == "cpu"
    assert list(moved.state_dict())[:2] == ["weight", "pointers"]
    assert expected.shape == (10, 8)


def test_pointers_in_main_memory_survive_a_move_that_fails():
    table = CCETable(SPEC, num_buckets=16, pointers_on="cpu")
    before, pointers = table(ALL[:10]), table.pointers

    def full(tensor):
        raise RuntimeError("the device is full")

    with pytest.raises(RuntimeError, match="full"):
        table._apply(full)
    assert table.pointers is pointers
    assert torch.equal(table(ALL[:10]), before)


@pytest.mark.parametrize("assign", [True, False])
def test_pointers_in_main_memory_are_loaded_into_a_table_made_on_the_meta_device(assign):
    saved = CCETable(SPEC, num_buckets=16, seed=1)
    with torch.device("meta"):
        table = CCETable(SPEC, num_buckets=16, pointers_on="cpu", seed=2)
    if not assign:
        table.to_empty(device="cpu")
    table.load_state_dict(saved.state_dict(), assign=assign)
    assert table.pointers.device.type == "cpu"
    assert torch.equal(table(ALL), saved(ALL))
    assert torch.equal(table.decode(saved.encode(ALL)), saved(ALL))


def test_sharing_needs_equal_columns():
    with pytest.raises(ConfigError, match="dim of 7 has no 4 equal columns: set shared=False"):
        CCETable(TableSpec("ad", 100, 7), num_buckets=10, columns=4, shared=True)


def test_a_report_says_what_happened():
    table = CCETable(SPEC, num_buckets=16)
    report = table.recluster()
    assert report.num_clusters == table.num_codes == 8 * 4
    assert len(report.entropies) == 4
    assert 0 <= report.num_empty < 10
    assert report.as_metrics()["entropies"] == list(report.entropies)


def test_fewer_ids_than_codes_each_get_their_own():
    spec = TableSpec("few", num_rows=5, dim=4)
    table = CCETable(spec, num_buckets=40, columns=2, shared=False)
    old = table(torch.arange(5)).detach()
    report = table.recluster()
    torch.testing.assert_close(table(torch.arange(5)), old)
    assert report.num_empty == 2 * 15


def test_bfloat16_tables_cluster():
    table = CCETable(TableSpec("ad", 300, 8, dtype=torch.bfloat16), num_buckets=16)
    assert table.recluster().mse > 0
    assert table(ALL[:3]).dtype == torch.bfloat16


def test_a_sample_stands_for_all():
    counts = torch.zeros(3000, dtype=torch.int64)
    counts[:1000] = 10
    counts[:20] = 10**6
    ids, weights = ids_to_cluster(SPEC, counts, most=200, seed=0)
    assert len(ids) == len(set(ids.tolist())) == 200
    assert ids.max() < 1000
    assert set(range(20)) <= set(ids.tolist())  # the most popular are never missed
    assert weights.sum().item() == pytest.approx(counts.sum().item(), rel=0.1)
    again, _ = ids_to_cluster(SPEC, counts, most=200, seed=0)
    assert torch.equal(ids, again)


def test_the_public_name_builds_it():
    table = outsize.build_table("cce", SPEC, max_params=200, seed=0)
    assert isinstance(table, CCETable)
    assert table.can_recluster


@pytest.mark.parametrize("method", ["cce", "ce-hybrid", "hash"])
def test_the_papers_draw_is_an_option(method):
    spec = TableSpec("ad", num_rows=10_000, dim=16, init=outsize.Init(std=0.01))
    weight = build_table(method, spec, max_params=16_000, papers_init=True).weight
    limit = (1000 if method == "hash" else 16) ** -0.5
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.02)


def test_pointers_of_another_meaning_are_not_loaded():
    shared, apart = (CCETable(SPEC, num_buckets=16, shared=s) for s in (True, False))
    before = apart.pointers.clone()
    with pytest.raises(ConfigError, match=r"'ad'.*4 columns with shared=True.*shared=False"):
        apart.load_state_dict(shared.state_dict())
    assert torch.equal(apart.pointers, before)


def test_a_table_needs_codes_and_a_helper():
    with pytest.raises(ConfigError, match=r"'ad': a cce table needs 2 rows or more.*got 1"):
        CCETable(SPEC, num_buckets=1)


def test_all_ids_that_occur_are_clustered_with_their_counts_where_they_fit():
    counts = torch.zeros(SPEC.num_rows, dtype=torch.int64)
    counts[[5, 9, 2000]] = torch.tensor([3, 1, 7])
    ids, weights = ids_to_cluster(SPEC, counts, most=3, seed=0)
    assert ids.tolist() == [5, 9, 2000]
    assert weights.tolist() == [3, 1, 7]
    ids, weights = ids_to_cluster(SPEC, None, most=SPEC.num_rows, seed=0)
    assert torch.equal(ids, ALL)
    assert weights.unique().tolist() == [1]


def test_pointers_into_a_shared_pool_are_counted_as_wide_as_they_are():
    """Codes of one column fit in 2 bytes, but those of all four together do not."""
    spec = TableSpec("ad", num_rows=60_000, dim=4)
    budget = 1_800_000
    table = build_table("cce", spec, max_bytes=budget, shared=True, columns=4, pointers="plain")
    assert table.num_main < 2**16 < table.num_codes
    assert table.pointers.dtype == torch.int32
    assert sum(table.memory_use().bytes_by_device["cpu"].values()) <= budget


def test_unused_codes_are_counted_in_one_pool_or_by_column():
    pointers = torch.tensor([[0, 1], [2, 1], [0, 3]], dtype=torch.uint8)
    assert reclustering.num_unused(pointers, 5, pooled=True) == 1
    assert reclustering.num_unused(pointers, 5, pooled=False) == 3 + 3


def test_ids_are_assigned_in_as_many_batches_as_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(reclustering, "CHUNK_POINTS", 8)
    sizes = []

    def points_of(ids):
        sizes.append(len(ids))
        return torch.stack([ids.float(), -ids.float()], dim=1).view(1, -1, 2)

    centroids = torch.tensor([[[0.0, 0.0], [30.0, -30.0]]])
    like = torch.zeros(40, 1, dtype=torch.uint8)
    found = [reclustering.nearest_pointers(points_of, centroids, like, n) for n in (1, 8, 9, 24)]
    assert sizes == [8] * 5 + [8] * 5 + [16, 16, 8] + [24, 16]
    assert all(torch.equal(pointers, found[0]) for pointers in found)
    assert found[0].flatten().tolist() == [0] * 16 + [1] * 24


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cpu", "device"])
def test_pointers_stay_where_they_belong_when_a_state_is_assigned(place):
    table = CCETable(SPEC, num_buckets=32, pointers_on=place).cuda()
    state = {name: value.cuda() for name, value in table.state_dict().items()}
    table.load_state_dict(state, assign=True)
    assert table.pointers.device.type == ("cpu" if place == "cpu" else "cuda")

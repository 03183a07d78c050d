"""Rows of their own for ids, block by block, and the clustering of those rows."""

import copy
import gc
import weakref

import pytest
import torch

import outsize
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.spec import TableSpec
from outsize.tables import CCETable, Probe
from outsize.tables.block_clustering import NO_BLOCK

SPEC = TableSpec("ad", num_rows=600, dim=8)
ALL = torch.arange(SPEC.num_rows)


def make_table(num_buckets=16, **options):
    return CCETable(SPEC, num_buckets=num_buckets, columns=2, seed=1, **options)


def planted(num_clusters=6):
    """Vectors whose two columns are each one of a few, chosen apart."""
    generator = torch.Generator().manual_seed(0)
    pieces = torch.randn(2 * num_clusters, 4, generator=generator)
    first, second = torch.randint(num_clusters, (2, SPEC.num_rows), generator=generator)
    return torch.cat((pieces[first], pieces[num_clusters + second]), dim=1)


def error(table, target):
    with torch.no_grad():
        return (table(ALL) - target).square().sum(dim=1).mean().item()


def probed(table, target, passes=15, **options):
    """Rows trained towards target vectors, in batches of those that a block contains."""
    probe = Probe({"ad": table}, **options)
    for number in range(probe.num_blocks):
        with probe.block(number) as block:
            for _ in range(passes):
                for ids in ALL.split(200):
                    some = ids[block.contains("ad", ids)]
                    block.step((table(some) - target[some]).square().sum())
    return probe


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("helper", [True, False])
def test_ids_find_their_clusters_through_a_sketch_that_hides_them(blocks, helper):
    target, table = planted(), make_table()
    before = error(table, target)
    report = probed(table, target, blocks=blocks, rate=0.5, helper=helper).apply()["ad"]
    assert error(table, target) < 0.01 * before
    assert report.mse < 0.01 * report.variance
    assert table.num_helper == (8 if helper else 0)


def test_only_ids_of_the_block_read_rows_of_their_own():
    table = make_table()
    before = table(ALL).detach()
    probe = Probe({"ad": table}, blocks=3, rate=0.5)
    with probe.block(0) as block:
        assert torch.equal(table(ALL), before)  # they start at their current vectors
        block.step(table(ALL).sum())
        mine = block.contains("ad", ALL)
        assert mine.sum() == 200
        assert not torch.equal(table(ALL[mine]), before[mine])
        assert torch.equal(table(ALL[~mine]), before[~mine])
        bags = table.bag(ALL.view(200, 3))
        assert torch.allclose(bags, table(ALL).view(200, 3, 8).sum(1))
        assert not block.contains("ad", torch.tensor([-1, 10_000])).any()
        assert not block.contains("other", ALL).any()
    assert torch.equal(table(ALL), before)
    assert table.weight.grad is None


def test_rows_are_trained_by_row_wise_adagrad_on_all_gradients_of_a_step():
    table, target = make_table(), planted()
    rows, sums = table(ALL).detach().clone(), torch.zeros(SPEC.num_rows)
    probe = Probe({"ad": table}, blocks=1, rate=0.3)
    batches = torch.randint(600, (5, 64), generator=torch.Generator().manual_seed(1))
    with probe.block(0) as block:
        for ids in batches:
            twice = (table(ids) - target[ids]).square().sum() + (3 * table(ids[:9])).sum()
            block.step(twice)
            gradient = torch.zeros_like(rows).index_add_(0, ids, 2 * (rows[ids] - target[ids]))
            gradient.index_add_(0, ids[:9], torch.full((9, 8), 3.0))
            sums += gradient.square().mean(dim=1)
            rows -= 0.3 * gradient / (sums.sqrt() + 1e-10).unsqueeze(1)
        torch.testing.assert_close(table(ALL), rows)


def test_extra_memory_is_one_block_of_rows_with_a_moment_each():
    table, blocks = make_table(), 5
    probe = probed(table, planted(), passes=1, blocks=blocks)
    use = probe.memory_by_table()["ad"]
    per_block = SPEC.num_rows // blocks
    assert use.bytes_of("parameters") == per_block * SPEC.dim * 4
    assert use.bytes_of("optimizer") == per_block * 4
    assert use.bytes_of("index") == per_block * 8 + SPEC.num_rows


def test_nothing_of_a_block_but_pointers_and_codes_outlives_it():
    table = make_table(num_buckets=4)
    probe = Probe({"ad": table}, blocks=2)
    with probe.block(0) as block:
        alive = weakref.ref(block.rows["ad"].rows)
    del block
    gc.collect()
    assert alive() is None
    clustering = probe._clusterings["ad"]
    held = [*vars(clustering).values(), *vars(clustering._fitted).values()]
    floats = [x for x in held if isinstance(x, torch.Tensor) and x.is_floating_point()]
    assert floats
    assert sum(x.numel() for x in floats) < 300 + 4 * table.weight.numel()


def test_ids_that_never_occur_have_no_row_and_take_the_nearest_code():
    table, counts = make_table(), torch.ones(600, dtype=torch.int64)
    counts[500:] = 0
    before = table(ALL).detach()
    probe = probed(table, planted(), blocks=3, counts={"ad": counts})
    numbers = probe.block_of("ad")
    assert (numbers[500:] == NO_BLOCK).all()
    assert numbers[:500].bincount().tolist() == [167, 167, 166]
    probe.apply()
    pieces = table.weight.detach()[: table.num_main].view(-1, 4)
    distances = torch.cdist(before[500:].view(-1, 4), pieces)
    assert torch.equal(distances.argmin(1).view(-1, 2), table.pointers_of(ALL[500:]))


def test_the_first_block_keeps_the_frequent_ids():
    counts = torch.ones(600, dtype=torch.int64)
    counts[7:600:60] = 1_000
    probe = Probe({"ad": make_table()}, {"ad": counts}, blocks=6)
    assert (probe.block_of("ad")[7:600:60] == 0).all()


def test_a_probe_resets_moments_and_is_the_same_each_time():
    tables = [make_table() for _ in range(2)]
    for table in tables:
        optimizer = torch.optim.Adam(table.parameters())
        table(ALL).sum().backward()
        optimizer.step()
        probed(table, planted(), passes=2, blocks=3).apply(optimizer)
        assert not optimizer.state[table.weight]
    for name, value in tables[0].state_dict().items():
        assert torch.equal(value, tables[1].state_dict()[name])


def test_nan_in_a_block_is_refused_in_words_and_changes_nothing():
    table = make_table()
    before = copy.deepcopy(table.state_dict())
    probe = Probe({"ad": table}, blocks=2)
    with (
        pytest.raises(NonFiniteError, match=r"'ad': rows of a probe became NaN .*lower its rate"),
        probe.block(0) as block,
    ):
        block.step(table(ALL).sum() * float("nan"))
    with pytest.raises(ConfigError, match="0 of the 2 blocks"):
        probe.apply()
    for name, value in table.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_error_inside_a_block_leaves_the_table_as_it_was():
    table = make_table()
    before = table(ALL)
    probe = Probe({"ad": table}, blocks=2)
    with pytest.raises(IndexError), probe.block(0) as block:
        block.step(table(ALL).sum() + table(ALL)[9999].sum())
    assert torch.equal(table(ALL), before)
    with probe.block(0):  # and the block can be done again
        pass


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({"ad": outsize.FullTable(SPEC)}, {}, "needs a table of the method cce"),
        ({"ad": make_table()}, {"rate": 0.0}, "rate of a probe must be > 0"),
        ({"ad": make_table()}, {"blocks": 256}, "blocks must be between 1 and 255"),
        ({"ad": make_table()}, {"blocks": {"add": 2}}, "one for each table: ad has none"),
    ],
)
def test_impossible_probes_are_refused(tables, options, message):
    with pytest.raises(ConfigError, match=message):
        Probe(tables, **options)


def test_blocks_come_in_order():
    probe = Probe({"ad": make_table()}, blocks=2)
    with pytest.raises(ConfigError, match="0 is next, of 2, but got 1"), probe.block(1):
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_without_a_helper_all_rows_are_codes(shared):
    table, target = make_table(shared=shared), planted(12)
    table.recluster(vectors=target, helper=False)
    assert (table.num_main, table.num_helper) == (16, 0)
    assert error(table, target) < 1e-9
    codes = table.encode(ALL)
    assert codes.values.shape == (600, 2)
    assert torch.equal(table.decode(codes), table(ALL))
    other = make_table(shared=shared)
    other.load_state_dict(table.state_dict())
    assert torch.equal(other(ALL), table(ALL))
    again = CCETable.from_settings(SPEC, table.settings())
    again.load_state_dict(table.state_dict())
    assert torch.equal(again(ALL), table(ALL))
    table.recluster(vectors=target)  # and back
    assert (table.num_main, table.num_helper) == (8, 8)
    other.load_state_dict(table.state_dict())
    assert torch.equal(other(ALL), table(ALL))
    table(ALL).sum().backward()
    assert table.weight.grad is not None


def test_codes_are_at_most_what_pointers_can_name():
    table = make_table(num_buckets=200)  # 100 rows of codes are 200 pieces: one byte
    assert table.pointers.dtype == torch.uint8
    table.recluster(helper=False)
    assert (table.num_main, table.num_helper) == (128, 72)
    assert table.pointers.dtype == torch.uint8
    assert table(ALL).shape == (600, 8)


def test_vectors_of_ones_own_are_checked():
    table = make_table()
    with pytest.raises(DataError, match=r"expected rows of the shape \(600, 8\)"):
        table.recluster(vectors=torch.zeros(3, 8))
    with pytest.raises(NonFiniteError, match="hold NaN"):
        table.recluster(vectors=torch.full((600, 8), torch.nan))


@pytest.mark.gpu
def test_ids_find_their_clusters_on_cuda():
    target, table = planted().cuda(), make_table().cuda()
    probe = Probe({"ad": table}, blocks=3, rate=0.5, helper=False)
    for number in range(3):
        with probe.block(number) as block:
            for _ in range(30):
                ids = ALL.cuda()[block.contains("ad", ALL.cuda())]
                block.step((table(ids) - target[ids]).square().sum())
    report = probe.apply()["ad"]
    assert report.mse < 0.01 * report.variance


def test_a_probe_is_applied_once():
    table = make_table()
    probe = probed(table, planted(), passes=1, blocks=2)
    probe.apply()
    before = table.weight.detach().clone()
    with pytest.raises(ConfigError, match="once: begin another"):
        probe.apply()
    assert torch.equal(table.weight, before)


def test_a_block_is_left_before_another_is_entered():
    table = make_table()
    probe, other = (Probe({"ad": table}, blocks=2) for _ in range(2))
    with probe.block(0):
        for again in (probe, other):
            is_refused = pytest.raises(ConfigError, match="'ad': a block of a probe is entered")
            with is_refused, again.block(0):
                pass
    with probe.block(1):
        pass
    probe.apply()

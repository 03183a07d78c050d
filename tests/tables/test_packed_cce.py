"""CCE by total bytes: packed pointers, ids that share slots, and the rule that sizes both."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables import CCETable, PackedCCETable, Probe, build_table
from outsize.tables.bit_packing import bits_for, pack_bits, packed_bytes, read_bits
from outsize.tables.id_slots import empty_map, find_slots, map_bytes, slot_map

SPEC = TableSpec("ad", num_rows=600, dim=8)


def packed(num_slots=100, spec=SPEC, **options):
    return PackedCCETable(spec, num_buckets=16, num_slots=num_slots, columns=2, **options)


@settings(max_examples=25, deadline=None)
@given(bits=st.integers(1, 24), num=st.integers(1, 40), seed=st.integers(0, 99))
def test_packed_values_are_read_back_from_as_many_bits(bits, num, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1 << bits, (num,), generator=generator)
    found = pack_bits(values, bits)
    assert found.numel() == packed_bytes(num, bits) <= -(-num * bits // 8) + 3
    assert torch.equal(read_bits(found, torch.arange(num), bits), values)


def test_chunks_of_packed_values_end_at_whole_bytes():
    values = torch.arange((1 << 16) + 5) % 8
    assert torch.equal(read_bits(pack_bits(values, 3), torch.arange(values.numel()), 3), values)


@pytest.mark.parametrize(("num_values", "bits"), [(1, 1), (2, 1), (3, 2), (256, 8), (257, 9)])
def test_bits_tell_values_apart(num_values, bits):
    assert bits_for(num_values) == bits


@settings(max_examples=25, deadline=None)
@given(num_rows=st.integers(2, 200_000), share=st.floats(0.001, 0.999), seed=st.integers(0, 99))
def test_ids_of_a_map_are_found_and_no_others(num_rows, share, seed):
    num = max(1, int(min(num_rows, 2_000) * share))
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(num_rows, (num,), generator=generator).unique()
    starts, lows = slot_map(own, num_rows)
    size = sum(t.numel() * t.element_size() for t in (starts, lows))
    assert size == map_bytes(own.numel(), num_rows)
    slots, found = find_slots(own, starts, lows)
    assert found.all()
    assert torch.equal(slots, torch.arange(own.numel()))
    others = torch.randint(num_rows, (500,), generator=generator)
    assert torch.equal(find_slots(others, starts, lows)[1], torch.isin(others, own))
    assert not find_slots(others, *empty_map(own.numel(), num_rows))[1].any()


def test_frequent_ids_have_pointers_of_their_own_and_the_tail_shares():
    table = packed(num_slots=64)
    counts = torch.ones(600, dtype=torch.int64)
    frequent = torch.arange(5, 600, 10)  # in no order of ids
    counts[frequent] = 1000
    target = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    table.fit_rows(target, counts)
    assert (table.num_own, table.num_slots) == (60, 64)
    vectors = table(torch.arange(600)).detach()
    rare = torch.ones(600, dtype=torch.bool)
    rare[frequent] = False
    assert vectors[rare].unique(dim=0).shape[0] <= 4
    assert vectors[frequent].unique(dim=0).shape[0] > 30
    errors = (vectors - target).square().sum(dim=1)
    assert errors[frequent].mean() < 0.5 * errors[rare].mean()


def test_a_shared_slot_has_the_codes_nearest_to_the_mean_of_its_ids():
    table = packed(num_slots=16, shared=False)  # one shared slot
    rows = torch.zeros(600, 8)
    rows[15:, 0] = 5.0
    counts = torch.full((600,), 10)
    counts[:15] = 100
    table.fit_rows(rows, counts)
    torch.testing.assert_close(table(torch.arange(600)).detach(), rows)


def test_columns_that_share_codes_are_equally_wide():
    spec = TableSpec("ad", num_rows=600, dim=6)
    table = build_table("cce", spec, max_bytes=2_000, shared=True)
    assert table.shared
    assert spec.dim % table.columns == 0


def test_with_slots_for_all_a_packed_table_is_the_plain_one():
    plain = CCETable(SPEC, num_buckets=16, columns=2, seed=3)
    same = packed(num_slots=600, seed=3)
    ids = torch.arange(600)
    assert torch.equal(same(ids), plain(ids))
    counts = torch.arange(600)
    for table in (plain, same):
        report = table.recluster(counts=counts)
        table(ids).square().sum().backward()
    assert torch.equal(same(ids), plain(ids))
    torch.testing.assert_close(same.weight.grad, plain.weight.grad)
    assert report.pointer_bits == 2 * 5
    assert 0 < report.entropy_bits <= report.pointer_bits
    assert 4 * same.memory_use().bytes_of("index") < 3 * plain.memory_use().bytes_of("index")


def test_codes_stand_for_ids_and_old_ones_are_refused():
    table = packed()
    ids = torch.tensor([0, 7, 599])
    for _ in range(2):
        codes = table.encode(ids)
        assert torch.equal(table.decode(codes), table(ids))
        table.recluster(counts=torch.arange(600))
    assert table.codes_version != codes.version


@pytest.mark.parametrize("num_slots", [100, 600])
@pytest.mark.parametrize("helper", [True, False])
def test_a_state_and_settings_restore_a_clustered_table(num_slots, helper):
    table = packed(num_slots)
    table.recluster(counts=torch.arange(600), helper=helper)
    again = PackedCCETable.from_settings(SPEC, {**table.settings(), "seed": 9})
    again.load_state_dict(table.state_dict())
    assert torch.equal(again(torch.arange(600)), table(torch.arange(600)))
    assert again.num_helper == (8 if helper else 0)


def test_a_probe_trains_and_clusters_packed_tables():
    table = packed(num_slots=600)
    some = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1))
    wanted = torch.cat([some[0, torch.arange(600) % 5], some[1, torch.arange(600) % 7]], dim=1)
    probe = Probe(
        {"ad": table}, {"ad": torch.ones(600, dtype=torch.int64)}, blocks=2, rate=0.5, helper=False
    )
    for number in range(probe.num_blocks):
        with probe.block(number) as block:
            for _ in range(20):
                ids = torch.arange(600)[block.contains("ad", torch.arange(600))]
                block.step((table(ids) - wanted[ids]).square().sum())
    probe.apply()
    assert (table(torch.arange(600)) - wanted).square().mean() < 0.1


@pytest.mark.parametrize(
    ("num_rows", "dim", "max_bytes"),
    [(6040, 32, 8_192), (6040, 32, 131_072), (20_000, 16, 2_048), (779_000, 16, 65_536)],
)
def test_a_budget_in_bytes_is_used_and_rows_get_their_part(num_rows, dim, max_bytes):
    spec = TableSpec("ad", num_rows, dim)
    table = build_table("cce", spec, max_bytes=max_bytes)
    use = table.memory_use()
    assert isinstance(table, PackedCCETable)
    assert 0.9 * max_bytes < use.total_bytes <= max_bytes
    assert 5 * use.bytes_of("parameters") >= max_bytes


def test_more_bytes_never_mean_a_larger_expected_error():
    spec = TableSpec("ad", 20_000, 16)
    own = [build_table("cce", spec, max_bytes=2**n).num_own for n in range(11, 19)]
    assert own[-1] == 20_000 > own[0]


def test_a_billion_rows_fit_a_small_budget_in_bytes():
    table = build_table("cce", TableSpec("huge", 10**9, 16), max_bytes=200_000)
    assert table.memory_use().total_bytes <= 200_000
    assert table(torch.tensor([0, 10**9 - 1])).shape == (2, 16)


def test_pointers_may_be_packed_with_a_budget_in_parameters_or_plain_in_bytes():
    table = build_table("cce", SPEC, max_params=128, pointers="packed")
    assert table.has_slots_for_all
    assert table.columns == 4
    plain = build_table("cce", SPEC, max_bytes=6_000, pointers="plain")
    assert isinstance(plain, CCETable)
    assert isinstance(build_table("cce", SPEC, max_bytes=6_000, pointers_on="cpu"), CCETable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 6_000, "pointers": "zipped"}, "plain or packed, but got 'zipped'"),
        ({"max_bytes": 6_000, "pointers": "packed", "pointers_on": "cpu"}, "is for plain pointers"),
        ({"max_bytes": 60}, "smallest cce table needs"),
    ],
)
def test_impossible_pointers_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build_table("cce", SPEC, **options)


def test_a_table_needs_slots():
    with pytest.raises(ConfigError, match="2 slots or more"):
        packed(num_slots=1)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
def test_a_trace_of_clustered_slots_looks_up_other_ids():
    """In a trace, sizes are tensors."""
    table = packed()
    table.recluster()
    assert not table.has_slots_for_all
    traced = torch.jit.trace(table, (torch.arange(5),), check_trace=False)
    ids = torch.arange(600)
    assert torch.equal(traced(ids), table(ids))

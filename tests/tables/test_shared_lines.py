"""Ids that share lines of pointers are clustered as their mean."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import DataError
from outsize.spec import TableSpec
from outsize.tables import PackedCCETable, Probe, block_clustering, build_table
from outsize.tables.shared_lines import LinePoints, SharedLines, SharedSums

SPEC = TableSpec("ad", num_rows=3_000, dim=8)


def rows_and_counts(skew, seed=0):
    generator = torch.Generator().manual_seed(seed)
    share = torch.arange(1, SPEC.num_rows + 1).double() ** -skew
    drawn = torch.multinomial(share, 20_000, replacement=True, generator=generator)
    rows = torch.randn(SPEC.num_rows, SPEC.dim, generator=generator)
    return rows, torch.bincount(drawn, minlength=SPEC.num_rows)


def error(table, rows, counts):
    """Weighted mean of the squared distance of vectors to given rows."""
    squares = (table(torch.arange(SPEC.num_rows)).detach() - rows).square().sum(dim=1).double()
    return float(squares @ counts.double() / counts.sum())


def in_blocks(table, rows, counts, blocks):
    """Cluster rows that arrive block by block; returns the report."""
    clustering = table.cluster_blocks(counts, blocks=blocks)
    for number in range(blocks):
        ids = clustering.ids_of(number)
        clustering.add(ids, rows[ids])
    return table.plan_blocks(clustering).apply()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("skew", [0.0, 1.1])
def test_vectors_that_share_slots_are_no_worse_than_one_vector_for_all(skew, shared):
    rows, counts = rows_and_counts(skew)
    mean = counts.double() @ rows.double() / counts.sum()
    of_mean = float((rows - mean).square().sum(dim=1).double() @ counts.double() / counts.sum())
    for fit in (
        lambda table: table.fit_rows(rows, counts),
        lambda table: in_blocks(table, rows, counts, 3),
    ):
        table = PackedCCETable(SPEC, num_buckets=16, num_slots=200, columns=2, shared=shared)
        fit(table)
        assert error(table, rows, counts) < of_mean


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("skew", [0.0, 1.1])
def test_the_error_of_a_report_counts_ids_that_share_slots(skew, blocks):
    rows, counts = rows_and_counts(skew)
    table = build_table("cce", SPEC, max_bytes=1_500)
    assert not table.has_slots_for_all
    report = in_blocks(table, rows, counts, blocks)
    assert report.mse == pytest.approx(error(table, rows, counts), rel=0.02)


@settings(max_examples=20, deadline=None)
@given(
    num_own=st.integers(1, 30), num_shared=st.integers(1, 5), counted=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_point_of_a_shared_line_is_the_weighted_mean_of_its_ids(
    num_own, num_shared, counted, seed
):
    generator = torch.Generator().manual_seed(seed)
    num = num_own + 20
    own = torch.randperm(num, generator=generator)[:num_own].sort().values
    rows = torch.randn(num, 6, generator=generator)
    counts = torch.randint(0, 4, (num,), generator=generator) if counted else None
    lines = SharedLines(own, num, num_shared, lambda ids: ids % num_shared)
    points = LinePoints(lines, lambda ids: rows[ids].view(1, -1, 3), counts)

    found = points(torch.arange(lines.num_lines)).view(lines.num_lines, 6)

    weights = torch.ones(num) if counts is None else counts
    torch.testing.assert_close(found[:num_own], rows[own])
    others = [i for i in range(num) if i not in own.tolist()]
    for line in range(num_shared):
        ids = [i for i in others if i % num_shared == line]
        assert points.counts[num_own + line] == weights[ids].sum()
        mass = weights[ids].double() + 1e-6
        wanted = (rows[ids].double() * mass.unsqueeze(1)).sum(dim=0) / mass.sum()
        torch.testing.assert_close(found[num_own + line], wanted.float())
    assert torch.equal(points.counts[:num_own], weights[own].long())


def test_ids_that_never_occur_share_slots_with_those_that_do():
    rows, counts = rows_and_counts(1.1)
    counts[2_000:] = 0
    for blocks in (1, 3):
        table = PackedCCETable(SPEC, num_buckets=16, num_slots=200, columns=2)
        in_blocks(table, rows, counts, blocks)
        assert torch.isfinite(table(torch.arange(SPEC.num_rows))).all()
        assert table(torch.arange(2_000, 3_000)).unique(dim=0).shape[0] <= 200 - table.num_own


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (torch.ones(7, dtype=torch.int64), r"3,000 numbers.*have the shape \(7,\)"),
        (torch.ones(3_001, dtype=torch.int64), r"3,000 numbers.*have the shape \(3001,\)"),
        (torch.arange(3_000) - 5, "between -5 and 2994"),
        (torch.full((3_000,), torch.nan), "between nan and nan"),
        (torch.zeros(3_000, dtype=torch.int64), "every count is 0"),
    ],
)
def test_counts_that_are_not_one_per_id_are_refused_and_nothing_changes(
    counts, message, unchecked_shapes
):
    table = PackedCCETable(SPEC, num_buckets=16, num_slots=200, columns=2)
    before = {name: value.clone() for name, value in table.state_dict().items()}
    for cluster in (
        lambda: table.recluster(counts=counts),
        lambda: table.fit_rows(torch.randn(3_000, 8), counts),
        lambda: table.cluster_blocks(counts, blocks=2),
    ):
        with pytest.raises(DataError, match=f"'ad'.*{message}"):
            cluster()
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


def test_ids_that_share_slots_are_summed_in_chunks(monkeypatch):
    """The sums of a whole block in float64 would take several times what its rows take."""
    sizes, add = [], SharedSums.add

    def counted(sums, ids, points, weights):
        sizes.append(ids.numel())
        add(sums, ids, points, weights)

    monkeypatch.setattr(SharedSums, "add", counted)
    monkeypatch.setattr(block_clustering, "CHUNK_POINTS", 128)
    rows, counts = rows_and_counts(1.1)
    table = PackedCCETable(SPEC, num_buckets=16, num_slots=200, columns=2)
    in_blocks(table, rows, counts, 2)
    assert 0 < max(sizes) <= 128


@pytest.mark.parametrize("shared", [True, False])
def test_the_memory_of_a_probe_counts_the_sums_of_shared_slots(shared):
    table = PackedCCETable(SPEC, num_buckets=16, num_slots=320, columns=2, shared=shared)
    probe = Probe({"ad": table}, blocks=3)
    with probe.block(0):
        pass
    use = probe.memory_by_table()["ad"]
    num_sums = 20 * (SPEC.dim + 1) if shared else 20 * (SPEC.dim + 2)  # with a weight per group
    assert use.bytes_of("cache") == 8 * num_sums
    assert use.bytes_of("index") == 8 * 1_000 + 2 * SPEC.num_rows

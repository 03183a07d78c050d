"""Variants of Appendix A do what the CCE text says of them."""

import pytest
import torch

from benchmarks.cce.appendix_a import OWN_TABLES, VARIANTS
from benchmarks.cce.cce_variants import (
    HelpersTable,
    LargeSketchTable,
    ResidualHelperTable,
    iterated_table,
    seeded_table,
)
from benchmarks.cce.residual_quantization import ResidualQuantizedTable
from outsize import Probe, TableSpec
from outsize.spec import Budget
from outsize.tables import TABLES, CCETable

SPEC = TableSpec("ad", num_rows=300, dim=8)
IDS = torch.arange(300)
CAP = Budget(max_params=320, max_bytes=None)


def trained(kind, steps=40, **options):
    """A table that has learned smooth vectors, and its optimizer."""
    table = kind.within(SPEC, CAP, seed=1, **options)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    wanted = torch.sin(IDS.unsqueeze(1) / 50 + torch.arange(8))
    for _ in range(steps):
        optimizer.zero_grad()
        (table(IDS) - wanted).square().mean().backward()
        optimizer.step()
    return table, optimizer


@pytest.mark.parametrize("name", OWN_TABLES)
def test_a_variant_keeps_to_the_budget(name):
    table = OWN_TABLES[name].within(SPEC, CAP)
    size = sum(weight.numel() for weight in table.parameters())
    largest = CAP.max_params * (1 + 4 * (name == "cce-large-sketch"))
    assert 0.8 * CAP.max_params < size <= largest


def test_every_variant_names_a_table_there_is():
    known = {*TABLES, *OWN_TABLES, "seeded", "seeded-codes"}
    assert {variant.method for variant in VARIANTS.values()} <= known


def test_all_helpers_are_zero_with_new_hashes_after_a_clustering():
    table, optimizer = trained(HelpersTable)
    hashes, vectors = table.further_hashes.clone(), table(IDS).detach()
    table.recluster(optimizer)
    assert not table.helpers[0].any()
    assert not torch.equal(hashes, table.further_hashes)
    assert table.helpers[0] not in optimizer.state
    error = (table(IDS) - vectors).square().mean()
    assert error < 0.5 * vectors.var()
    again = HelpersTable.within(SPEC, CAP, seed=1)
    assert torch.equal(again.further_hashes, hashes)


def test_helpers_are_zero_after_a_probed_clustering_too():
    table, optimizer = trained(HelpersTable)
    probe = Probe({"ad": table}, blocks=1)
    with probe.block(0) as block:
        block.step(table(IDS).square().mean())
    probe.apply(optimizer)
    assert not table.helpers[0].any()


def test_a_large_sketch_serves_until_the_first_clustering():
    table, optimizer = trained(LargeSketchTable, factor=3)
    assert torch.equal(table(IDS), table.sketch(IDS))
    sketched = table.sketch(IDS).detach()
    table.recluster(optimizer)
    with torch.no_grad():
        table.sketch.weight.zero_()
    assert (table(IDS) - sketched).square().mean() < 0.5 * sketched.var()


def test_a_helper_that_starts_at_residuals_loses_less():
    counts = torch.arange(1, 301)
    lost = {}
    for kind in (CCETable, ResidualHelperTable):
        table, optimizer = trained(kind)
        before = table(IDS).detach()
        table.recluster(optimizer, counts)
        error = (table(IDS) - before).square().sum(dim=1)
        lost[kind] = (error * counts).sum().item()
    assert lost[ResidualHelperTable] < 0.95 * lost[CCETable]


@pytest.mark.parametrize("kind", [ResidualHelperTable, ResidualQuantizedTable])
def test_variants_take_what_probed_rows_say(kind):
    """Rows that are moved far from where they start are what is clustered."""
    table, optimizer = trained(kind)
    probe = Probe({"ad": table}, {"ad": torch.arange(300)}, blocks=2)  # id 0 never occurs
    wanted = torch.cos(IDS.unsqueeze(1) / 30) + torch.zeros(8)
    for number in range(2):
        with probe.block(number) as block:
            rows = block.rows["ad"]
            rows.rows.data[:] = wanted[rows.ids]
    probe.apply(optimizer)
    error = (table(IDS) - wanted)[1:].square().mean()
    assert error < 0.1 * wanted.var()
    assert table.weight not in optimizer.state


@pytest.mark.parametrize("keep_codes", [True, False])
def test_seeding_takes_pointers_from_given_rows(keep_codes):
    rows = torch.sin(IDS.unsqueeze(1) / 50 + torch.arange(8))
    table = seeded_table({"ad": rows}, keep_codes).within(SPEC, CAP)
    assert table.num_helper == 0
    close = (table(IDS) - rows).square().mean() < 0.1 * rows.var()
    assert bool(close) == keep_codes
    other = seeded_table({"ad": rows}, not keep_codes).within(SPEC, CAP)
    assert torch.equal(table.pointers, other.pointers)


def test_more_iterations_fit_no_worse():
    errors = []
    for iterations in (1, 50):
        table, optimizer = trained(iterated_table(iterations))
        errors.append(table.recluster(optimizer).mse)
    assert errors[1] < errors[0]


def test_residual_quantization_points_into_both_halves():
    table, optimizer = trained(ResidualQuantizedTable)
    before = table(IDS).detach()
    hashed = table.pointers.clone()
    report = table.recluster(optimizer)
    first = table.num_buckets - table.num_buckets // 2
    assert table.pointers[:, 0].max() < first <= table.pointers[:, 1].min()
    assert not torch.equal(hashed, table.pointers)
    assert (table.importance == 1).all()
    assert table.importance not in optimizer.state
    assert report.mse < 0.5 * report.variance
    one_level = (table.weight[table.pointers[:, 0]] - before).square().sum()
    assert (table(IDS) - before).square().sum() < one_level

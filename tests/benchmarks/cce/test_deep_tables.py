"""DHE of any depth, and a network over hashed rows."""

import pytest
import torch

from benchmarks.cce.deep_tables import HashedNetworkTable
from benchmarks.cce.dhe_depth import DEPTHS, OWN_TABLES, VARIANTS
from outsize import TableSpec
from outsize.spec import Budget
from outsize.tables import TABLES, DHETable

SPEC = TableSpec("ad", num_rows=500, dim=16)
IDS = torch.arange(500)
CAP = Budget(max_params=2_000, max_bytes=None)


@pytest.mark.parametrize("name", OWN_TABLES)
def test_sizes_fill_the_budget_and_vectors_have_the_scale_of_a_table(name):
    table = OWN_TABLES[name].within(SPEC, CAP, seed=3)
    size = sum(weight.numel() for weight in table.parameters())
    assert 0.85 * CAP.max_params < size <= CAP.max_params
    assert table(IDS).std().item() == pytest.approx(SPEC.init.std_for(16), rel=0.2)
    assert not torch.equal(table(IDS)[0], table(IDS)[1])
    table(IDS).square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in table.parameters())


def test_depth_three_has_the_size_of_dhe():
    ours, product = OWN_TABLES["deep-3"].within(SPEC, CAP), DHETable.within(SPEC, CAP)
    assert ours.settings()["width"] == product.settings()["width"]
    assert [len(OWN_TABLES[f"deep-{depth}"].within(SPEC, CAP).layers) for depth in DEPTHS] == list(
        DEPTHS
    )


def test_hashed_rows_are_looked_up_in_one_segment_per_hash():
    table = HashedNetworkTable.within(SPEC, CAP)
    with torch.no_grad():
        table.rows[table.num_rows :] = 0
    ids = torch.arange(200)
    table(ids).sum().backward()
    touched = table.rows.grad.view(4, table.num_rows, -1).abs().sum(dim=(1, 2))
    assert (touched > 0).all()


def test_every_variant_names_a_table_there_is():
    assert {variant.method for variant in VARIANTS.values()} <= {*TABLES, *OWN_TABLES}

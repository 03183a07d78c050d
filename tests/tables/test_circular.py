"""Circular clustering collapses, as its text says, and the diagnosis shows it."""

import warnings

import pytest
import torch

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables import CCETable, CircularTable

SPEC = TableSpec("ad", num_rows=4000, dim=8)


def trained(table, rounds):
    """Train towards smooth targets and recluster, several times; the last report."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(4000, 8, generator=generator)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    report = None
    for _ in range(rounds):
        for _ in range(40):
            optimizer.zero_grad()
            (table(torch.arange(4000)) - target).square().mean().backward()
            optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = table.recluster(optimizer)
    return report


def test_circular_clustering_collapses_and_cce_does_not():
    circular = trained(CircularTable(SPEC, num_buckets=32, columns=4), rounds=6)
    cce = trained(CCETable(SPEC, num_buckets=64, columns=4, shared=False), rounds=6)
    assert circular.warning.startswith("collapse")
    assert not cce.warning.startswith("collapse")
    gain = circular.entropies[1] - circular.entropies[0]
    assert gain < 0.5 * (cce.entropies[1] - cce.entropies[0])


def test_a_collapse_is_a_warning_in_plain_words():
    table = CircularTable(SPEC, num_buckets=32, columns=2)
    with torch.no_grad():
        table.pointers[:, 1] = table.pointers[:, 0]
    with pytest.warns(UserWarning, match="'ad': collapse: two columns say nearly the same"):
        table.recluster()


def test_one_column_has_no_others():
    with pytest.raises(ConfigError, match="needs 2 columns or more"):
        CircularTable(SPEC, num_buckets=8, columns=1)

"""Fused look-ups and updates equal the steps they replace, bit for bit."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.kernels.distinct.distinct import distinct
from outsize.kernels.fused import fused as module
from outsize.kernels.fused.fused import RowsInPlace, read_columns, train_rows
from outsize.kernels.gather import gather
from outsize.kernels.gather.gather import Bags, sum_lines
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule

pytest.importorskip("numba")
RULES = [
    SGDRule(0.1, compiled=True),
    AdagradRule(0.1, 1e-8, row_wise=True, compiled=True),
    AdagradRule(0.1, initial_sum=0.5, compiled=True),
    AdamRule(0.01, compiled=True),
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    monkeypatch.setattr(module, "_BUCKET_IDS", 16)
    monkeypatch.setattr(module, "_LEAST_PER_THREAD", 8)
    monkeypatch.setattr(gather, "BLOCK", 8)


def make_table(rule, num_rows, dim, start=0):
    draw = torch.Generator().manual_seed(0)
    state = {
        name: torch.rand(num_rows, width, generator=draw)
        for name, width in rule.state_widths(dim).items()
    }
    clocks = torch.zeros(num_rows, dtype=torch.int32)
    return RowsInPlace(torch.randn(num_rows, dim, generator=draw), state, clocks, start)


def copy_of(table):
    state = {name: part.clone() for name, part in table.state.items()}
    return replace(table, rows=table.rows.clone(), state=state, clocks=table.clocks.clone())


def train_step_by_step(table, rule, ids, bags, gradients):
    found = distinct(ids - table.start, table.rows.shape[0])
    total = sum_lines(gradients, found, bags)
    ones = torch.ones_like(found.ids)
    assert rule.update(table.rows, table.state, table.clocks, found.ids, total, ones)


def assert_same(one, other):
    assert torch.equal(one.rows, other.rows)
    assert torch.equal(one.clocks, other.clocks)
    for name, part in one.state.items():
        assert torch.equal(part, other.state[name]), name


@given(
    seed=st.integers(0, 1000),
    num_ids=st.sampled_from([0, 1, 2, 60, 500]),
    num_rows=st.sampled_from([1, 2, 7, 1000, 5000]),
    dim=st.sampled_from([1, 3, 8, 16, 21, 40]),
    rule=st.sampled_from(RULES),
    kind=st.sampled_from(["ids", "one id", "bags", "scaled bags"]),
    threads=st.integers(1, 3),
)
def test_it_equals_separate_steps(seed, num_ids, num_rows, dim, rule, kind, threads):
    draw = torch.Generator().manual_seed(seed)
    ids = (torch.rand(num_ids, generator=draw) ** 3 * num_rows).long() + 5
    if kind == "one id":
        ids = torch.full_like(ids, 5 + num_rows // 2)
    bags, num_lines = None, num_ids
    if "bags" in kind:
        cuts = torch.randint(0, num_ids + 1, (9,), generator=draw).sort().values
        edges = torch.cat((torch.tensor([0]), cuts, torch.tensor([num_ids])))
        scales = torch.randn(num_ids, generator=draw) if kind == "scaled bags" else None
        bags, num_lines = Bags(edges, scales), 10
    gradients = torch.randn(num_lines, dim, generator=draw)
    expected = make_table(rule, num_rows, dim, start=5)
    table = copy_of(expected)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert train_rows(table, rule.kernel_settings(), ids, bags, gradients)
        train_step_by_step(expected, rule, ids, bags, gradients)
    finally:
        torch.set_num_threads(before)
    assert_same(table, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_gradients_whose_sum_may_not_be_finite_change_nothing(value):
    table = make_table(RULES[1], 10, 4)
    before = copy_of(table)
    gradients = torch.ones(3, 4)
    gradients[1, 2] = value
    ids = torch.tensor([1, 1, 2])
    assert not train_rows(table, RULES[1].kernel_settings(), ids, None, gradients)
    scales = torch.tensor([1.0, value, 1.0])
    bags = Bags(torch.arange(4), scales)
    assert not train_rows(table, RULES[1].kernel_settings(), ids, bags, torch.full((3, 4), 2.0))
    assert_same(table, before)


def test_tables_of_other_types_are_left_to_torch():
    table = make_table(RULES[0], 10, 4)
    table = replace(table, rows=table.rows.bfloat16())
    ids = torch.tensor([1])
    assert not train_rows(table, RULES[0].kernel_settings(), ids, None, torch.ones(1, 4))


@given(
    seed=st.integers(0, 1000),
    num=st.sampled_from([0, 1, 5, 300]),
    width=st.sampled_from([1, 3, 26]),
    dim=st.sampled_from([1, 7, 16, 130]),
)
def test_columns_are_read_as_torch_reads_them(seed, num, width, dim):
    draw = torch.Generator().manual_seed(seed)
    bounds = torch.randint(1, 50, (width,), generator=draw)
    offsets = bounds.cumsum(0) - bounds
    rows = torch.randn(int(bounds.sum()), dim, generator=draw)
    ids = (torch.rand(num, width, generator=draw) * bounds).long()
    columns = list(ids.unbind(1))  # not contiguous
    found, lines = read_columns(rows, columns, bounds, offsets)
    expected = (ids + offsets).flatten()
    assert torch.equal(found, expected)
    assert torch.equal(lines, rows[expected])


@pytest.mark.parametrize("bad", [-1, 4, 2**62, -(2**62)])
def test_ids_out_of_bounds_are_not_read(bad):
    bounds, offsets = torch.tensor([3, 4]), torch.tensor([0, 3])
    columns = [torch.tensor([0, 2, 1]), torch.tensor([3, bad, 0])]
    assert read_columns(torch.zeros(7, 2), columns, bounds, offsets) is None

"""Passes of a round with other owners do what the torch passes do, one after the other."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.compiled import numba_problem
from outsize.kernels.copies import passes
from outsize.kernels.copies.due import pending_at
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.copies.rounds import Request, cache_in_place, list_new
from outsize.kernels.copies.survey import Prices
from outsize.kernels.wire.scaled_bytes import round_rows

NUM_SLOTS = 40
ROUNDED = {1: torch.int8, 2: torch.int16}
pytestmark = pytest.mark.skipif(numba_problem() is not None, reason=f"{numba_problem()}")


@pytest.fixture(autouse=True)
def compiles_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


def two_caches(dim, width, draw):
    """The same cache twice, and the rows in its slots, by ascending id."""

    def numbers(low, high, dtype):
        return torch.randint(low, high, (NUM_SLOTS,), generator=draw, dtype=dtype)

    pending = torch.randn(NUM_SLOTS, dim, generator=draw)
    pending[numbers(0, 2, torch.bool)] = 0.0
    copies = CopyLines(
        rows=torch.randn(NUM_SLOTS, dim, generator=draw),
        clocks=numbers(-1, 5, torch.int64),
        ticks=numbers(0, 4, torch.int32),
        pending=pending,
        squares=torch.rand(NUM_SLOTS, width, generator=draw) if width else None,
        leftover=numbers(0, 2, torch.int32) == 1,
        checks=numbers(14, 17, torch.int32),
        balance=numbers(-9, 9, torch.int64),
    )  # fmt: skip
    other = CopyLines(*(None if p is None else p.clone() for p in vars(copies).values()))
    return copies, other, 3 * torch.randperm(NUM_SLOTS, generator=draw)


def assert_same(copies, other):
    for field in fields(copies):
        value, expected = getattr(copies, field.name), getattr(other, field.name)
        assert value is expected is None or torch.equal(value, expected), field.name


@given(
    seed=st.integers(0, 2**16),
    dim=st.sampled_from([1, 3, 8, 21]),
    width=st.sampled_from([0, 1, 3]),
    number_bytes=st.sampled_from([1, 2, 4]),
    bound=st.sampled_from([0, 1, 2, float("inf")]),
    keeps_error=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_due_is_taken_and_settled_as_by_torch(
    seed, dim, width, number_bytes, bound, keeps_error
):
    draw = torch.Generator().manual_seed(seed)
    copies, other, held = two_caches(dim, width, draw)
    cache = cache_in_place(copies, {}, held)
    touched = torch.randperm(NUM_SLOTS, generator=draw)[:25]
    due = touched[copies.ticks[touched] > bound]
    ascending = cache.due_in_order(touched, bound)
    assert (ascending is not None) == torch.equal(held[due], held[due].sort().values)
    touched = touched[held[touched].argsort()]
    slots = cache.due_in_order(touched, bound)
    assert torch.equal(slots, touched[copies.ticks[touched] > bound])
    taken = cache.take_pushed(slots, number_bytes, 7, keeps_error=keeps_error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "torch")
        expected = pending_at(other, held, slots, torch.arange(len(slots)))
        gradients = expected.gradients
        sent = gradients if number_bytes == 4 else round_rows(gradients, ROUNDED[number_bytes])
        passes.settle(other, slots, gradients, expected.ticks, sent, 7, keeps_error=keeps_error)
    assert_same(copies, other)
    for value, reference in zip(taken, expected, strict=True):
        assert value is reference is None or torch.equal(value, reference)


@given(
    seed=st.integers(0, 2**16),
    dim=st.sampled_from([1, 3, 8, 21]),
    num=st.sampled_from([0, 1, 9, 30]),
    staleness=st.sampled_from([0, 4]),
)
@settings(max_examples=40, deadline=None)
def test_a_read_is_finished_as_by_torch(seed, dim, num, staleness):
    draw = torch.Generator().manual_seed(seed)
    copies, other, held = two_caches(dim, 1, draw)
    cache, prices = cache_in_place(copies, {}, held), Prices(5, 4, 16)
    slots = torch.randperm(NUM_SLOTS + num, generator=draw)[:num] - num
    slots[slots < 0] = -3
    stale = (torch.rand(num, generator=draw) < 0.5) | (slots < 0)
    sent, sent_clocks = torch.randn(num, dim, generator=draw), torch.arange(num)
    asked = cache.asked_clocks(slots, staleness)
    rows, clocks = sent.clone(), sent_clocks.clone()
    done = cache.finish_read(Request(slots, stale, asked, clocks, rows), prices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "torch")
        start = passes.held_clocks(other, slots)
        was_held = start >= 0
        assert torch.equal(asked, torch.where(was_held, start + staleness, -1))
        expected = passes.read(other, slots, stale, sent[stale], sent_clocks[stale])
        costly = passes.count_checks(other, slots, was_held, stale, *prices)
    assert_same(copies, other)
    assert torch.equal(rows, expected[0])
    assert torch.equal(clocks, expected[1])
    assert torch.equal(done.copied, (slots >= 0).nonzero().flatten())
    assert torch.equal(done.slots, slots[slots >= 0])
    assert torch.equal(done.others, (slots < 0).nonzero().flatten())
    assert torch.equal(done.costly, costly)
    assert done.num_hits == int((was_held & ~stale).sum())


def test_slots_are_listed_once():
    listed = torch.zeros(9, dtype=torch.bool)
    assert list_new(listed, torch.tensor([4, 1])).tolist() == [4, 1]
    assert list_new(listed, torch.tensor([1, 8, 4, 0])).tolist() == [8, 0]
    assert listed.nonzero().flatten().tolist() == [0, 1, 4, 8]

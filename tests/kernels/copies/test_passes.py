"""Compiled passes over copies give the bits of torch."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.copies import passes
from outsize.kernels.copies.passes import CopyLines

pytest.importorskip("numba")


def copies_of(num_slots, dim, width, draw):
    def numbers(low, high, dtype):
        return torch.randint(low, high, (num_slots,), generator=draw, dtype=dtype)

    return CopyLines(
        rows=torch.randn(num_slots, dim, generator=draw),
        clocks=numbers(-1, 5, torch.int64),
        ticks=numbers(0, 3, torch.int32),
        pending=torch.randn(num_slots, dim, generator=draw),
        squares=torch.rand(num_slots, width, generator=draw) if width else None,
        leftover=numbers(0, 2, torch.int32) == 1,
        checks=numbers(14, 17, torch.int32),
        balance=numbers(-9, 9, torch.int64),
    )


def clone(value):
    if isinstance(value, CopyLines):
        return CopyLines(*(clone(getattr(value, field.name)) for field in fields(value)))
    return value.clone() if isinstance(value, torch.Tensor) else value


def run_all(copies, state, slots, gradients, ticks, squares, stale, sent, clocks, divisor):
    """All passes one after the other; what they return and what they leave."""
    added = passes.add_pending(copies, slots, gradients, ticks, squares, divisor, 7)
    found = [added.slots, added.ticks, added.gradients.clone()]
    copies.ticks.index_add_(0, added.slots, added.ticks.int())
    found.append(passes.refresh(copies, state, slots, stale, sent, clocks, {"sum": sent[:, :1]}))
    found += passes.read(copies, slots, stale, sent, clocks)
    found.append(passes.held_clocks(copies, slots))
    was_held = (slots >= 0) & (torch.arange(len(slots)) % 3 > 0)
    found.append(passes.count_checks(copies, slots, was_held, stale, 5, 4, 16))
    half = slots[slots >= 0][::2]
    pending, seen = copies.pending[half], copies.ticks[half].long()
    rounded = torch.where(torch.arange(len(half)).unsqueeze(1) % 2 > 0, pending, pending.round())
    passes.settle(copies, half, pending, seen, rounded, 7, keeps_error=divisor is not None)
    left = [getattr(copies, field.name) for field in fields(copies)]
    return [*found, *left, *state.values()]


@given(
    seed=st.integers(0, 2**16),
    num_slots=st.sampled_from([1, 3, 40]),
    num=st.sampled_from([0, 1, 9, 30]),
    dim=st.sampled_from([1, 3, 11, 16]),
    width=st.sampled_from([0, 1, 3]),
    divisor=st.sampled_from([None, 1, 3, 4]),
)
@settings(max_examples=15, deadline=None)
def test_compiled_passes_give_the_bits_of_torch(seed, num_slots, num, dim, width, divisor):
    draw = torch.Generator().manual_seed(seed)
    copies = copies_of(num_slots, dim, width, draw)
    slots = torch.randperm(num_slots + num, generator=draw)[:num] - num
    stale = (torch.rand(num, generator=draw) < 0.5) | (slots < 0)
    num_sent = int(stale.sum())
    given = [
        slots,
        torch.randn(num, dim, generator=draw),
        torch.randint(1, 4, (num,), generator=draw),
        torch.rand(num, width, generator=draw) if width else None,
        stale,
        torch.randn(num_sent, dim, generator=draw),
        torch.randint(0, 9, (num_sent,), generator=draw),
    ]
    results = []
    for engine in ("numba", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTSIZE_KERNELS", engine)
            mine, state = clone(copies), {"sum": torch.ones(num_slots, 1)}
            assert (mine.kernels() is None) == (engine == "torch")
            results.append(run_all(mine, state, *(clone(value) for value in given), divisor))
    for compiled, plain in zip(*results, strict=True):
        assert (compiled is None and plain is None) or torch.equal(compiled, plain)


def test_half_precision_is_left_to_torch(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    copies = copies_of(3, 2, 0, torch.Generator().manual_seed(0))
    assert copies.kernels() is not None
    halves = CopyLines(
        copies.rows.bfloat16(), *(getattr(copies, f.name) for f in fields(copies)[1:])
    )
    assert halves.kernels() is None

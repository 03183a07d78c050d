"""Slots of ids, compiled: those that torch finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from look_ups import torchs_slots

from outsize.hashing import draw_hashes
from outsize.kernels.compositional.slots import SlotMap, found_slots
from outsize.tables.id_slots import empty_map, slot_map

pytest.importorskip("numba")


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.sampled_from([1, 2, 255, 256, 257, 5_000, 70_000, 1_000_000]),
    share=st.sampled_from([0.0, 0.001, 0.01, 0.2, 0.9, 1.0]),
    is_dense_at_first=st.booleans(),
    num_ids=st.sampled_from([0, 1, 2, 300, 3_000]),
    num_shared=st.sampled_from([1, 7, 1 << 24]),
    seed=st.integers(0, 1000),
)
def test_compiled_slots_equal_torchs(num_rows, share, is_dense_at_first, num_ids, num_shared, seed):
    """With low parts of 8 bits and of 16, and blocks that are empty, full and in between."""
    draw = torch.Generator().manual_seed(seed)
    num_own = max(1, int(share * num_rows))
    order = (
        torch.arange(num_rows) if is_dense_at_first else torch.randperm(num_rows, generator=draw)
    )
    own = order[:num_own].sort().values
    hashes = draw_hashes(2, seed)
    ids = torch.randint(0, num_rows, (num_ids,), generator=draw)
    ids[::2] = own[torch.randint(0, num_own, ids[::2].shape, generator=draw)]
    for starts, lows in (slot_map(own, num_rows), empty_map(num_own, num_rows)):
        slots = SlotMap(starts, lows, hashes, num_shared, 2 * num_rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTSIZE_KERNELS", "numba")
            found = found_slots(ids, slots)
        assert torch.equal(found, torchs_slots(ids, slots))


def test_blocks_of_many_ids_are_searched(monkeypatch):
    """More than are compared at once; such a map would usually have low parts of 8 bits."""
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    own = torch.randperm(65_536)[:40_000].sort().values
    starts = torch.tensor([0, 40_000], dtype=torch.int32)
    slots = SlotMap(starts, own.to(torch.int16), draw_hashes(1, 0), 5, 0)
    ids = torch.arange(65_536)
    assert torch.equal(found_slots(ids, slots), torchs_slots(ids, slots))


def test_more_shared_slots_than_a_short_hash_tells_apart_are_left_to_torch(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    starts, lows = slot_map(torch.arange(3), 10)
    slots = SlotMap(starts, lows, draw_hashes(1, 0), (1 << 24) + 1, 0)
    assert found_slots(torch.arange(10), slots) is None

"""Indexes of slots against a dictionary, after any history."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.directory import slots as slots_module
from outsize.kernels.directory.slots import HashedSlots, SortedSlots, slot_index

pytest.importorskip("numba")
WIDE = 1 << 40


@pytest.fixture(autouse=True)
def compiled_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


def indexes(num_slots, num_ids):
    return [HashedSlots(num_slots, num_ids), SortedSlots()]


@given(
    seed=st.integers(0, 2**16),
    num_slots=st.sampled_from([1, 2, 5, 33]),
    num_ids=st.sampled_from([1, 40, 1 << 32, WIDE]),
)
@settings(max_examples=10, deadline=None)
def test_every_index_finds_what_a_dictionary_finds(seed, num_slots, num_ids):
    draw = torch.Generator().manual_seed(seed)
    # Both ends of the range, and ids that share their lower half.
    known = torch.tensor([0, num_ids - 1, *range(40), *(5 + (k << 32) for k in range(9))])
    known = known[known < num_ids].unique()
    held = torch.full((num_slots,), -1)
    both = indexes(num_slots, num_ids)
    for _ in range(12):
        free = (held < 0).nonzero().flatten()
        absent = known[~torch.isin(known, held)]
        num = min(len(free), len(absent), int(torch.randint(0, 4, (), generator=draw)) * num_slots)
        ids = absent[torch.randperm(len(absent), generator=draw)[:num]]
        places = free[torch.randperm(len(free), generator=draw)[:num]]
        held[places] = ids
        for index in both:
            index.put(ids, places, held)
        expected = {int(key): slot for slot, key in enumerate(held.tolist()) if key >= 0}
        for index in both:
            found = index.find(known, held).tolist()
            assert found == [expected.get(key, -1) for key in known.tolist()]
            assert index.find(known[:0], held).tolist() == []
        gone = (held >= 0).nonzero().flatten()
        gone = gone[torch.rand(len(gone), generator=draw) < 0.4]
        for index in both:
            index.remove(held[gone], held)
        held[gone] = -1


@given(
    seed=st.integers(0, 2**16),
    num_slots=st.sampled_from([1, 5, 33]),
    number=st.integers(1, 4),
    num=st.sampled_from([0, 1, 20, 70]),
)
@settings(max_examples=20, deadline=None)
def test_other_ids_are_found_and_own_ones_skipped(seed, num_slots, number, num):
    draw = torch.Generator().manual_seed(seed)
    held = torch.randperm(80, generator=draw)[:num_slots]
    index = HashedSlots(num_slots, 80)
    index.rebuild(held)
    ids = torch.randperm(80, generator=draw)[:num].sort().values
    own = int(torch.randint(number, (), generator=draw))
    slots, others, places, found = index.find_others(ids, held, own, number, -3)
    is_other = ids % number != own
    assert torch.equal(places, is_other.nonzero().flatten())
    assert torch.equal(others, ids[is_other])
    assert torch.equal(found, index.find(ids[is_other], held))
    assert torch.equal(slots, torch.where(is_other, index.find(ids, held), -3))


def test_many_removals_leave_a_table_as_a_new_one_would_be():
    held = torch.arange(50) * 7
    index = slot_index(held, 10**6)
    for turn in range(200):
        ids = held.clone()
        index.remove(ids, held)
        held.copy_((torch.arange(50) + turn) * 13 % 997)
        index.put(held, torch.arange(50), held)
    assert int((index.entries != 0).sum()) == 50
    assert index.find(held, held).tolist() == list(range(50))
    index.remove(held, held)
    assert not bool(index.entries.any())


def test_a_table_takes_16_bytes_per_slot_and_small_ones_are_left_to_torch(monkeypatch):
    held = torch.full((slots_module.LEAST_SLOTS,), -1)
    (entries,) = slot_index(held, 10**9).tensors()
    assert entries.nbytes == 16 * slots_module.LEAST_SLOTS
    monkeypatch.delenv("OUTSIZE_KERNELS")
    assert isinstance(slot_index(held, 10**9), HashedSlots)
    assert isinstance(slot_index(held[:-1], 10**9), SortedSlots)


def test_a_sorted_index_merges_its_short_list(monkeypatch):
    monkeypatch.setattr(slots_module, "_LEAST_RECENT", 3)
    held, index = torch.full((9,), -1), SortedSlots()
    for slot in range(9):
        held[slot] = 100 - slot
        index.put(held[slot : slot + 1], torch.tensor([slot]), held)
        assert index.find(held[: slot + 1], held).tolist() == list(range(slot + 1))

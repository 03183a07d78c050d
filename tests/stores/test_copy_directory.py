"""The directory of a cache against one that keeps a slot for every row of the table."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.stores.copy_directory import NO_COPY, UNPROFITABLE, CopyDirectory
from outsize.stores.eviction import EVICTION
from outsize.stores.recent_ids import RecentIds

NUM_ROWS = 30


class PlainDirectory:
    """What a directory promises, by a look at every row and every slot."""

    def __init__(self, num_slots, policy):
        self.policy = policy
        self.slot_of, self.ids = torch.full((NUM_ROWS,), NO_COPY), torch.full((num_slots,), -1)

    def find(self, ids):
        return self.slot_of[ids]

    def choose(self, ids, slots):
        known = slots != UNPROFITABLE
        self.policy.used(ids[known], slots[known])
        taken = self.ids >= 0
        evictable = taken.index_fill(0, slots[slots >= 0], False)
        num_free = int((~taken).sum())
        chosen, victims = self.policy.choose(ids[slots == NO_COPY], num_free, evictable)
        free = (~taken).nonzero().flatten()[: int(chosen.sum()) - len(victims)]
        return chosen, torch.cat([free, victims]), victims

    def assign(self, ids, slots):
        self.slot_of[ids], self.ids[slots] = slots, ids
        self.policy.admitted(ids, slots)

    def evict(self, slots, mark=NO_COPY):
        ids = self.ids[slots]
        self.policy.removed(ids, slots)
        self.slot_of[ids], self.ids[slots] = mark, -1

    def drop(self, slots):
        self.evict(slots, UNPROFITABLE)

    def flush(self):
        self.slot_of[self.slot_of == UNPROFITABLE] = NO_COPY


def step(directory, ids):
    """One step, as `RowCopies` takes it."""
    slots = directory.find(ids)
    chosen, places, victims = directory.choose(ids, slots)
    directory.evict(victims)
    directory.assign(ids[slots == NO_COPY][chosen], places)
    return slots.tolist(), places.tolist(), victims.tolist()


@pytest.mark.parametrize("engine", ["numba", "torch"])
@pytest.mark.parametrize("name", EVICTION)
@given(seed=st.integers(0, 2**16), num_slots=st.sampled_from([1, 4, 12, NUM_ROWS]))
@settings(max_examples=4, deadline=None)
def test_it_decides_as_a_directory_of_all_rows(engine, name, seed, num_slots):
    if engine == "numba":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", engine)
        source = random.Random(seed)
        plain = PlainDirectory(num_slots, EVICTION[name](num_slots))
        directory = CopyDirectory(NUM_ROWS, num_slots, EVICTION[name](num_slots))
        num_marks = 0
        for _ in range(30):
            size = source.choice([0, 1, 4, 10, 25])
            ids = {min(source.randrange(NUM_ROWS) for _ in range(2)) for _ in range(size)}
            batch = torch.tensor(sorted(ids), dtype=torch.int64)
            assert step(plain, batch) == step(directory, batch)
            taken = (plain.ids >= 0).nonzero().flatten().tolist()
            drops = source.sample(taken, min(len(taken), source.choice([0, 0, 1, 3])))
            if source.random() < 0.2 or num_marks + len(drops) > num_slots:
                plain.flush()
                directory._unprofitable.clear()
                num_marks = 0
            for each in (plain, directory):
                each.drop(torch.tensor(drops, dtype=torch.int64))
            num_marks += len(drops)
            assert torch.equal(plain.slot_of, directory.find(torch.arange(NUM_ROWS)))
            if source.random() < 0.2:
                directory = reload(directory, num_slots, name, source.random() < 0.5)


def reload(directory, num_slots, name, copies):
    """The same directory, copied or saved and loaded."""
    if copies:
        return copy.deepcopy(directory)
    other = CopyDirectory(NUM_ROWS, num_slots, EVICTION[name](num_slots))
    other.load_state_dict(directory.state_dict())
    return other


def test_a_directory_without_slots_of_rows_loads_an_older_state_dict():
    directory = CopyDirectory(9, 3, EVICTION["lru"](3))
    directory.assign(torch.tensor([2, 7]), torch.tensor([0, 1]))
    state = dict(directory.state_dict())
    del state["unprofitable"]
    slot_of = torch.full((9,), -1, dtype=torch.int32)
    slot_of[[2, 7, 5]] = torch.tensor([0, 1, -2], dtype=torch.int32)
    other = CopyDirectory(9, 3, EVICTION["lru"](3))
    other.load_state_dict({**state, "slot_of": slot_of})
    assert torch.equal(other.find(torch.arange(9)), slot_of.long())


def test_nothing_in_it_is_as_long_as_the_table():
    directory = CopyDirectory(10**12, 4096, EVICTION["fading-lfu"](4096))
    directory.assign(torch.tensor([10**12 - 1]), torch.tensor([0]))
    directory.drop(torch.tensor([0]))
    assert directory.find(torch.tensor([10**12 - 1, 3])).tolist() == [UNPROFITABLE, NO_COPY]
    tensors = [*directory.buffers(), *directory.index_memory()]
    assert max(tensor.numel() for tensor in tensors) <= 8 * 4096


@given(
    most=st.sampled_from([1, 3, 300]),
    sizes=st.lists(st.sampled_from([0, 1, 2, 5, 250, 400]), max_size=6),
)
@settings(max_examples=10, deadline=None)
def test_the_latest_ids_are_remembered(most, sizes):
    recent, expected, first = RecentIds(most, 10**6), [], 0
    for size in sizes:
        recent.add(torch.arange(first, first + size))
        first += size
        expected = list(range(first))[-most:]
        assert recent.ids().tolist() == expected
        assert len(recent) == len(expected)
        assert recent.contain(torch.arange(first + 1)).nonzero().flatten().tolist() == expected
    recent.clear()
    assert not bool(recent.contain(torch.arange(first)).any())

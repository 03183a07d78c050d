"""Policies that find victims by a queue decide as they do by a look at every slot."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.stores.eviction import EVICTION, fading_lfu
from outsize.stores.eviction.count_min_sketch import CountMinSketch

pytest.importorskip("numba")
NUM_IDS = 40
every_policy = pytest.mark.parametrize("name", EVICTION)
few = settings(max_examples=6, deadline=None)


@pytest.fixture(autouse=True)
def compiled_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


class Cache:
    """A cache without rows, which asks a policy by `choose_from`, or by `choose` alone."""

    def __init__(self, name, num_slots, *, scans):
        self.policy = EVICTION[name](num_slots)
        self.slot_of, self.held = torch.full((NUM_IDS,), -1), torch.full((num_slots,), -1)
        self.scans = scans

    def step(self, ids):
        slots = self.slot_of[ids]
        missing, read = ids[slots < 0], slots[slots >= 0]
        free = (self.held < 0).nonzero().flatten()
        self.policy.used(ids, slots)
        if self.scans:
            evictable = (self.held >= 0).index_fill(0, read, False)
            admit, victims = self.policy.choose(missing, len(free), evictable)
        else:
            admit, victims = self.policy.choose_from(missing, len(free), self.held, read)
        entering = missing[admit]
        places = torch.cat([free[: len(entering) - len(victims)], victims])
        self.remove(victims)
        self.slot_of[entering], self.held[places] = places, entering
        self.policy.admitted(entering, places)
        return entering.tolist(), victims.tolist()

    def remove(self, slots):
        ids = self.held[slots]
        self.policy.removed(ids, slots)
        self.slot_of[ids], self.held[slots] = -1, -1


def histories(seed, num_slots, num_steps):
    """Reads, mostly of low ids, and now and then copies that are dropped, or a saved state."""
    source = random.Random(seed)
    for _ in range(num_steps):
        size = source.choice([0, 1, 3, 8, NUM_IDS])
        ids = {min(source.randrange(NUM_IDS) for _ in range(2)) for _ in range(size)}
        drops = source.sample(range(num_slots), min(num_slots, 3)) if source.random() < 0.3 else []
        yield torch.tensor(sorted(ids), dtype=torch.int64), drops, source.random() < 0.1


@every_policy
@given(seed=st.integers(0, 2**16), num_slots=st.sampled_from([1, 2, 7, 20, NUM_IDS]))
@few
def test_a_queue_decides_as_a_look_at_every_slot(name, seed, num_slots):
    scanning, queueing = (Cache(name, num_slots, scans=scans) for scans in (True, False))
    for ids, drops, is_saved in histories(seed, num_slots, num_steps=40):
        assert scanning.step(ids) == queueing.step(ids)
        for cache in (scanning, queueing):
            slots = torch.tensor(drops, dtype=torch.int64)
            cache.remove(slots[cache.held[slots] >= 0])
        if is_saved:
            policy = EVICTION[name](num_slots)
            policy.load_state_dict(queueing.policy.state_dict())
            queueing.policy = policy
    states = [cache.policy.state_dict() for cache in (scanning, queueing)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@every_policy
def test_choosing_twice_chooses_the_same(name):
    cache = Cache(name, 5, scans=False)
    for ids, _, _ in histories(3, 5, num_steps=30):
        cache.step(ids)
    cache.policy.used(torch.tensor([33, 34]), torch.tensor([-1, -1]))
    if name == "fading-lfu":
        for _ in range(60):
            cache.policy.used(torch.tensor([33, 34]), torch.tensor([-1, -1]))
    given = (torch.tensor([33, 34]), 0, cache.held, torch.tensor([1]))
    first, second = (cache.policy.choose_from(*given) for _ in range(2))
    assert len(first[1]) == 2
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[0], second[0])


@every_policy
def test_a_copied_policy_has_a_queue_of_its_own(name):
    cache = Cache(name, 5, scans=False)
    for ids, _, _ in histories(4, 5, num_steps=20):
        cache.step(ids)
    other = copy.deepcopy(cache)
    trace = [ids for ids, _, _ in histories(5, 5, num_steps=20)]
    assert [cache.step(ids) for ids in trace] == [other.step(ids) for ids in trace]


def test_scaling_worth_down_forgets_the_queue(monkeypatch):
    monkeypatch.setattr(fading_lfu, "_HALVINGS_PER_SCALING", 1)
    test_a_queue_decides_as_a_look_at_every_slot.hypothesis.inner_test("fading-lfu", 7, 7)


@given(seed=st.integers(0, 2**16), num_buckets=st.sampled_from([1, 3, 64, 1 << 20]))
@few
def test_the_compiled_sketch_is_that_of_torch(seed, num_buckets):
    draw = torch.Generator().manual_seed(seed)
    compiled, plain = (CountMinSketch(num_buckets, seed=5) for _ in range(2))
    plain._kernels = lambda: None
    worth = [torch.rand(6, generator=draw)] * 2
    worth[1] = worth[0].clone()
    for _ in range(6):
        ids = torch.randint(-(2**62), 2**62, (9,), generator=draw).unique()
        slots = torch.randperm(12, generator=draw)[: len(ids)] - 6
        amount, lifted = torch.rand((), generator=draw) * 9, torch.rand(len(ids), generator=draw)
        for sketch, values in ((compiled, worth[0]), (plain, worth[1])):
            sketch.count_uses(ids, slots, values, amount)
            sketch.lift(ids[:3], lifted[:3])
        assert torch.equal(compiled.estimate(ids), plain.estimate(ids))
    assert torch.equal(worth[0], worth[1])
    assert torch.equal(compiled.amounts, plain.amounts)

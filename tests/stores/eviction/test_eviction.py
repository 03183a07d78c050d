"""Eviction policies against plain models of what they promise."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outsize.errors import ConfigError
from outsize.stores.eviction import EVICTION, LFU, LRU, fading_lfu
from outsize.stores.eviction.count_min_sketch import CountMinSketch
from outsize.stores.eviction.fading_lfu import FadingLFU
from outsize.stores.eviction.policy import EvictionPolicy, lowest_slots

NUM_IDS = 12
every_policy = pytest.mark.parametrize("name", EVICTION)
traces = st.tuples(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 50)).map(
    lambda drawn: make_trace(*drawn)
)
few = settings(max_examples=12, deadline=None)


def make_trace(seed: int, max_ids: int, num_steps: int) -> list[list[int]]:
    """Steps of ascending ids, low ones more often, some steps empty."""
    source = random.Random(seed)
    return [
        sorted({min(source.randrange(NUM_IDS), source.randrange(NUM_IDS)) for _ in range(num)})
        for num in (source.randint(0, max_ids) for _ in range(num_steps))
    ]


class Cache:
    """What a cached store does with a policy, and nothing else."""

    def __init__(self, policy: EvictionPolicy, num_ids: int = NUM_IDS) -> None:
        self.policy = policy
        self.slot_of = torch.full((num_ids,), -1)
        self.id_in = torch.full((policy.num_slots,), -1)

    def step(self, step_ids: list[int] | Tensor) -> tuple[list[int], list[int]]:
        """Ids that were admitted, and slots that gave way to them, in the policy's order."""
        ids = torch.as_tensor(step_ids, dtype=torch.int64)
        slots = self.slot_of[ids]
        missing = ids[slots < 0]
        evictable = self.id_in >= 0
        free = (~evictable).nonzero().flatten()
        evictable[slots[slots >= 0]] = False
        self.policy.used(ids, slots)
        admit, victims = self.policy.choose(missing, free.shape[0], evictable)
        entering, leaving = missing[admit], self.id_in[victims]
        assert bool(evictable[victims].all())
        assert victims.unique().shape == victims.shape
        assert victims.shape[0] == max(0, entering.shape[0] - free.shape[0])
        places = torch.cat([free, victims])[: entering.shape[0]]
        self.policy.removed(leaving, victims)
        self.policy.admitted(entering, places)
        self.slot_of[leaving] = -1
        self.slot_of[entering] = places
        self.id_in[places] = entering
        return entering.tolist(), victims.tolist()

    def hit_rate(self, steps: list[Tensor]) -> float:
        """Share of reads that find their row, while the steps are taken."""
        hits = 0
        for ids in steps:
            hits += int((self.slot_of[ids] >= 0).sum())
            self.step(ids)
        return hits / sum(ids.shape[0] for ids in steps)


class Model:
    """LRU, LFU and light LFU in plain Python, one row at a time."""

    def __init__(self, name: str, num_slots: int) -> None:
        self.name = name
        self.num_slots = num_slots
        self.now = 0
        self.uses: dict[int, int] = {}  # by slot
        self.used_at: dict[int, int] = {}
        self.id_in: dict[int, int] = {}

    def choose(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """Ids to admit and slots to give way, after the reads of a step are counted."""
        self.now += 1
        reads = {slot for slot, row in self.id_in.items() if row in ids}
        for slot in reads:
            self.uses[slot] += 1
            self.used_at[slot] = self.now
        missing = [row for row in ids if row not in self.id_in.values()]
        order = sorted(slot for slot in self.id_in if slot not in reads)
        if self.name == "light-lfu":
            order = [slot for slot in order if self.uses[slot] < 10]
        order.sort(key=lambda slot: self.used_at[slot])
        if self.name != "lru":
            order.sort(key=lambda slot: self.uses[slot])
        num_free = self.num_slots - len(self.id_in)
        victims = order[: max(0, len(missing) - num_free)]
        return missing[: num_free + len(victims)], victims

    def place(self, rows: dict[int, int]) -> None:
        """Put rows into slots."""
        for row, slot in rows.items():
            self.id_in[slot], self.uses[slot], self.used_at[slot] = row, 1, self.now


@pytest.mark.parametrize("name", ["lru", "lfu", "light-lfu"])
@given(trace=traces, num_slots=st.integers(1, 7))
@few
def test_each_step_decides_as_the_plain_model(name, trace, num_slots):
    cache, model = Cache(EVICTION[name](num_slots)), Model(name, num_slots)
    for ids in trace:
        expected = model.choose(ids)
        entering, victims = cache.step(ids)
        assert (entering, sorted(victims)) == (expected[0], sorted(expected[1]))
        model.place({row: int(cache.slot_of[row]) for row in entering})


@every_policy
@given(trace=traces, num_slots=st.integers(1, 7))
@few
def test_no_more_rows_enter_than_there_is_room_for(name, trace, num_slots):
    cache = Cache(EVICTION[name](num_slots))
    for ids in trace:
        room = num_slots - int((cache.slot_of[ids] >= 0).sum())
        entering, _ = cache.step(ids)  # which also checks victims
        assert len(entering) <= room
        held = cache.id_in[cache.id_in >= 0]
        assert held.unique().shape == held.shape


@every_policy
@given(trace=traces, num_slots=st.integers(1, 7), cut=st.integers(0, 30))
@few
def test_a_loaded_policy_goes_on_as_the_saved_one(name, trace, num_slots, cut):
    cache = Cache(EVICTION[name](num_slots))
    for ids in trace[:cut]:
        cache.step(ids)
    resumed = Cache(EVICTION[name](num_slots))
    resumed.policy.load_state_dict(cache.policy.state_dict())
    resumed.slot_of, resumed.id_in = cache.slot_of.clone(), cache.id_in.clone()
    assert [cache.step(ids) for ids in trace[cut:]] == [resumed.step(ids) for ids in trace[cut:]]


@every_policy
def test_empty_slots_are_filled_before_any_row_gives_way(name):
    cache = Cache(EVICTION[name](5))
    assert cache.step([1, 4]) == ([1, 4], [])
    assert cache.step([2, 3, 7]) == ([2, 3, 7], [])


@every_policy
def test_a_step_without_ids_decides_nothing(name):
    cache = Cache(EVICTION[name](2))
    assert cache.step([]) == ([], [])
    cache.step([0, 1])
    assert cache.step([]) == ([], [])


@every_policy
def test_nothing_enters_where_nothing_may_give_way(name):
    cache = Cache(EVICTION[name](2))
    cache.step([0, 1])
    assert cache.step([0, 1, 2, 3]) == ([], [])


@every_policy
def test_choosing_changes_nothing(name):
    cache = Cache(EVICTION[name](3))
    for ids in make_trace(seed=0, max_ids=5, num_steps=9):
        cache.step(ids)
    before = {key: value.clone() for key, value in cache.policy.state_dict().items()}
    cache.policy.choose(torch.tensor([3, 9]), 0, torch.ones(3, dtype=torch.bool))
    after = cache.policy.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in after)


@every_policy
def test_a_cache_without_slots_is_refused(name):
    with pytest.raises(ConfigError, match="at least one slot, but got num_slots=0"):
        EVICTION[name](0)


def test_the_least_recent_row_gives_way():
    cache = Cache(LRU(2))
    for ids in ([5], [6], [6], [6], [5]):
        cache.step(ids)
    cache.step([7])
    assert sorted(cache.id_in.tolist()) == [5, 7]


def test_the_least_used_row_gives_way():
    cache = Cache(LFU(2))
    for ids in ([5], [6], [6], [6], [5]):
        cache.step(ids)
    cache.step([7])
    assert sorted(cache.id_in.tolist()) == [6, 7]


def test_a_row_used_ten_times_stays_under_light_lfu():
    cache = Cache(EVICTION["light-lfu"](2))
    for _ in range(10):
        cache.step([0])
    for row in range(1, NUM_IDS):
        for _ in range(9):
            cache.step([row])
    assert sorted(cache.id_in.tolist()) == [0, NUM_IDS - 1]
    cache.step([NUM_IDS - 1])  # its tenth use: all are permanent
    assert cache.step([1]) == ([], [])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(0, 2**16),
)
@few
def test_the_lowest_keys_are_found_and_ties_go_to_the_lowest_slots(keys, num, seed):
    source = random.Random(seed)
    evictable = [source.random() < 0.7 for _ in keys]
    expected = sorted((key, at) for at, key in enumerate(keys) if evictable[at])[:num]
    for dtype in (torch.int32, torch.int64, torch.float32):
        found = lowest_slots(torch.tensor(keys, dtype=dtype), torch.tensor(evictable), num)
        assert sorted(found.tolist()) == sorted(at for _, at in expected)


@given(trace=traces, num_buckets=st.integers(1, 8))
@few
def test_the_sketch_is_never_too_low(trace, num_buckets):
    sketch, counts = CountMinSketch(num_buckets, seed=0), Counter[int]()
    for ids in trace:
        sketch.add(torch.tensor(ids, dtype=torch.int64), torch.tensor(1.0))
        counts.update(ids)
    estimates = sketch.estimate(torch.arange(NUM_IDS)).tolist()
    assert all(estimates[row] >= counts[row] for row in range(NUM_IDS))
    assert max(estimates) <= len(trace)


def test_a_wide_sketch_counts_exactly():
    sketch, trace = CountMinSketch(1000, seed=0), make_trace(seed=1, max_ids=6, num_steps=40)
    for ids in trace:
        sketch.add(torch.tensor(ids, dtype=torch.int64), torch.tensor(1.0))
    counts = Counter(row for ids in trace for row in ids)
    assert sketch.estimate(torch.arange(NUM_IDS)).tolist() == [
        counts[row] for row in range(NUM_IDS)
    ]


def test_rows_seen_once_do_not_replace_each_other():
    cache = Cache(FadingLFU(100), num_ids=130)
    cache.step(torch.arange(100))
    assert [cache.step([row]) for row in range(100, 130)] == [([], [])] * 30


def test_the_most_used_rows_replace_the_least_used_ones():
    cache = Cache(FadingLFU(3))
    for ids in ([0, 1, 2], [0, 1], [0, 1], [0], [0]):
        cache.step(ids)
    outside = torch.full((3,), -1)
    for _ in range(3):  # as if these rows could not have been admitted
        cache.policy.used(torch.tensor([7, 8, 9]), outside)
    cache.policy.used(torch.tensor([9]), outside[:1])
    admit, victims = cache.policy.choose(
        torch.tensor([7, 8, 9]), 0, torch.ones(3, dtype=torch.bool)
    )
    assert admit.tolist() == [False, False, True]  # 3 uses are not more than the 3 of row 1
    assert victims.tolist() == cache.slot_of[[2]].tolist()


def test_a_row_that_left_is_remembered():
    cache = Cache(FadingLFU(2))
    for _ in range(5):
        cache.step([0, 1])
    slot, policy = cache.slot_of[[0]], cache.policy
    assert isinstance(policy, FadingLFU)
    worth = policy.worth[slot].clone()
    policy.removed(torch.tensor([0]), slot)
    assert torch.equal(policy.sketch.estimate(torch.tensor([0])), worth)


def test_scaling_down_changes_no_decision(monkeypatch):
    trace = make_trace(seed=3, max_ids=6, num_steps=120)
    rare = Cache(FadingLFU(4, half_life=2.0))
    expected = [rare.step(ids) for ids in trace]
    monkeypatch.setattr(fading_lfu, "_HALVINGS_PER_SCALING", 1)
    often = Cache(FadingLFU(4, half_life=2.0))
    assert [often.step(ids) for ids in trace] == expected
    assert sum(len(victims) for _, victims in expected) > 10


def test_worth_stays_finite_however_fast_it_fades():
    cache = Cache(FadingLFU(1, half_life=0.001), num_ids=1000)
    for _ in range(5):
        cache.step(torch.arange(1000))
    assert isinstance(cache.policy, FadingLFU)
    assert bool(cache.policy.worth.isfinite().all())
    assert bool(cache.policy.sketch.amounts.isfinite().all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"half_life": 0.0}, "half_life must be finite and > 0, but got 0.0"),
        ({"half_life": float("inf")}, "half_life must be finite and > 0, but got inf"),
        ({"margin": -1.0}, "margin must be >= 0, but got -1.0"),
    ],
)
def test_senseless_settings_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FadingLFU(4, **arguments)


def test_fading_lfu_follows_a_drift_that_light_lfu_cannot_follow():
    generator = torch.Generator().manual_seed(0)

    def steps(first: int, num: int) -> list[Tensor]:
        draws = (torch.randperm(100, generator=generator)[:60] for _ in range(num))
        return [first + draw.sort().values for draw in draws]

    before, after, later = steps(0, 60), steps(100, 120), steps(100, 30)
    rates = {}
    for name in ("light-lfu", "fading-lfu"):
        cache = Cache(EVICTION[name](100), num_ids=200)
        rates[name] = [cache.hit_rate(part) for part in (before, after, later)]
    assert min(rates["light-lfu"][0], rates["fading-lfu"][0]) > 0.95
    assert rates["light-lfu"][2] == 0
    assert rates["fading-lfu"][2] > 0.99

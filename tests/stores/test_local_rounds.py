"""Rounds of a cache whose owner is on the same device: the others' results, with fewer waits."""

import math
import random

import pytest
import torch

import outsize
from outsize.contracts import RowUpdate
from outsize.kernels.copies import compaction
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import CachedStore, LocalStore, ShardedStore
from outsize.stores.eviction import candidates
from outsize.stores.eviction.candidates import Candidates
from outsize.stores.local_rounds import LocalRounds
from tests.host_reads import HostReads

NUM_ROWS = 70
CACHES = [
    (AdagradRule(0.1, row_wise=True), (25, 3, 2, "fading-lfu"), torch.float32),
    (SGDRule(0.1), (70, 0, 1, "lru"), torch.float32),
    (AdagradRule(0.1), (12, math.inf, math.inf, "fading-lfu"), torch.bfloat16),
    (AdamRule(0.1), (25, 1, 0, "fading-lfu"), torch.float32),
    (AdagradRule(0.1), (12, 2, 4, "lru"), torch.bfloat16),
]


def read_counts_together(monkeypatch, devices):
    monkeypatch.setattr(compaction, "_WAITING_DEVICES", devices)


def train(seed, rule, cache, dtype, device):
    """Random reads and updates, some of them by others or without a read; all that was seen."""
    specs = [outsize.TableSpec("a", 40, 4, dtype=dtype), outsize.TableSpec("b", 30, 4, dtype=dtype)]
    inner = LocalStore(specs, device=device)
    store = CachedStore(inner, *cache)
    store.bind(rule)
    source, draw, seen = random.Random(seed), torch.Generator().manual_seed(seed), []
    for step in range(60):
        size = source.choice([0, 1, 6, 30])
        rows = {min(source.randrange(NUM_ROWS) for _ in range(2)) for _ in range(size)}
        ids = torch.tensor(sorted(rows), dtype=torch.int64, device=device)
        reply = store.exchange(None, ids)
        gradients = tuple(torch.randn(p.shape, generator=draw).to(device) for p in reply.rows)
        for _ in range(source.choice([0, 1, 1, 1, 1, 1, 2])):
            same = ids if source.random() < 0.8 else ids.clone()
            store.submit(RowUpdate(same, gradients, torch.ones_like(ids)))
        if source.random() < 0.3:  # makes copies stale, and some of them unprofitable
            others = torch.randint(40, (30,), generator=draw).to(device)
            inner.add(others, torch.randn(30, 4, generator=draw).to(device), "a")
        copies = store.copies[0]
        kept = (copies.ids, copies.balance, copies.checks, copies.ticks, copies.clocks)
        seen += [reply.rows[0], reply.clocks, *(tensor.clone() for tensor in kept)]
        if step == 20:
            seen += store.peek(torch.arange(NUM_ROWS, device=device))
        if source.random() < 0.05:
            store.flush()
    counts = store.take_counts()
    seen.append(torch.tensor([counts.reads, counts.hits, counts.evictions]))
    seen.append(torch.tensor(-1 if counts.largest_lag is None else counts.largest_lag))
    store.flush()
    return [part.cpu() for part in (*seen, *inner.peek(torch.arange(NUM_ROWS, device=device)))]


def assert_same(one, two):
    assert len(one) == len(two)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rule", "cache", "dtype"), CACHES)
def test_counts_that_travel_together_change_no_bit(
    seed, rule, cache, dtype, monkeypatch, unchecked_shapes
):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    one_by_one = train(seed, rule, cache, dtype, "cpu")
    read_counts_together(monkeypatch, ("cpu",))
    assert_same(one_by_one, train(seed, rule, cache, dtype, "cpu"))


def test_copies_are_dropped_as_in_other_rounds(monkeypatch, unchecked_shapes):
    """A copy that is always stale costs more than it saves."""
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    found = []
    for devices in (("cuda",), ("cpu",)):
        read_counts_together(monkeypatch, devices)
        inner = LocalStore([outsize.TableSpec("rows", 8, 1)])
        store = CachedStore(inner, 4, 0, math.inf)
        store.bind(SGDRule(0.1))
        ids, seen = torch.arange(3), []
        for step in range(40):
            store.exchange(None, ids)
            if step % 3 == 0:
                store.submit(RowUpdate(ids[:1], (torch.ones(1, 1),), torch.ones(1).long()))
            inner.add(ids[1:], torch.ones(2, 1))
            seen.append(store.copies[0].ids.clone())
        assert int((seen[-1] >= 0).sum()) < 3
        found.append(seen)
    assert_same(*found)


@pytest.mark.parametrize("cache", [(33, 3, 2, "fading-lfu"), (33, math.inf, math.inf, "lru")])
def test_victims_among_candidates_are_those_among_all_slots(cache, monkeypatch, unchecked_shapes):
    """Lists of candidates are so short that they run out."""
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    monkeypatch.setattr(candidates, "_LISTED_PER_WANTED", 1)
    looks, in_order = [], Candidates.in_order

    def noted(*arguments, among_all):
        looks.append(among_all)
        return in_order(*arguments, among_all=among_all)

    monkeypatch.setattr(Candidates, "in_order", noted)

    def run(devices):
        read_counts_together(monkeypatch, devices)
        store = CachedStore(LocalStore([outsize.TableSpec("rows", 400, 2)]), *cache)
        store.bind(SGDRule(0.1))
        source, draw, seen = random.Random(5), torch.Generator().manual_seed(5), []
        for _ in range(300):
            num = source.choice([1, 3, 5, 9, 14])
            ids = torch.tensor(sorted({int(400 * source.random() ** 3) for _ in range(num)}))
            reply = store.exchange(None, ids)
            gradients = torch.randn(len(ids), 2, generator=draw)
            store.submit(RowUpdate(ids, (gradients,), torch.ones_like(ids)))
            copies = store.copies[0]
            seen += [reply.rows[0], reply.clocks, copies.ids.clone(), copies.ticks.clone()]
        return seen

    assert_same(run(("cuda",)), run(("cpu",)))
    assert False in looks
    if cache[3] == "lru":  # which takes many victims at once
        assert True in looks


def training_steps(make_store, num, device="cpu"):
    specs = [outsize.TableSpec(f"table{i}", 2000, 8) for i in range(3)]
    store = make_store(specs)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec(s.name) for s in specs], store)
    rows, draw = outsize.RowAdagrad(store, 0.1), torch.Generator().manual_seed(0)
    for _ in range(num):
        ids = {s.name: (torch.rand(64, generator=draw) ** 3 * 2000).long() for s in specs}
        ids = {name: part.to(device) for name, part in ids.items()}

        def step(ids=ids):
            rows.zero_grad()
            vectors = embeddings.stacked(ids)
            vectors.backward(torch.ones_like(vectors))
            rows.step()

        yield step


@pytest.mark.parametrize("eviction", ["fading-lfu", "lru"])
def test_a_cached_step_reads_one_count_more_than_a_plain_one(
    eviction, monkeypatch, unchecked_shapes
):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    read_counts_together(monkeypatch, ("cpu",))

    def names(make_store):
        found = []
        for step in training_steps(make_store, 20):
            with HostReads() as reads:
                step()
            found.append(sorted(reads.names))
        return found[1:]  # the first step of a cache looks at all of its slots

    plain = names(LocalStore)
    cached = names(lambda specs: CachedStore(LocalStore(specs), 600, 10, 10, eviction))
    assert cached == [[*reads, "tolist"] for reads in plain]
    # On CUDA a plain step reads one number, how many ids are distinct; the others check inputs.
    assert plain[-1].count("aten::_unique2") == 1
    assert set(plain[-1]) <= {"aten::_unique2", "aten::_local_scalar_dense"}


def test_one_rank_of_a_sharded_store_reads_no_more_than_a_local_one(monkeypatch, unchecked_shapes):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")

    def names(make_store):
        found = []
        for step in training_steps(make_store, 3):
            with HostReads() as reads:
                step()
            found.append(reads.names)
        return found

    def on_one_rank(ranks):
        return [
            names(lambda specs: ShardedStore(specs, group=ranks)),
            names(lambda specs: CachedStore(ShardedStore(specs, group=ranks), 600)),
        ]

    local = names(LocalStore)
    assert run_as_ranks(1, on_one_rank) == [[local, local]]


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["triton", "torch"])
@pytest.mark.parametrize(("rule", "cache", "dtype"), CACHES)
def test_on_the_device_the_rounds_agree(rule, cache, dtype, engine, monkeypatch):
    """Rounds that read counts one by one are the oracle; they work by torch alone."""
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    read_counts_together(monkeypatch, ())
    one_by_one = train(1, rule, cache, dtype, "cuda")
    if engine == "triton":
        monkeypatch.delenv("OUTSIZE_KERNELS")
    read_counts_together(monkeypatch, ("cuda",))
    together = train(1, rule, cache, dtype, "cuda")
    assert len(one_by_one) == len(together)
    for one, two in zip(one_by_one, together, strict=True):
        if one.is_floating_point():
            rounding = 2e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(one, two, rtol=rounding, atol=rounding)
        else:
            assert torch.equal(one, two)


@pytest.mark.gpu
@pytest.mark.parametrize("eviction", ["fading-lfu", "lru"])
@pytest.mark.filterwarnings("ignore")
def test_a_cached_step_waits_at_most_twice(eviction, monkeypatch):
    def make(specs):
        return CachedStore(LocalStore(specs, device="cuda"), 600, 10, 10, eviction)

    taken = []
    read = LocalRounds.read
    monkeypatch.setattr(
        LocalRounds, "read", lambda *args: taken.append(found := read(*args)) or found
    )
    steps = list(training_steps(make, 20, "cuda"))
    for step in steps[:8]:
        step()
    assert num_waits(steps[8:]) <= 2 * len(steps[8:])
    assert None not in taken[1:]


def num_waits(steps):
    """How often the host waited for the device, as torch reports it."""
    import warnings

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in steps:
                step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)

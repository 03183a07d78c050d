"""Rows that are read one batch ahead: what a read misses, in which order, and how it fails."""

import contextlib
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_checks import draw_trace, equal_bits, overlapped_reads_are_one_step_late, read_all

import outsize
from outsize.contracts import RowUpdate
from outsize.errors import ConfigError, DataError, IdError, RanksError
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import EVICTION, CachedStore, OverlappedStore, ShardedStore
from outsize.testing import STORE_CHECKS

SPEC = outsize.TableSpec("rows", 20, 3)
SPECS = [outsize.TableSpec("wide", 60, 5), outsize.TableSpec("thin", 30, 3)]
FEATURES = [outsize.FeatureSpec("rows")]
RULES = [SGDRule(0.3), AdagradRule(0.3), AdagradRule(0.3, row_wise=True), AdamRule(0.3)]


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_over_a_cache_it_keeps_the_contract_of_a_store(check):
    check(lambda specs: OverlappedStore(CachedStore(ShardedStore(specs), 1000, 4, 2)))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 4),
    bounds=st.tuples(st.sampled_from([0, 1, 3, math.inf]), st.sampled_from([0, 1, 5, math.inf])),
    eviction=st.sampled_from(sorted(EVICTION)),
    num_slots=st.sampled_from([0, 1, 5, 40]),
)
def test_no_read_misses_more_than_the_last_step_and_the_bounds(
    seed, size, bounds, eviction, num_slots
):
    cache = (num_slots, *bounds, eviction) if num_slots else None
    run_as_ranks(size, lambda ranks: overlapped_reads_are_one_step_late(ranks, seed, cache))


def make(ranks, rule, cache=None, wire="float32", overlaps=True):
    store = ShardedStore(SPECS, group=ranks, wire=wire)
    if cache is not None:
        store = CachedStore(store, *cache)
    if overlaps:
        store = OverlappedStore(store)
    store.bind(rule)
    return store


def trained(ranks, store, first=0, stop=15, flushes=(), evaluates=False):
    """What the steps read, each one batch ahead; the store may or may not overlap that."""
    num_steps = 15
    steps = draw_trace(5, ranks.rank, store.layout.num_rows, num_steps)
    draws = torch.Generator().manual_seed(ranks.rank)
    gradients = [[torch.randn(90, dim, generator=draws) for dim in (5, 3)] for _ in steps]
    found, ahead = [], []

    def announce(number):
        ids = steps[number].reads
        if store.reads_ahead:
            store.prefetch(ids)
        else:
            ahead.append(store.exchange(None, ids).rows)

    announce(first)
    for number in range(first, stop):
        ids = steps[number].reads
        if number + 1 < num_steps:
            announce(number + 1)
        rows = store.checkout(ids) if store.reads_ahead else ahead.pop(0)
        found += [part.detach() for part in rows]
        own = tuple(g[: len(part)] for g, part in zip(gradients[number], rows, strict=True))
        store.submit(RowUpdate(ids, own, torch.ones_like(ids)))
        if evaluates:
            store.read(torch.arange(7), "thin")
        if number in flushes:
            store.flush()
            if ahead:  # as an overlapped store does
                ahead[:] = []
                announce(number + 1)
    if store.reads_ahead:
        store.wait()  # the next store has the same threads as ranks
    return found


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("cached", [False, True])
def test_the_result_is_that_of_the_same_operations_one_by_one(rule, cached):
    """Threads decide nothing: reads, rows and state are those of one thread, bit for bit."""
    cache = (20, 3, 2 if rule.merges_batches else 0, "fading-lfu") if cached else None
    wire = "int8" if cached else "float32"

    def both(ranks):
        stores = [make(ranks, rule, cache, wire, overlaps) for overlaps in (True, False)]
        reads = [trained(ranks, store, flushes=(6,)) for store in stores]
        states = [store.rank_state() for store in stores]
        for store in stores:
            store.flush()
        return reads, [read_all(store) for store in stores], states

    for reads, rows, states in run_as_ranks(2, both):
        assert equal_bits(*reads)
        assert equal_bits(*rows)
        assert equal_bits(*[[value for _, value in sorted(s.items())] for s in states])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_staleness_a_cache_changes_no_bit(rule):
    def both(ranks):
        stores = [make(ranks, rule), make(ranks, rule, (20, 0, 0, "lru"))]
        return [trained(ranks, store) for store in stores]

    for plain, cached in run_as_ranks(2, both):
        assert equal_bits(plain, cached)


def test_evaluation_reads_leave_training_as_it_is():
    def both(ranks):
        stores = [make(ranks, SGDRule(0.3), (20, 3, 2, "lru"), "int8") for _ in range(2)]
        reads = [trained(ranks, s, evaluates=i > 0) for i, s in enumerate(stores)]
        return reads, [s.take_counts().sent_bytes for s in stores]

    for reads, sent in run_as_ranks(2, both):
        assert equal_bits(*reads)
        assert sent[0] == sent[1]


@pytest.mark.parametrize("cache", [None, (20, 3, 2, "fading-lfu")])
def test_a_store_that_is_restored_from_a_flush_goes_on_as_the_other(cache):
    rule = AdagradRule(0.3, row_wise=True)

    def resume(ranks):
        reads = trained(ranks, make(ranks, rule, cache), flushes=(7,))
        stopped, fresh = make(ranks, rule, cache), make(ranks, rule, cache)
        begun = trained(ranks, stopped, stop=8, flushes=(7,))
        for old, new in zip(stopped.parts(), fresh.parts(), strict=True):
            for name, value in old.tensors.items():
                new.tensors[name].copy_(value)
        state = {name: value.clone() for name, value in stopped.rank_state().items()}
        assert fresh.fits_rank_state(state)
        fresh.load_rank_state(state)
        return reads, [*begun, *trained(ranks, fresh, first=8)]

    for reads, resumed in run_as_ranks(2, resume):
        assert equal_bits(reads, resumed)


def model_rows(ranks, batches, num_parts):
    """The rows after training on batches, of which each rank takes its part."""
    store = OverlappedStore(ShardedStore([SPEC], group=ranks))
    embeddings = outsize.EmbeddingCollection(FEATURES, store)
    rows = outsize.RowAdagrad(store, learning_rate=0.2)
    own = [{"rows": batch[ranks.rank :: num_parts]} for batch in batches]
    embeddings.prefetch(own[0])
    for batch, following in zip(own, [*own[1:], None], strict=True):
        if following is not None:
            embeddings.prefetch(following)
        found = embeddings(batch)["rows"]
        (found.square().sum() * num_parts / 12 + found.sum() * num_parts / 12).backward()
        rows.step()
    store.flush()
    return store.read(torch.arange(20))


def test_several_ranks_train_as_one_with_a_larger_batch():
    draws = torch.Generator().manual_seed(0)
    batches = [torch.randint(20, (12,), generator=draws) for _ in range(10)]
    (alone,) = run_as_ranks(1, lambda ranks: model_rows(ranks, batches, 1))
    for found in run_as_ranks(3, lambda ranks: model_rows(ranks, batches, 3)):
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


class GatedStore(ShardedStore):
    """A store whose exchanges wait at a gate."""

    def __init__(self, specs):
        super().__init__(specs)
        self.gate = threading.Event()

    def exchange(self, update, ids, clocks=None):
        self.gate.wait()
        return super().exchange(update, ids, clocks)


def test_a_step_waits_for_its_own_rows_only():
    """While the next exchange stands still, a step computes and submits its update."""
    inner = GatedStore([SPEC])
    store = OverlappedStore(inner)
    rows = outsize.RowSGD(store, learning_rate=1.0)
    ids = torch.tensor([1, 2])
    before = inner.read(ids)
    inner.gate.set()
    store.prefetch(ids)
    (first,) = store.checkout(ids)
    inner.gate.clear()
    store.prefetch(ids)
    first.sum().backward()
    rows.step()
    assert torch.equal(inner.owned.read(ids), before), "nothing is applied meanwhile"
    inner.gate.set()
    assert torch.equal(store.checkout(ids)[0].detach(), before), "the read began before the update"
    assert torch.equal(store.checkout(ids)[0].detach(), before - 1.0)


def test_a_store_that_is_left_waits_for_no_exchange():
    inner = GatedStore([SPEC])
    store = OverlappedStore(inner)
    with contextlib.suppress(KeyboardInterrupt), store:
        store.prefetch(torch.tensor([1]))
        raise KeyboardInterrupt
    assert not inner.gate.is_set(), "the exchange still waits"
    inner.gate.set()


def test_a_store_that_is_closed_still_has_its_rows():
    with OverlappedStore(ShardedStore([SPEC])) as store:
        store.bind(SGDRule(1.0))
        store.add(torch.tensor([3]), torch.ones(1, 3))
        store.prefetch(torch.tensor([3]))
    store.close()
    assert store.parts()[0].tensors["clocks"][3] == 1  # the exchange that was begun has ended


def outcomes(size, work):
    """What each rank raised, in words."""

    def guarded(ranks):
        try:
            work(ranks)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    return run_as_ranks(size, guarded)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_batch_that_is_invalid_on_one_rank_fails_on_all_at_its_turn(flushes):
    taken = []

    def work(ranks):
        store = OverlappedStore(ShardedStore([SPEC], group=ranks))
        embeddings = outsize.EmbeddingCollection(FEATURES, store)
        rows = outsize.RowSGD(store, learning_rate=1.0)
        good, bad = {"rows": torch.tensor([1])}, {"rows": torch.tensor([20])}
        following = bad if ranks.rank == 1 else good
        embeddings.prefetch(good)
        embeddings.prefetch(following)
        embeddings(good)["rows"].sum().backward()
        rows.step()
        taken.append(ranks.rank)
        if flushes:
            store.flush()
        embeddings.prefetch(good)
        embeddings(following)

    found = outcomes(3, work)
    assert sorted(taken) == [0, 1, 2], "the batch before it is trained"
    assert found[1].startswith(IdError.__name__)
    for other in (found[0], found[2]):
        assert other.startswith(f"{RanksError.__name__}: rank 1 failed")


def test_ranks_that_disagree_all_raise_in_the_step_that_reads():
    def work(ranks):
        wire = "int8" if ranks.rank else "float32"
        store = OverlappedStore(ShardedStore([SPEC], group=ranks, wire=wire))
        store.prefetch(torch.tensor([1]))
        store.prefetch(torch.tensor([2]))
        store.submit(None)
        with pytest.raises(RanksError, match="wire"):
            store.flush()  # it raises what went wrong before it
        store.checkout(torch.tensor([1]))

    for found in outcomes(2, work):
        assert found.startswith(f"{RanksError.__name__}: rank 0 has wire float32")


def test_a_batch_that_was_not_prefetched_is_read_at_once():
    store = OverlappedStore(ShardedStore([SPEC]))
    rows = outsize.RowSGD(store, learning_rate=1.0)
    ids = torch.tensor([4])
    first = store.checkout(ids)[0]
    first.sum().backward()
    rows.step()
    assert torch.equal(store.checkout(ids)[0].detach(), first.detach() - 1.0)


def test_other_rows_than_the_prefetched_ones_are_refused():
    store = OverlappedStore(ShardedStore([SPEC]))
    store.prefetch(torch.tensor([1, 2]))
    with pytest.raises(DataError, match="3 distinct rows that are not the 2 that were prefetched"):
        store.checkout(torch.tensor([1, 2, 3]))


def test_gradients_of_several_batches_make_one_update():
    store = OverlappedStore(ShardedStore([SPEC]))
    rows = outsize.RowSGD(store, learning_rate=1.0)
    ids = torch.tensor([4])
    before = store.read(ids)
    store.prefetch(ids)
    store.prefetch(ids)
    for _ in range(2):
        store.checkout(ids)[0].sum().backward()
    rows.step()
    assert torch.equal(store.read(ids), before - 2.0)
    assert store.exchange(None, ids).clocks.item() == 1


def test_a_schedule_takes_effect_with_the_update_that_follows_it():
    def rows_of(store):
        rows = outsize.RowSGD(store, learning_rate=1.0)
        ids = torch.tensor([4])
        for step in range(4):
            rows.param_groups[0]["lr"] = 0.5**step
            store.checkout(ids)[0].sum().backward()
            rows.step()
        store.flush()
        return store.read(ids)

    assert torch.equal(
        rows_of(OverlappedStore(ShardedStore([SPEC]))), rows_of(ShardedStore([SPEC]))
    )


def test_what_has_no_exchange_to_overlap_is_refused_in_words():
    with pytest.raises(ConfigError, match="LocalStore: its rows are at hand"):
        OverlappedStore(outsize.LocalStore([SPEC]))
    with (
        outsize.ServedStore([SPEC]) as served,
        pytest.raises(ConfigError, match="ServedStore: its ranks train at their own pace"),
    ):
        OverlappedStore(served)
    with pytest.raises(ConfigError, match="for rows on the CPU, not on meta"):
        OverlappedStore(ShardedStore([SPEC])).to("meta")
    with pytest.raises(
        ConfigError, match="fused updates are for rows in the memory of one process"
    ):
        outsize.RowSGD(OverlappedStore(ShardedStore([SPEC])), fused=True)
    with pytest.raises(ConfigError, match="cannot run beside other collectives"):
        outsize.LocalStore([SPEC]).use_own_group()
    with pytest.raises(ConfigError, match="write_staleness = 0"):
        outsize.RowAdam(OverlappedStore(CachedStore(ShardedStore([SPEC]), 5, 3, 3)))

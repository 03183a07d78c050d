"""A cache in front of rows: what it may miss, what it never loses, what it costs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_checks import (
    cache_without_staleness_changes_no_bit,
    evaluation_reads_do_not_change_training,
    no_update_is_lost_and_staleness_is_bounded,
    number_of_owners_changes_no_bit,
    trained_rows,
)

import outsize
from outsize.contracts import RowUpdate
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import EVICTION, WIRES, CachedStore, LocalStore, ShardedStore
from outsize.testing import STORE_CHECKS

SPEC = outsize.TableSpec("rows", 20, 3)
RULES = [SGDRule(0.3), AdagradRule(0.3), AdagradRule(0.3, row_wise=True), AdamRule(0.3)]


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("num_rows", "read", "write", "eviction"),
    [
        (2, 0, 0, "lru"),
        (2, 4, 2, "lfu"),
        (3, 0, 3, "light-lfu"),
        (1000, 0, 0, "fading-lfu"),
        (1000, 4, 2, "lru"),
        (1000, math.inf, math.inf, "lfu"),
    ],
)
def test_a_cache_keeps_the_contract_of_a_store(num_rows, read, write, eviction, check):
    check(lambda specs: CachedStore(LocalStore(specs), num_rows, read, write, eviction))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), num_steps=st.integers(0, 30))
def test_after_a_flush_the_memory_of_a_cache_does_not_depend_on_its_history(seed, num_steps):
    """So a plan, whose ranks draw other negatives than those of the run, counts the same bytes."""

    def used(ranks):
        store = CachedStore(ShardedStore([SPEC], group=ranks), 6, read_staleness=0)
        store.bind(SGDRule(0.1))
        new = store.memory_use()
        draws = torch.Generator().manual_seed(seed + ranks.rank)
        for _ in range(num_steps):
            ids = torch.randint(20, (8,), generator=draws).unique()
            store.exchange(None, ids)
            store.submit(RowUpdate(ids, (torch.ones(len(ids), 3),), torch.ones_like(ids)))
        store.flush()
        return new, store.memory_use()

    for new, flushed in run_as_ranks(2, used):
        assert flushed == new


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 4),
    read=st.sampled_from([0, 1, 3, 10, math.inf]),
    write=st.sampled_from([0, 1, 2, 5, math.inf]),
    eviction=st.sampled_from(sorted(EVICTION)),
    num_slots=st.sampled_from([1, 5, 40]),
)
def test_nothing_is_lost_and_no_read_misses_more_than_its_bounds(
    seed, size, read, write, eviction, num_slots
):
    check = no_update_is_lost_and_staleness_is_bounded
    run_as_ranks(size, lambda ranks: check(ranks, seed, read, write, eviction, num_slots))


@pytest.mark.parametrize(
    ("rule", "eviction"),
    [
        (SGDRule(0.3), "lru"),
        (AdagradRule(0.3, row_wise=True), "lfu"),
        (AdagradRule(0.3), "fading-lfu"),
        (AdamRule(0.3), "light-lfu"),
    ],
)
def test_without_staleness_a_cache_changes_no_bit(rule, eviction):
    run_as_ranks(3, lambda ranks: cache_without_staleness_changes_no_bit(ranks, rule, eviction))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_evaluation_reads_leave_training_as_it_is(rule, wire, unchecked_shapes):
    """Every rule, and every wire, without a cache and with one of each kind of bounds."""
    write = 3 if rule.merges_batches else 0
    caches = [None, (20, 0, 0, "lru"), (20, 10, write, "fading-lfu")]
    cache = caches[(RULES.index(rule) + list(WIRES).index(wire)) % 3]
    check = evaluation_reads_do_not_change_training
    run_as_ranks(2, lambda ranks: check(ranks, rule, wire, cache))


@pytest.mark.parametrize("rule", [SGDRule(0.3), AdagradRule(0.3, row_wise=True)])
def test_owners_make_no_difference(rule):
    run_as_ranks(4, lambda ranks: number_of_owners_changes_no_bit(ranks, rule))


def push(store, row, value, ticks=1):
    ids = torch.tensor([row])
    gradients = (torch.full((1, SPEC.dim), float(value)),)
    store.submit(RowUpdate(ids, gradients, torch.tensor([ticks])))


def read(store, *rows):
    return store.exchange(None, torch.tensor(rows, dtype=torch.int64)).rows[0]


def test_updates_wait_until_there_are_more_than_the_write_bound():
    inner = LocalStore([SPEC])
    store = CachedStore(inner, 20, 0, 2)
    store.bind(SGDRule(1.0))
    before = read(store, 3).clone()
    for step in range(1, 4):
        push(store, 3, 1.0)
        torch.testing.assert_close(read(store, 3), before - step)  # own writes are seen at once
        seen = inner.read(torch.tensor([3]))
        torch.testing.assert_close(seen, before - (step if step > 2 else 0))
    assert inner.exchange(None, torch.tensor([3])).clocks.item() == 3


def test_a_dirty_row_that_gave_way_is_read_back_with_its_own_updates():
    store = CachedStore(LocalStore([SPEC]), 1, math.inf, math.inf, "lru")
    store.bind(AdagradRule(0.5))
    before = read(store, 3).clone()
    push(store, 3, 2.0)
    read(store, 4)  # takes the only place
    assert store.take_counts().evictions == 1
    torch.testing.assert_close(read(store, 3), before - 0.5)


def test_sums_over_batches_bring_their_squares_along():
    inner = LocalStore([SPEC])
    store = CachedStore(inner, 20, math.inf, math.inf)
    store.bind(AdagradRule(1.0, eps=0.0))
    before = read(store, 3).clone()
    push(store, 3, 3.0)
    push(store, 3, 4.0)
    store.flush()
    torch.testing.assert_close(inner.read(torch.tensor([3])), before - 7.0 / 5.0)


def test_a_refreshed_copy_shows_pending_updates_on_top_of_what_others_did():
    inner = LocalStore([SPEC])
    first, second = CachedStore(inner, 20, 0, 9), CachedStore(inner, 20, 0, 9)
    for store in (first, second):
        store.bind(SGDRule(1.0))
    before = read(first, 3).clone()
    read(second, 3)
    push(first, 3, 1.0)
    push(second, 3, 10.0)
    second.flush()
    torch.testing.assert_close(read(first, 3), before - 11.0)
    torch.testing.assert_close(inner.read(torch.tensor([3])), before - 10.0)


def test_the_largest_lag_is_that_of_the_copy_that_missed_most():
    inner = LocalStore([SPEC])
    store = CachedStore(inner, 20, 5, 0)
    store.bind(SGDRule(1.0))
    read(store, 3, 4)
    assert store.take_counts().largest_lag is None  # no copy was there to be read
    for row, times in ((3, 2), (4, 4)):
        for _ in range(times):
            inner.add(torch.tensor([row]), torch.ones(1, 3))
    read(store, 3)
    assert store.take_counts().largest_lag == 2
    read(store, 3, 4)
    assert store.take_counts().largest_lag == 4
    for order in ((3, 4), (4, 3)):
        for row in order:
            read(store, row)
        assert store.take_counts().largest_lag == 4
    store.flush()
    read(store, 3, 4)
    read(store, 3, 4)
    assert store.take_counts().largest_lag == 0


def distance(first, second):
    return sum(float((a - b).abs().sum()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_what_rounding_leaves_out_is_sent_later(wire):
    """With room for all rows, the final tables differ by no more than float32 sums do."""
    rule = SGDRule(0.1)

    def tables(ranks, **options):
        return trained_rows(ranks, rule, cache=(93, 0, 0, "lru"), **options)[-3:]

    exact = run_as_ranks(2, tables)[0]
    rounded = run_as_ranks(2, lambda ranks: tables(ranks, wire=wire))[0]
    plain = run_as_ranks(2, lambda ranks: trained_rows(ranks, rule, wire=wire)[-3:])[0]
    assert distance(exact, rounded) < 1e-3
    assert distance(exact, plain) > 1e-2, "nobody keeps it without a cache"


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
@pytest.mark.parametrize("rule", [AdagradRule(0.1), AdagradRule(0.1, row_wise=True)])
def test_a_rounding_wire_leaves_adagrad_close_to_itself(wire, rule):
    """Numbers that were rounded to nothing again and again must not explode in a flush."""
    cache = (93, 3, 3, "lru")
    exact, rounded = (
        run_as_ranks(2, lambda ranks, wire=w: trained_rows(ranks, rule, cache=cache, wire=wire))[0]
        for w in ("float32", wire)
    )
    num_values = sum(table.numel() for table in exact[-3:])
    assert distance(exact[-3:], rounded[-3:]) / num_values < 0.003  # of moves of up to 0.1 a step


def test_rows_whose_clocks_cost_more_than_they_save_are_given_up():
    """A row that others change every step is never valid: its clock checks save nothing."""

    def train(ranks):
        spec = outsize.TableSpec("rows", 8, 16)
        store = CachedStore(ShardedStore([spec], group=ranks), 8, 0, 0, "lru")
        store.bind(SGDRule(0.1))
        ids = torch.tensor([0, 1, 3 - ranks.rank])  # two rows are everyone's, one this rank's
        for _ in range(40):
            rows = store.exchange(None, ids).rows[0]
            store.submit(RowUpdate(ids, (torch.ones_like(rows),), torch.ones_like(ids)))
        (copies,) = store.copies
        return copies.find(torch.arange(8)).tolist()

    for rank, slots in enumerate(run_as_ranks(2, train)):
        own, shared = 3 - rank, 1 - rank  # both with the other rank as owner
        assert slots[shared] == -2
        assert slots[own] >= 0


def test_a_flush_invalidates_every_copy_and_admits_rows_again():
    inner = LocalStore([SPEC])
    store = CachedStore(inner, 20, math.inf, math.inf)
    store.bind(SGDRule(1.0))
    read(store, 1, 2)
    inner.add(torch.tensor([2]), torch.ones(1, 3))
    old = read(store, 2).clone()
    store.flush()
    torch.testing.assert_close(read(store, 2), old - 1.0)


def test_reading_for_evaluation_leaves_no_trace():
    inner = LocalStore([SPEC])
    store = CachedStore(inner, 2, 5, 5, "lru")
    store.bind(AdagradRule(0.5))
    read(store, 1, 2)
    push(store, 1, 3.0)
    before = {name: value.clone() for name, value in store.state_dict().items()}
    found = store.read(torch.tensor([1, 7]))
    assert all(torch.equal(before[name], value) for name, value in store.state_dict().items())
    assert torch.equal(found[:1], read(store, 1))


def test_a_cache_of_a_cache_answers_with_clocks_and_state():
    inner = CachedStore(LocalStore([SPEC]), 10, 3, 3)
    store = CachedStore(inner, 5, 3, 3)
    store.bind(AdagradRule(0.5))
    before = read(store, 1).clone()
    for _ in range(5):
        push(store, 1, 1.0)
    after = read(store, 1)
    store.flush()
    torch.testing.assert_close(inner.inner.read(torch.tensor([1])), read(store, 1))
    assert (after < before).all()


def test_who_has_copies_survives_a_round_trip_and_values_do_not():
    inner = LocalStore([SPEC])
    store, other = (CachedStore(inner, 4, 9, 9, "lfu") for _ in range(2))
    for cache in (store, other):
        cache.bind(SGDRule(1.0))
    for rows in ((1, 2), (2, 3), (2, 5)):
        read(store, *rows)
    store.flush()
    other.load_rank_state({name: value.clone() for name, value in store.rank_state().items()})
    for rows in ((2, 7), (1, 8), (2, 9), (3, 10)):
        assert torch.equal(read(store, *rows), read(other, *rows))
        assert torch.equal(store.copies[0].ids, other.copies[0].ids)
    assert store.take_counts().evictions == other.take_counts().evictions > 0


def test_impossible_caches_are_refused_in_words():
    inner = LocalStore([SPEC])
    with pytest.raises(ConfigError, match="at least one row"):
        CachedStore(inner, 0)
    with pytest.raises(ConfigError, match=r"read_staleness .* -1"):
        CachedStore(inner, 5, -1)
    with pytest.raises(ConfigError, match=r"write_staleness .* 1\.5"):
        CachedStore(inner, 5, 1, 1.5)
    with pytest.raises(ConfigError, match="lru, lfu"):
        CachedStore(inner, 5, eviction="random")
    for bound in (1, 10):
        with pytest.raises(ConfigError, match="write_staleness = 0"):
            CachedStore(inner, 5, 0, bound).bind(AdamRule(0.1))
    with pytest.raises(ConfigError, match="no optimizer yet"):
        push(CachedStore(LocalStore([SPEC]), 5), 1, 1.0)
    with pytest.raises(ConfigError, match="between 1 and the 1 ranks"):
        ShardedStore([SPEC], num_owners=2)
    with pytest.raises(ConfigError, match="float32, bfloat16, int8"):
        ShardedStore([SPEC], wire="int4")


def test_a_state_dict_of_one_rank_is_not_given_to_another():
    def load(ranks):
        store = ShardedStore([SPEC], group=ranks)
        with pytest.raises(ConfigError, match="load_rows"):
            store.load_state_dict(store.state_dict())

    run_as_ranks(2, load)


def test_what_fails_on_one_rank_fails_for_all():
    """The checks above assert inside ranks: an assertion there must not get lost."""

    def work(ranks):
        ranks.swap_counts(torch.zeros(3, 1, dtype=torch.int64))
        assert ranks.rank != 1, "rank 1 is not content"
        ranks.swap_counts(torch.zeros(3, 1, dtype=torch.int64))

    with pytest.raises(AssertionError, match="rank 1 is not content"):
        run_as_ranks(3, work)


def test_reads_of_own_rows_are_counted_apart():
    def count(ranks):
        store = CachedStore(ShardedStore([SPEC], group=ranks), 5, 9, 9)
        store.bind(SGDRule(1.0))
        for ids in ([0, 1, 2, 3, 4], [1, 3, 5]):
            store.exchange(None, torch.tensor(ids))
        counts = store.take_counts()
        return counts.reads, counts.local, counts.hits

    assert run_as_ranks(2, count) == [(8, 3, 2), (8, 5, 0)]


def test_a_directory_fits_the_rank_that_wrote_it_and_no_other():
    """Three ranks and a second table that starts at row 7, so that owners differ by the start."""
    specs = [outsize.TableSpec("narrow", 7, 2), outsize.TableSpec("wide", 9, 4)]

    def save(ranks):
        store = CachedStore(ShardedStore(specs, group=ranks), 20, 9, 9)
        store.bind(SGDRule(1.0))
        store.exchange(None, torch.arange(16))
        state = {name: value.clone() for name, value in store.rank_state().items()}
        return store.fits_rank_state(state), state

    found = run_as_ranks(3, save)
    assert [fits for fits, _ in found] == [True] * 3

    def try_others(ranks):
        store = CachedStore(ShardedStore(specs, group=ranks), 20, 9, 9)
        return [store.fits_rank_state(state) for _, state in found]

    assert run_as_ranks(3, try_others) == [
        [True, False, False], [False, True, False], [False, False, True]
    ]  # fmt: skip


def test_a_flush_forgets_what_copies_have_saved_and_cost():
    store = CachedStore(LocalStore([SPEC]), 5, 9, 9)
    store.bind(SGDRule(1.0))
    read(store, 1, 2)
    read(store, 1, 2)
    (copies,) = store.copies
    assert copies.balance.any()
    copies.pending[:2] = 0.25  # what rounding has left over, of one clean and one dirty copy
    copies.ticks[1] = 1
    copies.invalidate()
    assert not copies.balance.any()
    assert not copies.checks.any()
    assert copies.pending[:2].tolist() == [[0.0] * 3, [0.25] * 3]


def test_a_slot_that_is_used_again_brings_no_squares_along():
    plain = LocalStore([SPEC])
    cached = CachedStore(LocalStore([SPEC]), 1, math.inf, math.inf, "lru")
    for store in (plain, cached):
        store.bind(AdagradRule(0.3))
        for row, value in ((1, 3.0), (2, 1.0), (1, 2.0)):  # each evicts the one before
            read(store, row)
            push(store, row, value)
        store.flush()
    assert torch.equal(cached.inner.read(torch.arange(20)), plain.read(torch.arange(20)))


def test_what_does_not_fit_the_inner_store_does_not_fit_the_cache():
    def make(num_inner):
        store = CachedStore(CachedStore(LocalStore([SPEC]), num_inner), 4)
        store.bind(SGDRule(1.0))
        read(store, 1, 2)
        return store

    state = make(3).rank_state()
    assert make(3).fits_rank_state(state)
    assert not make(2).fits_rank_state(state)


@pytest.mark.gpu
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_a_cache_that_moves_to_a_gpu_keeps_its_copies_and_their_updates(eviction):
    def run(device):
        store = CachedStore(LocalStore([SPEC]), 4, 9, 9, eviction)
        store.bind(SGDRule(0.5))
        read(store, 1, 2, 3)
        push(store, 2, 1.0)
        store.to(device)
        before = store.copies[0].ids.tolist()
        rows = store.exchange(None, torch.tensor([2, 3, 7, 8], device=device)).rows[0]
        ids, one = torch.tensor([7], device=device), torch.ones(1, device=device)
        store.submit(RowUpdate(ids, (one.expand(1, 3),), one.long()))
        ids = store.copies[0].ids.tolist()
        store.flush()
        return before, ids, rows.cpu(), store.inner.read(torch.arange(20, device=device)).cpu()

    *here, rows, final = run("cpu")
    *there, rows_there, final_there = run("cuda")
    assert there == here
    torch.testing.assert_close(rows_there, rows)
    torch.testing.assert_close(final_there, final)

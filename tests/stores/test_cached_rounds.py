"""Compiled rounds of a cache over sharded rows equal its other rounds bit for bit."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.contracts import RowUpdate
from outsize.kernels.compiled import numba_problem
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.spec import TableSpec
from outsize.stores import EVICTION, CachedStore, ShardedStore
from outsize.stores import cached as cached_module
from outsize.stores.cached_rounds import ShardedRounds, joined, sharded_rounds
from outsize.stores.pending_rows import HeldUpdate, PendingRows

NUM_ROWS = 70
read_by_kernels = ShardedRounds.read
RULES = {
    "sgd": SGDRule(0.1, compiled=True),
    "row-wise": AdagradRule(0.1, row_wise=True, compiled=True),
    "adagrad": AdagradRule(0.1),
    "adam": AdamRule(0.1, compiled=True),
}
pytestmark = pytest.mark.skipif(numba_problem() is not None, reason=f"{numba_problem()}")


@pytest.fixture(autouse=True)
def compiles_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


def train(ranks, dim, wire, rule, num_owners, cache, seed):
    """Random steps of a cache: what is read, and all that is left in the end."""
    inner = ShardedStore([TableSpec("t", NUM_ROWS, dim)], group=ranks, wire=wire,
                         num_owners=num_owners)  # fmt: skip
    store = CachedStore(inner, *cache)
    store.bind(rule)
    same, own = random.Random(seed), random.Random(10 * seed + ranks.rank)
    draw = torch.Generator().manual_seed(10 * seed + ranks.rank)
    seen = []

    def update_of(ids, ticks=1):
        gradients = torch.randn(len(ids), dim, generator=draw)
        gradients[:2] *= torch.tensor([0.0, -0.0])[: len(ids[:2])].unsqueeze(1)
        squares = rule.square(gradients) if ticks > 1 else None
        squares = None if squares is None else (squares,)
        return RowUpdate(ids, (gradients,), torch.full_like(ids, ticks), squares)

    for _ in range(25):
        size = own.choice([0, 1, 6, 30])
        rows = {min(own.randrange(NUM_ROWS) for _ in range(2)) for _ in range(size)}
        ids = torch.tensor(sorted(rows), dtype=torch.int64)
        reply = store.exchange(None, ids)
        seen += [*reply.rows, reply.clocks, reply.stale]
        action = same.choice(["submit"] * 6 + ["again", "copy", "several", "flush", "nothing"])
        if action == "nothing":
            continue
        store.submit(update_of(ids.clone() if action == "copy" else ids))
        if action == "again":
            store.submit(update_of(ids[::2].clone()))
        elif action == "several" and rule.merges_batches:
            store.submit(update_of(ids, ticks=2))
        elif action == "flush":
            store.flush()
    seen += [value.clone() for value in store.rank_state().values()]
    seen += [value.clone() for value in store.copies.buffers()]
    seen += store.peek(torch.arange(NUM_ROWS))
    seen += [tensor for part in store.parts() for tensor in part.tensors.values()]
    return seen, replace(store.take_counts(), exchange_s=0.0)


def assert_equal(found, expected):
    for (values, counts), (others, other_counts) in zip(found, expected, strict=True):
        assert counts == other_counts
        for value, other in zip(values, others, strict=True):
            torch.testing.assert_close(value, other, rtol=0, atol=0, equal_nan=True)
            if value.is_floating_point():
                assert torch.equal(value.signbit(), other.signbit())


@settings(max_examples=60, deadline=None)
@given(
    dim=st.sampled_from([1, 3, 8, 13]),
    wire=st.sampled_from(["float32", "int8"]),
    rule=st.sampled_from(sorted(RULES)),
    num_owners=st.integers(1, 3),
    num_slots=st.sampled_from([1, 7, 25, NUM_ROWS]),
    read=st.sampled_from([0, 1, 4, 30, float("inf")]),
    write=st.sampled_from([0, 1, 3, float("inf")]),
    eviction=st.sampled_from(sorted(EVICTION)),
    seed=st.integers(0, 999),
)
def test_a_compiled_round_of_a_cache_equals_the_others(
    dim, wire, rule, num_owners, num_slots, read, write, eviction, seed
):
    write = write if RULES[rule].merges_batches else 0
    cache = (num_slots, read, write, eviction)
    taken = []

    def counted(rounds, *given):
        taken.append(read_by_kernels(rounds, *given))
        return taken[-1]

    def work(ranks):
        return train(ranks, dim, wire, RULES[rule], num_owners, cache, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedRounds, "read", counted)
        compiled = run_as_ranks(3, work)
    assert any(taken) == (read < float("inf"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_module, "sharded_rounds", lambda *given: None)
        assert_equal(compiled, run_as_ranks(3, work))


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_ranks_with_and_without_compiled_rounds_of_a_cache_train_together(monkeypatch, wire):
    def work(ranks):
        return train(ranks, 5, wire, RULES["row-wise"], 3, (12, 3, 2, "fading-lfu"), 1)

    everywhere = run_as_ranks(3, work)
    some = lambda inner, copies: sharded_rounds(inner, copies) if inner.rank == 1 else None  # noqa: E731
    monkeypatch.setattr(cached_module, "sharded_rounds", some)
    assert_equal(run_as_ranks(3, work), everywhere)


def test_half_precision_bfloat16_and_several_groups_are_left_to_the_other_rounds():
    def work(ranks):
        def made(specs, **settings):
            store = CachedStore(ShardedStore(specs, group=ranks, **settings), 9)
            store.bind(RULES["sgd"])
            return sharded_rounds(store.inner, store._groups())

        spec = TableSpec("t", 9, 4)
        assert made([spec]) is not None
        assert made([spec], wire="bfloat16") is None
        assert made([TableSpec("t", 9, 4, dtype=torch.float16)]) is None
        assert made([spec, TableSpec("u", 9, 3)]) is None

    run_as_ranks(2, work)


def pending_rows(ids, dim=2):
    ids = torch.tensor(ids, dtype=torch.int64)
    return PendingRows(ids, ids, torch.randn(len(ids), dim), ids * 0 + 3, torch.rand(len(ids), 1))


def test_updates_are_joined_in_the_order_of_ids_where_they_are():
    due, evicted = pending_rows([2, 8]), pending_rows([5])
    others = torch.tensor([1, 4, 9])
    update = RowUpdate(others, (torch.randn(3, 2),), torch.ones_like(others))
    found = joined(due, evicted, HeldUpdate(update, torch.tensor([0, 2])))
    assert found.ids.tolist() == [1, 2, 5, 8, 9]
    assert found.ticks.tolist() == [1, 3, 3, 3, 1]
    assert found.exact.tolist() == [False, False, True, False, False]
    start, own = update.gradients[0].data_ptr(), due.gradients.data_ptr()
    assert found.lines.tolist() == [start, own, evicted.gradients.data_ptr(), own + 8, start + 16]
    first = due.squares.data_ptr()
    assert found.squares.tolist() == [0, first, evicted.squares.data_ptr(), first + 4, 0]
    assert found.is_sum
    assert not joined(due, None, None).is_sum


def test_a_row_of_two_updates_is_left_to_merging():
    ids = torch.tensor([2, 3])
    update = RowUpdate(ids, (torch.randn(2, 2),), torch.ones_like(ids))
    held = HeldUpdate(update, None)
    assert joined(pending_rows([2, 8]), None, held) is None
    assert joined(pending_rows([8]), pending_rows([3]), held) is None
    assert joined(pending_rows([8]), pending_rows([8]), None) is None
    assert joined(pending_rows([8]), pending_rows([9]), held) is not None
    several = replace(update, ticks=ids)  # sums of several batches, whose squares are not known
    assert joined(pending_rows([8]), None, HeldUpdate(several, None)) is None

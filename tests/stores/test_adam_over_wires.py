"""Adam has no meaning for sums over batches: one step for each update, whatever wire and cache."""

import pytest
import torch
from store_checks import draw_trace
from torch import Generator

import outsize
from outsize.contracts import RowUpdate
from outsize.kernels.rows.updates import AdagradRule, AdamRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import WIRES, CachedStore, LocalStore, ShardedStore

SPEC = outsize.TableSpec("rows", 30, 8)
RULE = AdamRule(0.01)
CACHES = {"none": None, "all": (30, 0), "stale": (30, 10), "small": (4, 10)}


def train(ranks, wire, cache, rule=RULE, num_steps=20):
    """Updates that each row has had on any rank, and what its owner has in the end."""
    store = ShardedStore([SPEC], group=ranks, wire=wire)
    if cache is not None:
        store = CachedStore(store, *cache, 0, "lru")
    store.bind(rule)
    traces = [draw_trace(5, rank, SPEC.num_rows, num_steps) for rank in range(ranks.size)]
    generator = Generator().manual_seed(ranks.rank)
    num_updates = torch.zeros(SPEC.num_rows)
    for number, steps in enumerate(zip(*traces, strict=True)):
        ids = steps[ranks.rank].reads
        rows = store.exchange(None, ids).rows[0]
        gradients = torch.randn(rows.shape, generator=generator)
        store.submit(RowUpdate(ids, (gradients,), torch.ones_like(ids)))
        num_updates[torch.cat([step.reads for step in steps]).unique()] += 1  # a round is one
        if number % 5 == 4:
            store.flush()
    store.flush()
    everything = torch.arange(SPEC.num_rows)
    reply = store.exchange(None, everything, torch.full_like(everything, -1))
    return num_updates, {"rows": store.read(everything), **reply.state[0]}


@pytest.mark.parametrize("cache", CACHES)
def test_the_number_of_adam_steps_is_the_number_of_updates(cache):
    exact = None
    for wire in WIRES:
        num_updates, found = run_as_ranks(2, lambda r, w=wire: train(r, w, CACHES[cache]))[0]
        assert torch.equal(found["steps"].flatten(), num_updates), wire
        exact = exact or found
        # Gradients of a row are rounded by a 127th of about 3 at most, and averaged over two ranks.
        for name, tolerance in (("mean", 0.025), ("variance", 0.002), ("rows", 0.02)):
            assert (found[name] - exact[name]).abs().max() < tolerance, (wire, name)


@pytest.mark.parametrize("wire", WIRES)
def test_a_copy_takes_the_same_adam_steps_as_its_owner(wire):
    """A worker that is alone with a row has its owner's state, though gradients were rounded."""

    def work(ranks):
        store = CachedStore(ShardedStore([SPEC], group=ranks, wire=wire), 30, 10, 0, "lru")
        store.bind(RULE)
        generator = Generator().manual_seed(ranks.rank)
        ids = torch.tensor([2 + (1 - ranks.rank)])  # of the other rank
        for _ in range(15):
            store.exchange(None, ids)
            gradients = torch.randn(1, SPEC.dim, generator=generator)
            store.submit(RowUpdate(ids, (gradients,), torch.ones_like(ids)))
        store.exchange(None, ids)  # pushes the last one
        (copies,) = store.copies
        slot = copies.find(ids)
        mine = {n: copies.get_buffer(f"state_{n}")[slot] for n in ("mean", "variance", "steps")}
        theirs = store.inner.exchange(None, ids, torch.full_like(ids, -1)).state[0]
        return mine, theirs

    for mine, theirs in run_as_ranks(2, work):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def add_twice(store):
    store.bind(RULE)
    ids = torch.tensor([1, 2])
    for value in (1.0, -3.0):
        store.add(ids, torch.full((2, SPEC.dim), value))
    store.flush()
    return store.read(ids)


def test_two_batches_before_an_exchange_are_two_steps():
    expected = add_twice(LocalStore([SPEC]))
    cached = CachedStore(LocalStore([SPEC]), 1, 10, 0)
    cached.exchange(None, torch.tensor([1]))  # one row with a copy, one without
    assert torch.equal(add_twice(cached), expected)


def test_an_exchange_with_an_update_keeps_an_earlier_batch_apart():
    local, cached = LocalStore([SPEC]), CachedStore(LocalStore([SPEC]), 4, 10, 0)
    ids = torch.tensor([1])
    for store in (local, cached):
        store.bind(RULE)
        store.exchange(None, ids)
        store.add(ids, torch.ones(1, SPEC.dim))
        update = RowUpdate(ids, (torch.full((1, SPEC.dim), -3.0),), torch.ones_like(ids))
        store.exchange(update, ids)
    assert torch.equal(local.read(ids), cached.read(ids))


@pytest.mark.parametrize("wire", WIRES)
def test_squares_of_merged_batches_are_not_rounded(wire):
    """If a square rounds to 0 and its gradient does not, the step is unbounded."""

    def work(ranks):
        store = ShardedStore([SPEC], group=ranks, wire=wire)
        store.bind(AdagradRule(0.1))
        before = store.read(torch.arange(2))
        gradients = torch.full((1, SPEC.dim), 0.02)
        gradients[0, 0] = 1.0
        ids = torch.tensor([1 - ranks.rank])
        update = RowUpdate(ids, (2 * gradients,), torch.tensor([2]), (2 * gradients.square(),))
        store.exchange(update, ids)
        return (store.read(torch.arange(2)) - before).abs().max()

    assert max(run_as_ranks(2, work)) < 0.2  # √2 times the learning rate, with rounded gradients

"""Rows of 16 bits train, and are the same to the last bit wherever they live."""

import pytest
import torch
from store_checks import (
    cache_without_staleness_changes_no_bit,
    number_of_owners_changes_no_bit,
)
from torch import Generator

import outsize
from outsize.contracts import RowUpdate
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import STORES, CachedStore, LocalStore, ShardedStore

HALF = [torch.bfloat16, torch.float16]


def spec(dtype, num_rows=16, dim=8):
    return outsize.TableSpec("rows", num_rows, dim, dtype=dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", STORES)
def test_small_updates_of_half_precision_rows_add_up(kind, dtype):
    """200 updates of 0.0001 each: rounded to the nearest, hardly a bfloat16 row would move."""
    store = STORES[kind]([spec(dtype)])
    store.bind(SGDRule(1e-3))
    ids = torch.arange(16)
    before = store.read(ids).float()
    gradients = torch.full((16, 8), 0.1)
    for _ in range(200):
        store.add(ids, gradients)
    store.flush()
    moved = before - store.read(ids).float()
    assert store.read(ids).dtype == dtype
    assert moved.mean() == pytest.approx(0.02, abs=0.002)  # of 128 numbers that scatter by 0.005


@pytest.mark.parametrize("rule", [SGDRule(0.003), AdamRule(0.003)])
def test_without_staleness_a_cache_changes_no_bit(rule, unchecked_shapes):
    check = cache_without_staleness_changes_no_bit
    run_as_ranks(2, lambda ranks: check(ranks, rule, "lru", torch.bfloat16))


def test_owners_make_no_difference(unchecked_shapes):
    rule = AdagradRule(0.01, row_wise=True)
    run_as_ranks(2, lambda ranks: number_of_owners_changes_no_bit(ranks, rule, torch.float16))


def draw_updates(num_steps, ids, dim=8):
    generator = Generator().manual_seed(0)
    return [
        RowUpdate(ids, (torch.randn(len(ids), dim, generator=generator),), torch.ones_like(ids))
        for _ in range(num_steps)
    ]


@pytest.mark.parametrize("dtype", HALF)
def test_ranks_that_do_not_meet_in_a_row_draw_as_one_process_does(dtype):
    def work(ranks):
        store = ShardedStore([spec(dtype)], group=ranks)
        store.bind(SGDRule(0.003))
        mine = torch.arange(8) + 8 * ranks.rank
        for update in draw_updates(20, torch.arange(16)):
            own = update.take(mine)
            store.exchange(RowUpdate(own.ids, (2 * own.gradients[0],), own.ticks), own.ids)
        return store.read(torch.arange(16))

    local = LocalStore([spec(dtype)])
    local.bind(SGDRule(0.003))
    for update in draw_updates(20, torch.arange(16)):
        local.exchange(update, update.ids)
    for found in run_as_ranks(2, work):
        assert torch.equal(found, local.read(torch.arange(16)))


@pytest.mark.parametrize("rule", [SGDRule(0.003), AdagradRule(0.01), AdamRule(0.003)])
def test_a_copy_that_nobody_else_updates_stays_equal_to_its_owners_row(rule):
    inner = LocalStore([spec(torch.bfloat16)])
    store = CachedStore(inner, 16, 10, 0, "lru")
    store.bind(rule)
    ids = torch.tensor([3, 8])
    for update in draw_updates(20, ids):
        store.exchange(None, ids)
        store.submit(update)
        shown = store.read(ids)
        assert torch.equal(store.exchange(None, ids).rows[0], shown)
        assert torch.equal(inner.read(ids), shown)


def test_a_resumed_training_draws_as_the_uninterrupted_one(tmp_path):
    ids = torch.arange(16)
    whole, first, second = (LocalStore([spec(torch.bfloat16)], seed=4) for _ in range(3))
    for store in (whole, first, second):
        store.bind(AdagradRule(0.003))
    updates = draw_updates(20, ids)
    for update in updates:
        whole.exchange(update, ids)
    for update in updates[:10]:
        first.exchange(update, ids)
    outsize.save_rows(first, tmp_path / "rows")
    outsize.load_rows(second, tmp_path / "rows")
    for update in updates[10:]:
        second.exchange(update, ids)
    assert torch.equal(whole.read(ids), second.read(ids))
    other = LocalStore([spec(torch.bfloat16)], seed=5)
    other.load_state_dict(LocalStore([spec(torch.bfloat16)], seed=4).state_dict())
    other.bind(AdagradRule(0.003))
    for update in updates:
        other.exchange(update, ids)
    assert not torch.equal(whole.read(ids), other.read(ids)), "draws must depend on the seed"


def test_a_float16_row_stops_at_the_largest_number():
    store = LocalStore([spec(torch.float16)])
    store.bind(SGDRule(1.0))
    store.add(torch.tensor([1]), torch.full((1, 8), -1e6))
    assert torch.equal(store.read(torch.tensor([1])).float(), torch.full((1, 8), 65_504.0))

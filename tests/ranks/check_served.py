"""Run by torchrun: rows served at any time, checked on every rank."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

import outsize
from outsize.contracts import RowUpdate
from outsize.errors import ConfigError, OwnerError
from outsize.kernels.rows.updates import AdagradRule, SGDRule
from outsize.ranks.collectives import barrier, gather_rows, process_group, rank, world_size
from outsize.stores import WIRES, CachedStore, ServedStore
from outsize.testing.checks import refusal

SPECS = [outsize.TableSpec("wide", 50, 4), outsize.TableSpec("thin", 11, 1)]
NONE = torch.empty(0, dtype=torch.int64)


def counting_store(**options):
    """A store where a push of -N on each rank adds 1."""
    store = ServedStore(SPECS, **options)
    store.bind(SGDRule(learning_rate=1.0))
    return store


def everything(store):
    return torch.cat([store.read(torch.arange(s.num_rows), s.name).flatten() for s in SPECS])


def update_of(store, ids, value, ticks=1):
    parts = tuple(
        torch.full((size, group.dim), value)
        for size, group in zip(store.layout.group_sizes(ids), store.layout.groups, strict=True)
    )
    return RowUpdate(ids, parts, torch.full_like(ids, ticks))


def check_nothing_is_lost_and_own_pushes_are_seen():
    with counting_store() as store:
        before = everything(store)
        store.flush()
        generator = torch.Generator().manual_seed(rank())
        mine = torch.zeros(61)
        for step in range(100 + 70 * rank()):  # uneven on purpose
            ids = (torch.rand(61, generator=generator) < 0.3).nonzero().flatten()
            update = update_of(store, ids, -1.0 * world_size())
            mine[ids] += 1
            if step % 2:
                store.submit(update)
                reply = store.exchange(None, ids)
            else:
                reply = store.exchange(update, ids)
            assert (reply.clocks >= mine[ids]).all()
            wide = ids[ids < 50]
            grown = reply.rows[0] - before[:200].view(50, 4)[wide]
            assert (grown >= mine[wide].unsqueeze(1) - 1e-3).all()
        store.flush()
        total = torch.stack(gather_rows(mine.unsqueeze(0))).sum(0).flatten()
        reply = store.exchange(None, torch.arange(61))
        assert torch.equal(reply.clocks, total.long())
        grown = everything(store) - before
        torch.testing.assert_close(grown[:200].view(50, 4), total[:50, None].expand(50, 4))
        torch.testing.assert_close(grown[200:], total[50:])


def check_a_slow_rank_holds_up_nobody():
    """One rank does nothing until the others say that they are done."""
    keys = dist.distributed_c10d._get_default_store()
    with counting_store() as store:
        store.flush()
        if rank() == 1:
            others = [f"rank {r} is done" for r in range(world_size()) if r != 1]
            keys.wait(others, timedelta(seconds=60))
        else:
            for _ in range(20):
                store.exchange(update_of(store, torch.arange(61), 1.0), torch.arange(61))
            keys.set(f"rank {rank()} is done", "")
        store.flush()


def check_empty_requests():
    with counting_store() as store:
        reply = store.exchange(None, NONE)
        assert reply.rows[0].shape == (0, 4)
        assert reply.stale.shape == reply.clocks.shape == (0,)
        store.exchange(update_of(store, NONE, 1.0), NONE, NONE)
        store.submit(None)
        one = torch.tensor([rank()])  # a request that goes to one owner only
        assert store.exchange(None, one, torch.tensor([0])).behind == 0
        counts = store.take_counts()
        assert counts.reads == counts.local == 1
        assert sum(counts.sent_bytes.values()) == 0
        store.peek(torch.arange(61))
        barrier()
        assert sum(store.take_counts().sent_bytes.values()) == 0
        barrier()
        store.exchange(None, torch.arange(61))
        store.flush()
        counts = store.take_counts()
        assert counts.reads == 61
        assert counts.sent_bytes["rows"] > 0


def check_it_equals_a_local_store_when_ranks_take_turns():
    """With one rank pushing at a time there is one order, and so one right answer."""
    with ServedStore(SPECS, seed=5) as store:
        local = outsize.LocalStore(SPECS, seed=5)
        rule = AdagradRule(0.1, row_wise=True)
        local.bind(rule)
        store.bind(rule)
        generator = torch.Generator().manual_seed(3)
        for step in range(2 * world_size()):
            ids = (torch.rand(61, generator=generator) < 0.5).nonzero().flatten()
            wide = torch.randn(int((ids < 50).sum()), 4, generator=generator)
            thin = torch.randn(int((ids >= 50).sum()), 1, generator=generator)
            ticks = torch.randint(1, 3, ids.shape, generator=generator)
            squares = (rule.square(wide) * 0.7, rule.square(thin) * 0.7)
            update = RowUpdate(ids, (wide, thin), ticks, squares)
            if step % world_size() == rank():
                store.exchange(update, NONE)
            barrier()
            mean = tuple(part / world_size() for part in (wide, thin))
            several = (ticks > 1).split([len(wide), len(thin)])
            local.exchange(RowUpdate(ids, mean, ticks, tuple(
                torch.where(flag[:, None], square / world_size() ** 2, rule.square(part))
                for flag, square, part in zip(several, squares, mean, strict=True)
            )), NONE)  # fmt: skip
        asked = torch.full((61,), 4)
        found = store.exchange(None, torch.arange(61), asked)
        expected = local.exchange(None, torch.arange(61), asked)
        assert torch.equal(found.stale, expected.stale)
        assert torch.equal(found.clocks, expected.clocks)
        assert found.behind == expected.behind
        for group in (0, 1):
            torch.testing.assert_close(found.rows[group], expected.rows[group])
            torch.testing.assert_close(found.state[group]["sum"], expected.state[group]["sum"])


def check_rounded_rows():
    for wire in WIRES:
        with counting_store(wire=wire) as store:
            before = everything(store)
            exact = torch.cat([part.tensors["rows"].flatten() for part in store.parts()])
            assert torch.isin(exact, before).all()  # own rows are not rounded
            store.flush()
            store.add(torch.arange(11), torch.full((11, 1), 1.0), "thin")
            store.flush()
            torch.testing.assert_close(everything(store)[200:], before[200:] - 1)


def check_a_cache_in_front():
    with counting_store() as inner:
        store = CachedStore(inner, num_rows=30, read_staleness=3, write_staleness=2)
        store.bind(SGDRule(learning_rate=1.0))
        before = everything(store)
        store.flush()
        for _ in range(20 + 5 * rank()):
            store.exchange(update_of(store, torch.arange(40), -1.0), torch.arange(40))
        store.flush()
        pushes = sum(20 + 5 * r for r in range(world_size())) / world_size()
        grown = (everything(store) - before)[:160]
        torch.testing.assert_close(grown, torch.full((160,), pushes), rtol=1e-4, atol=1e-4)


def check_evaluation_shows_waiting_updates_and_applies_none():
    with counting_store() as inner:
        store = CachedStore(inner, num_rows=30, read_staleness=3, write_staleness=2)
        store.bind(SGDRule(learning_rate=1.0))
        ids = torch.arange(61)
        before = everything(store)
        store.flush()
        if rank() == 0:
            store.exchange(None, ids)
            store.submit(update_of(store, ids, -1.0 * world_size()))
            torch.testing.assert_close(everything(store), before + 1)
            assert (inner.exchange(None, ids).clocks == 0).all()
        store.flush()
        assert (inner.exchange(None, ids).clocks == 1).all()
        torch.testing.assert_close(everything(store), before + 1)


def check_refusals_reach_the_asker_and_harm_nobody_else():
    with counting_store() as store:
        before = everything(store)
        store.flush()
        others = ((torch.arange(61) % world_size()) == (rank() + 1) % world_size()).nonzero()
        if rank() == 0:
            store.submit(update_of(store, others.flatten(), float("nan")))
            refused(lambda: store.read(torch.tensor([1]), "wide"), "rank 1 refused", "NaN")
            store.read(torch.tensor([1]), "wide")  # said once
            bad = torch.tensor([1 + world_size() * 1000])
            refused(lambda: store.exchange(None, bad), "rank 1 refused")
        else:
            for _ in range(20):
                store.read(torch.arange(50), "wide")
        store.flush()
        assert torch.equal(everything(store), before)
        # The rows of one rank are not taken for those of another.
        words = refusal(ConfigError, lambda: store.load_state_dict(store.state_dict()))
        assert "load_rows" in words
    refused(lambda: store.read(torch.arange(50), "wide"), "closed")


def check_a_cache_closes_the_store_behind_it_and_closing_twice_is_fine():
    inner = counting_store()
    with CachedStore(inner, num_rows=20) as store:
        store.exchange(None, torch.arange(61))
    refused(lambda: inner.read(torch.arange(50), "wide"), "closed")
    store.close()
    store.leave()
    inner.close()


def refused(request, *words):
    message = refusal(OwnerError, request)
    assert all(word in message for word in words), message


with process_group(torch.device("cpu")):
    check_nothing_is_lost_and_own_pushes_are_seen()
    check_a_slow_rank_holds_up_nobody()
    check_empty_requests()
    check_it_equals_a_local_store_when_ranks_take_turns()
    check_rounded_rows()
    check_a_cache_in_front()
    check_evaluation_shows_waiting_updates_and_applies_none()
    check_refusals_reach_the_asker_and_harm_nobody_else()
    check_a_cache_closes_the_store_behind_it_and_closing_twice_is_fine()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)

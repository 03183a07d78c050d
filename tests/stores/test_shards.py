"""Shares of a store together are the store."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.contracts import RowUpdate, Shard
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import AdagradRule
from outsize.spec import TableSpec
from outsize.stores import LocalStore

SPECS = [TableSpec("wide", 13, 4), TableSpec("thin", 5, 2), TableSpec("other", 2, 4)]


@given(st.integers(0, 40), st.integers(1, 9))
def test_every_id_has_one_owner_and_one_position(num_rows, count):
    found = []
    for index in range(count):
        shard = Shard(index, count)
        ids = [shard.id_at(position) for position in range(shard.num_below(num_rows))]
        assert shard.positions(torch.tensor(ids, dtype=torch.int64)).tolist() == [*range(len(ids))]
        found += ids
    assert sorted(found) == [*range(num_rows)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_shards_hold_what_the_whole_store_holds(count):
    whole = LocalStore(SPECS, seed=3)
    shards = [LocalStore(SPECS, seed=3, shard=Shard(index, count)) for index in range(count)]
    everything = torch.arange(20)
    gradients = (torch.randn(15, 4), torch.randn(5, 2))
    for store in (whole, *shards):
        store.bind(AdagradRule(learning_rate=0.1))
    whole.exchange(RowUpdate(everything, gradients, everything + 1), everything)
    for shard in shards:
        mine = everything[everything % count == shard.shard.index]
        by_group = [mine[mine < 15], mine[mine >= 15] - 15]
        own = tuple(g[ids] for g, ids in zip(gradients, by_group, strict=True))
        reply = shard.exchange(RowUpdate(mine, own, mine + 1), mine, torch.full_like(mine, -1))
        expected = whole.exchange(None, mine, torch.full_like(mine, -1))
        assert torch.equal(reply.clocks, expected.clocks)
        for part, other in zip(reply.rows, expected.rows, strict=True):
            assert torch.equal(part, other)
        for part, other in zip(reply.state, expected.state, strict=True):
            assert torch.equal(part["sum"], other["sum"])
    assert sum(s.memory_use().total_bytes for s in shards) == whole.memory_use().total_bytes


@pytest.mark.parametrize("count", [1, 3])
def test_parts_say_which_rows_they_are_and_are_in_place(count):
    whole = LocalStore(SPECS, seed=3)
    for index in range(count):
        store = LocalStore(SPECS, seed=3, shard=Shard(index, count))
        for part in store.parts():
            rows = torch.arange(part.num_rows) * part.every + part.first
            assert torch.equal(part.tensors["rows"], whole.read(rows, part.table))
            part.tensors["rows"].zero_()
            part.tensors["clocks"].fill_(7)
        assert all((store.rows(group) == 0).all() for group in (0, 1))
        assert (store.clocks == 7).all()


def test_rows_not_sent_say_how_far_they_are_behind():
    store = LocalStore(SPECS)
    store.bind(AdagradRule(learning_rate=0.1))
    ids = torch.tensor([1, 2])
    empty = torch.empty(0, 2)
    store.exchange(RowUpdate(ids, (torch.ones(2, 4), empty), torch.tensor([3, 9])), ids)
    assert store.exchange(None, ids, torch.tensor([8, 8])).behind == 3 - 8
    assert store.exchange(None, ids, torch.tensor([0, 0])).behind is None


def test_a_shard_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="index >= 0"):
        Shard(-1, 2)
    assert Shard(2, 2).num_below(100) == 0

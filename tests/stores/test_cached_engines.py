"""A cache trains to the same bits with compiled kernels and without."""

import random

import pytest
import torch

import outsize
from outsize.contracts import RowUpdate
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import CachedStore, ShardedStore

pytest.importorskip("numba")
SPECS = [
    outsize.TableSpec("a", 40, 4),
    outsize.TableSpec("b", 30, 4),
    outsize.TableSpec("c", 20, 3),
]


def train(ranks, rule, wire, cache):
    """Random reads and updates, a flush, an evaluation and a resumed cache; all that was seen."""
    inner = ShardedStore(SPECS, group=ranks, wire=wire)
    store = CachedStore(inner, *cache)
    store.bind(rule)
    source = random.Random(ranks.rank)
    draw = torch.Generator().manual_seed(ranks.rank)
    num_rows, seen = store.layout.num_rows, []
    for step in range(40):
        size = source.choice([0, 1, 6, 30])
        rows = {min(source.randrange(num_rows) for _ in range(2)) for _ in range(size)}
        ids = torch.tensor(sorted(rows), dtype=torch.int64)
        reply = store.exchange(None, ids)
        gradients = tuple(torch.randn(part.shape, generator=draw) for part in reply.rows)
        store.submit(RowUpdate(ids, gradients, torch.ones_like(ids)))
        seen += [*reply.rows, reply.clocks, *(copies.ids.clone() for copies in store.copies)]
        if step == 20:
            seen += store.peek(torch.arange(num_rows))
            store.flush()
            resumed = CachedStore(inner, *cache)
            resumed.bind(rule)
            resumed.load_rank_state(store.rank_state())
            store = resumed
    store.flush()
    return [*seen, *store.peek(torch.arange(num_rows))]


@pytest.mark.parametrize(
    ("rule", "wire", "cache"),
    [
        (AdagradRule(0.1, row_wise=True), "int8", (25, 3, 2, "fading-lfu")),
        (SGDRule(0.1), "float32", (80, 0, 1, "lru")),
        (AdamRule(0.1), "int8", (20, 2, 0, "light-lfu")),
        (AdagradRule(0.1), "float32", (12, float("inf"), float("inf"), "lfu")),
    ],
)
def test_compiled_kernels_change_no_bit(rule, wire, cache, monkeypatch, unchecked_shapes):
    found = []
    for engine in ("numba", "torch"):
        monkeypatch.setenv("OUTSIZE_KERNELS", engine)
        found.append(run_as_ranks(2, lambda ranks: train(ranks, rule, wire, cache)))
    for compiled, plain in zip(*found, strict=True):
        assert len(compiled) == len(plain)
        assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))

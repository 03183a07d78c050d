"""Run by torchrun: a negative cache that ranks share, over a real network."""

import os
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from outsize.errors import CheckpointError
from outsize.negatives import (
    ItemSource,
    NegativeCache,
    NegativeCacheConfig,
    ShardedNegativeCache,
    load_cache,
    save_cache,
)
from outsize.ranks.collectives import gather_rows, gather_values, process_group, rank, world_size

ID = {"id": ((), torch.int64), "tokens": ((3,), torch.int16)}
NUM_ITEMS, DIM = 12, 4
ITEMS = torch.randn(NUM_ITEMS, DIM, generator=torch.Generator().manual_seed(0))
folder = Path(sys.argv[2])


def push(cache, keys):
    features = {"id": keys, "tokens": keys.unsqueeze(1).expand(-1, 3).to(torch.int16)}
    return cache.push(features, ITEMS[keys], keys)


def filled(**options):
    """A cache of everything, all of it pushed by the last rank."""
    cache = ShardedNegativeCache(NUM_ITEMS, DIM, ID, precision="bfloat16", seed=1, **options)
    keys = torch.arange(NUM_ITEMS)
    report = push(cache, keys if rank() == world_size() - 1 else keys[:0])
    assert (report.num_new, cache.num_held) == (NUM_ITEMS, NUM_ITEMS)
    return cache


def check_draws_are_those_of_softmax_for_uneven_batches():
    cache = filled()
    queries = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1))
    mine = queries[: 3 * rank()]  # the first rank has none
    exclude = torch.zeros(len(mine), dtype=torch.int64)
    draw = cache.sample(mine, 4000, 2.0, exclude, with_mean=True)
    items = ITEMS.bfloat16().float()
    logits = (2.0 * mine).bfloat16().float() @ items.T
    logits[:, 0] = -torch.inf
    torch.testing.assert_close(draw.log_partition, logits.logsumexp(1))
    torch.testing.assert_close(draw.mean_embedding, logits.softmax(1) @ items)
    assert torch.equal(draw.features["id"], draw.keys)
    assert torch.equal(draw.features["tokens"][..., 2].long(), draw.keys)
    for keys, chances in zip(draw.keys, logits.softmax(1), strict=True):
        expected = 4000 * chances[1:]
        counts = torch.bincount(keys, minlength=NUM_ITEMS)[1:]
        assert ((counts - expected) ** 2 / expected)[expected > 3].sum() < 48


def check_committed_items_are_rewritten_by_their_owners():
    cache = filled()
    draw = cache.sample(torch.zeros(2 * rank(), DIM), 30)
    cache.commit(draw, torch.full((2 * rank(), 30, DIM), float(rank())))
    drawn = set(torch.cat(gather_rows(draw.keys.flatten())).tolist())
    for row, key in enumerate(cache.own.keys.tolist()):
        if key >= 0:
            assert key % world_size() == rank()
            age, first = cache.clock - cache.own.encoded_at[row], cache.own.items.vectors[row, 0]
            assert age == (key not in drawn)
            assert first == world_size() - 1 if key in drawn else first != world_size() - 1
    due = cache.oldest(1)
    cache.rewrite(due, torch.full((1, DIM), 9.0))
    assert (cache.own.items.vectors[:, 0] == 9).sum() == 1


def check_ddp_leaves_every_rank_its_own():
    cache = filled()
    module = torch.nn.ModuleDict({"cache": cache, "tower": torch.nn.BatchNorm1d(DIM)})
    module.forward = lambda x: module["tower"](x)
    parallel = DistributedDataParallel(module)
    parallel(torch.randn(3, DIM)).sum().backward()
    keys = cache.own.keys
    assert (keys[keys >= 0] % world_size() == rank()).all()
    assert sum(gather_values(cache.num_held_here)) == NUM_ITEMS


def check_a_run_shares_its_cache():
    torch.manual_seed(0)
    table = torch.nn.Embedding(NUM_ITEMS, DIM)
    encoded = []

    def encode(features):
        encoded.extend(features["id"].tolist())
        return table(features["id"])

    source = ItemSource(NUM_ITEMS, DIM, lambda keys: {"id": keys}, encode)
    config = NegativeCacheConfig(num_negatives=2, refresh=0.2, precision="float32", in_batch=True)
    loss = config.build(source, seed=3)
    assert isinstance(loss.cache, ShardedNegativeCache)
    loss.begin()
    assert encoded == list(range(rank(), NUM_ITEMS, world_size()))
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank())
    for _ in range(5):
        keys = torch.randint(NUM_ITEMS, (2 + rank(),), generator=generator)
        report = loss(torch.randn(len(keys), DIM, generator=generator), {"id": keys}, keys)
        report.loss.backward()
        optimizer.step()
        loss.commit(report)
    metrics = loss.latest_metrics()
    assert metrics["held"] == NUM_ITEMS
    assert metrics["refreshed"] > 0


def check_saving():
    cache = filled()
    cache.commit()
    push(cache, torch.tensor([rank()]))
    save_cache(cache, folder / "cache")
    draw = cache.sample(torch.ones(2, DIM), 8)
    again = ShardedNegativeCache(NUM_ITEMS, DIM, ID, precision="bfloat16")
    assert load_cache(again, folder / "cache") == 0
    assert torch.equal(again.sample(torch.ones(2, DIM), 8).keys, draw.keys)


def check_caches_that_ranks_keep_each_for_itself():
    own = NegativeCache(4, DIM, precision="float32", seed=rank())
    own.push({}, torch.full((1 + rank(), DIM), float(rank())), torch.arange(1 + rank()))
    save_cache(own, folder / "own")
    again = NegativeCache(4, DIM, precision="float32")
    load_cache(again, folder / "own")
    assert torch.equal(again.keys, own.keys)
    assert again.counters() == own.counters()


def complaint(cache, name):
    """Why a cache cannot be loaded, which then holds nothing."""
    try:
        load_cache(cache, folder / name)
    except CheckpointError as error:
        assert cache.num_held == 0
        return str(error)
    raise AssertionError("it was loaded")


def check_loading():
    cache = ShardedNegativeCache(NUM_ITEMS, DIM, ID, precision="bfloat16")
    assert load_cache(cache, folder / "cache") == 0
    assert (cache.num_held, cache.clock) == (NUM_ITEMS, 1)
    rows = torch.arange(cache.num_held_here)
    keys = cache.own.keys[rows]
    assert sorted(keys.tolist()) == list(range(rank(), NUM_ITEMS, world_size()))
    assert torch.equal(cache.own.items.vectors[rows], ITEMS[keys].bfloat16())
    assert torch.equal(cache.ages(), (keys > 1).long())  # keys 0 and 1 were pushed once more
    small = ShardedNegativeCache(2 * world_size(), DIM, ID, precision="bfloat16")
    assert load_cache(small, folder / "cache") == NUM_ITEMS - 2 * world_size()
    wider = ShardedNegativeCache(NUM_ITEMS, DIM + 1, ID, precision="bfloat16")
    assert "build the cache as it was saved" in complaint(wider, "cache")
    words = complaint(NegativeCache(4, DIM, precision="float32"), "own")
    assert words.endswith(
        "holds 2 separate negative caches, one per rank, but there are 3 ranks: "
        "load them on 2 ranks"
    )


with process_group(torch.device("cpu")):
    if sys.argv[1] == "save":
        check_draws_are_those_of_softmax_for_uneven_batches()
        check_committed_items_are_rewritten_by_their_owners()
        check_ddp_leaves_every_rank_its_own()
        check_a_run_shares_its_cache()
        check_saving()
        check_caches_that_ranks_keep_each_for_itself()
    else:
        check_loading()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)

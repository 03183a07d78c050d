"""Batches of several ranks taken together are the batch of one process."""

import pytest
import torch

from outsize.kernels.ragged import Ragged
from outsize.negatives import (
    Comparison,
    CorpusFeed,
    InBatchLoss,
    ItemSource,
    NegativeCache,
    NegativeCacheLoss,
    PositivesFeed,
    ShardedNegativeCache,
    Temperature,
    Upkeep,
)
from outsize.ranks.gathering import gather_keys, gather_lines, gather_lists
from outsize.ranks.thread_ranks import run_as_ranks

NUM_ITEMS, DIM = 12, 4
SIZES = (3, 0, 5)
PARTS = (slice(0, 3), slice(3, 3), slice(3, 8))
ID = {"id": ((), torch.int64)}


def test_lines_come_in_the_order_of_ranks_and_gradients_go_home():
    values, weights = torch.randn(8, 2), torch.randn(3, 8, 2)

    def work(ranks):
        own = values[PARTS[ranks.rank]].clone().requires_grad_()
        gathered = gather_lines(own, ranks)
        assert torch.equal(gathered, values)
        (gathered * weights[ranks.rank]).sum().backward()
        torch.testing.assert_close(own.grad, weights.sum(dim=0)[PARTS[ranks.rank]])
        keys, first = gather_keys(torch.arange(8)[PARTS[ranks.rank]], ranks)
        assert keys.tolist() == list(range(8))
        assert first == PARTS[ranks.rank].start
        lists = Ragged.of(torch.full((SIZES[ranks.rank], ranks.rank), ranks.rank))
        gathered = gather_lists(lists, ranks)
        assert gathered.values.tolist() == [2] * 10
        assert gathered.sizes().tolist() == [0] * 3 + [2] * 5

    run_as_ranks(3, work)


def test_one_rank_gathers_what_it_has():
    values = torch.randn(3, 2)
    assert gather_lines(values, None) is values
    assert gather_keys(values[:, 0].long(), None)[1] == 0


def whole_and_parts(make_loss):
    """Losses and gradients of one process, and of ranks that each have a part of its batch."""
    torch.manual_seed(3)
    table, queries = torch.randn(NUM_ITEMS, DIM), torch.randn(8, DIM)
    keys = torch.tensor([5, 1, 5, 2, 2, 0, 7, 1])
    known = torch.randint(-1, NUM_ITEMS, (8, 3))

    def losses(ranks, mine, share):
        weights, asked = table.clone().requires_grad_(), queries.clone().requires_grad_()
        loss = make_loss(lambda features: weights[features["id"]], ranks)
        loss.begin()
        report = loss(asked[mine], {"id": keys[mine]}, keys[mine], known[mine])
        (report.loss * share).backward()
        return report.losses, weights.grad, asked.grad

    def work(ranks):
        mine = (slice(0, 3), slice(3, 8))[ranks.rank]
        return losses(ranks, mine, (mine.stop - mine.start) / 8)

    return losses(None, slice(0, 8), 1.0), run_as_ranks(2, work)


def assert_same(whole, parts):
    torch.testing.assert_close(torch.cat([losses for losses, _, _ in parts]), whole[0])
    for place in (1, 2):
        torch.testing.assert_close(sum(part[place] for part in parts), whole[place])


@pytest.mark.parametrize("log_q", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_in_batch_losses_are_those_of_the_whole_batch(symmetric, log_q):
    counts = torch.arange(1, NUM_ITEMS + 1)

    def make_loss(encode, ranks):
        source = ItemSource(NUM_ITEMS, DIM, lambda keys: {"id": keys}, encode, counts)
        return InBatchLoss(source, Temperature(2.0), symmetric, log_q, ranks)

    assert_same(*whole_and_parts(make_loss))


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_positives_of_all_ranks_join_a_cache_that_they_share(warmup_steps):
    """In an empty cache the batch is all there is, so that no draw differs."""
    comparison = Comparison(in_batch=True, symmetric=True)

    def make_loss(encode, ranks):
        options = {} if ranks is None else {"group": ranks}
        kind = NegativeCache if ranks is None else ShardedNegativeCache
        cache = kind(NUM_ITEMS, DIM, ID, precision="float32", **options)
        upkeep = Upkeep(PositivesFeed(), warmup_steps=warmup_steps)
        return NegativeCacheLoss(cache, encode, 2.0, 2, comparison, upkeep)

    assert_same(*whole_and_parts(make_loss))


def test_what_joins_from_another_rank_is_taken_out_of_the_cache():
    """Every item counts once, so that the loss is that of the whole softmax on each rank."""
    torch.manual_seed(1)
    table, queries = torch.randn(NUM_ITEMS, DIM), torch.randn(4, DIM)
    keys = torch.tensor([3, 8, 0, 3])

    def work(ranks):
        def encode(features):
            return table[features["id"]]

        cache = ShardedNegativeCache(NUM_ITEMS, DIM, ID, precision="float32", group=ranks)
        source = ItemSource(NUM_ITEMS, DIM, lambda rows: {"id": rows}, encode)
        upkeep = Upkeep(CorpusFeed(source))
        loss = NegativeCacheLoss(cache, encode, 2.0, 2, Comparison(in_batch=True), upkeep)
        loss.begin()
        mine = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        return loss(queries[mine], {"id": keys[mine]}, keys[mine]).losses

    logits = 2 * queries @ table.T
    expected = logits.logsumexp(dim=1) - logits[torch.arange(4), keys]
    torch.testing.assert_close(torch.cat(run_as_ranks(2, work)), expected)

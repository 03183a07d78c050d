"""Feeds and losses over a cache that ranks share."""

import pytest
import torch

from outsize.collection import EmbeddingCollection
from outsize.errors import ConfigError
from outsize.negatives import (
    Comparison,
    CorpusFeed,
    HeldItems,
    ItemSource,
    NegativeCache,
    NegativeCacheConfig,
    NegativeCacheLoss,
    PositivesFeed,
    ShardedNegativeCache,
    StreamFeed,
    Upkeep,
)
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import ShardedStore

NUM_ITEMS, DIM = 23, 4
ID = {"id": ((), torch.int64)}
NO_KEYS = torch.empty(0, dtype=torch.int64)
NO_POSITIVES = HeldItems(NO_KEYS, NO_KEYS, {"id": NO_KEYS})


class Encoder:
    """A table of items that counts what it encodes."""

    def __init__(self, num_items=NUM_ITEMS):
        generator = torch.Generator().manual_seed(4)
        self.table = torch.randn(num_items, DIM, generator=generator)
        self.encoded = []

    def __call__(self, features):
        self.encoded += features["id"].tolist()
        return self.table[features["id"]]

    def source(self):
        return ItemSource(len(self.table), DIM, lambda keys: {"id": keys}, self)


def make(ranks, num_items=NUM_ITEMS, **options):
    return ShardedNegativeCache(num_items, DIM, ID, precision="float32", group=ranks, **options)


def test_all_ranks_encode_as_many_chunks():
    def work(ranks):
        calls = []

        def encode(features):
            calls.append(len(features["id"]))
            return torch.zeros(len(features["id"]), DIM)

        source = ItemSource(16_385, DIM, lambda keys: {"id": keys}, encode)
        CorpusFeed(source).begin(make(ranks, 16_386))
        return calls

    assert run_as_ranks(2, work) == [[8192, 1], [8192, 0]]


def test_ranks_with_nothing_to_encode_meet_the_others_where_rows_are_shared(monkeypatch):
    """Of 23 items on 3 ranks one keeps 7: none for the last piece, and seldom one due."""
    monkeypatch.setattr("outsize.negatives.cache.feeds._FILL_SIZE", 7)

    def work(ranks):
        store = ShardedStore([TableSpec("id", NUM_ITEMS, DIM)], group=ranks)
        embeddings = EmbeddingCollection([FeatureSpec("id")], store)

        def encode(features):
            return embeddings({"id": features["id"]})["id"]

        source = ItemSource(NUM_ITEMS, DIM, lambda keys: {"id": keys}, encode)
        loss = NegativeCacheLoss(
            make(ranks), encode, 3.0, 2, upkeep=Upkeep(CorpusFeed(source), refresh=0.05)
        )
        loss.begin()
        for step in range(6):
            keys = torch.tensor([step + ranks.rank])
            loss.commit(loss(encode({"id": keys}), {"id": keys}, keys))
        return loss.cache.num_held

    assert run_as_ranks(3, work) == [NUM_ITEMS] * 3


@pytest.mark.parametrize("comparison", [Comparison(), Comparison("control-variate", in_batch=True)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_losses_are_those_of_one_cache(size, comparison):
    queries, keys = torch.randn(10, DIM), torch.randint(NUM_ITEMS, (10,))
    known = torch.randint(-1, NUM_ITEMS, (10, 2))

    def losses(cache, mine):
        encoder = Encoder()
        upkeep = Upkeep(CorpusFeed(encoder.source()))
        loss = NegativeCacheLoss(cache, encoder, 3.0, 2, comparison, upkeep)
        loss.begin()
        return loss(queries[mine], {"id": keys[mine]}, keys[mine], known[mine])

    def work(ranks):
        mine = slice(3 * ranks.rank, 3 * ranks.rank + 4)
        one = NegativeCache(NUM_ITEMS, DIM, ID, precision="float32")
        found, expected = losses(make(ranks), mine), losses(one, mine)
        torch.testing.assert_close(found.losses, expected.losses)
        assert found.metrics["staleness"].item() == 0

    run_as_ranks(size, work)


def test_each_rank_encodes_what_it_keeps_of_a_corpus_and_all_of_it_is_held():
    def work(ranks):
        cache, encoder = make(ranks), Encoder()
        CorpusFeed(encoder.source()).begin(cache)
        assert encoder.encoded == cache.own.keys[cache.own.keys >= 0].tolist()
        assert cache.num_held == NUM_ITEMS
        return encoder.encoded

    found = run_as_ranks(3, work)
    assert sorted(key for keys in found for key in keys) == list(range(NUM_ITEMS))
    assert [len(keys) for keys in found] == [8, 8, 7]


def test_a_corpus_that_comes_in_pieces_is_held_whole(monkeypatch):
    monkeypatch.setattr("outsize.negatives.cache.feeds._FILL_SIZE", 4)

    def work(ranks):
        cache, encoder = make(ranks, 24), Encoder(17)  # 9 on one rank, so in three pieces, and 8
        CorpusFeed(encoder.source()).begin(cache)
        return cache.num_held, cache.own.num_held, encoder.encoded

    (total, *one), (_, *other) = run_as_ranks(2, work)
    assert (total, one[0], other[0]) == (17, 9, 8)
    assert one[1] == list(range(0, 17, 2))
    assert other[1] == list(range(1, 17, 2))  # none in the third piece, in which it takes part


def test_a_corpus_without_room_is_refused():
    def work(ranks):
        with pytest.raises(ConfigError, match="the cache holds 22 items, but the corpus has 23"):
            CorpusFeed(Encoder().source()).begin(make(ranks, 22))

    run_as_ranks(2, work)


def test_more_ranks_than_items_leave_some_without():
    def work(ranks):
        cache, encoder = make(ranks, 2), Encoder(2)
        CorpusFeed(encoder.source()).begin(cache)
        StreamFeed(encoder.source(), 4).feed(cache, NO_POSITIVES, torch.empty(0, DIM))
        return cache.num_held, cache.num_held_here

    assert run_as_ranks(3, work) == [(2, 1), (2, 1), (2, 0)]


def test_a_stream_brings_different_items_from_each_rank_and_stays_uniform():
    def work(ranks):
        cache, encoder = make(ranks, 10, corpus_size=NUM_ITEMS), Encoder()
        feed = StreamFeed(encoder.source(), 6, seed=1)
        feed.begin(cache)
        assert cache.num_held == 10
        filled = list(encoder.encoded)
        counts = torch.zeros(NUM_ITEMS)
        for _ in range(60):
            cache.commit()
            report = feed.feed(cache, NO_POSITIVES, torch.empty(0, DIM))
            assert report.num_new + report.num_known + report.num_repeated == 6 * ranks.size
            counts[cache.own.keys] += 1
        return filled, encoder.encoded[len(filled) :], counts

    (one, more, counts), (other, others, rest) = run_as_ranks(2, work)
    assert len(set(one) | set(other)) == 10
    assert len(more) == len(others) == 360
    assert not set(more) & set(others)
    assert set(more) | set(others) == set(range(NUM_ITEMS))
    shares = (counts + rest) / 60
    assert 0.2 < shares.min() < shares.max() < 0.65  # 5 of 12 and 5 of 11


def test_a_share_of_all_items_is_swept_a_step_by_their_owners():
    def work(ranks):
        encoder = Encoder()
        upkeep = Upkeep(CorpusFeed(encoder.source()), refresh=0.1)
        loss = NegativeCacheLoss(make(ranks), encoder, 3.0, 1, upkeep=upkeep)
        loss.begin()
        swept = []
        for _ in range(10):
            keys = torch.arange(1 + ranks.rank)
            report = loss(torch.randn(len(keys), DIM), {"id": keys}, keys)
            encoder.encoded.clear()
            loss.commit(report)
            swept += encoder.encoded
        assert all(key % ranks.size == ranks.rank for key in swept)
        metrics = loss.latest_metrics()
        assert metrics["held"] == NUM_ITEMS
        assert metrics["alpha"] == 1
        return len(swept)

    assert run_as_ranks(2, work) == [12, 11]


def test_a_batch_of_no_queries_has_no_losses():
    def work(ranks):
        table = torch.nn.Embedding(NUM_ITEMS, DIM)
        cache = make(ranks)
        keys = torch.arange(3 * ranks.rank)
        loss = NegativeCacheLoss(cache, lambda items: table(items["id"]), 3.0, 2)
        for _ in range(2):
            report = loss(table(keys), {"id": keys}, keys)
            loss.commit(report)
        assert len(report.losses) == len(keys)
        assert cache.num_held == 3
        return loss.latest_metrics()["pushed_known"]

    assert run_as_ranks(2, work) == [1, 1]


def test_positives_are_pushed_with_their_weights():
    def work(ranks):
        counts = torch.arange(1, NUM_ITEMS + 1)
        cache, encoder = make(ranks, 6), Encoder()
        feed = PositivesFeed(counts, 6)
        loss = NegativeCacheLoss(cache, encoder, 3.0, 1, upkeep=Upkeep(feed))
        keys = torch.tensor([[2, 5], [3, 20]])[ranks.rank]
        loss.commit(loss(torch.randn(2, DIM), {"id": keys}, keys))
        return dict(zip(cache.own.keys.tolist(), cache.own.log_weights.tolist(), strict=True))

    even, odd = run_as_ranks(2, work)
    assert set(even) == {2, 20, -1}
    assert set(odd) == {3, 5, -1}
    assert even[2] > odd[3] > odd[5] > even[20] > 0


def test_one_process_has_a_cache_of_its_own():
    loss = NegativeCacheConfig().build(Encoder().source(), seed=0)
    assert type(loss.cache) is NegativeCache

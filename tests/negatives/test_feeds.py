"""Which items a cache holds, and how likely."""

import math

import pytest
import torch
from item_sources import Towers

from outsize.errors import ConfigError
from outsize.negatives import CorpusFeed, HeldItems, NegativeCache, PositivesFeed, StreamFeed
from outsize.negatives.inclusion import log_inclusion


def make(num_items, **options):
    return NegativeCache(num_items, 6, {"id": ((), torch.int64)}, **options)


def nothing(towers):
    keys = torch.empty(0, dtype=torch.int64)
    return HeldItems(keys, keys, {"id": keys}), torch.empty(0, 6)


def test_a_corpus_is_held_from_the_start():
    towers, cache = Towers(), make(40)
    CorpusFeed(towers.source()).begin(cache)
    assert sorted(cache.keys[cache.keys >= 0].tolist()) == list(range(30))


def test_a_corpus_larger_than_its_cache_is_refused():
    with pytest.raises(ConfigError, match="holds 20 items, but the corpus has 30: make it larger"):
        CorpusFeed(Towers().source()).begin(make(20))


def test_a_stream_fills_the_cache_and_then_moves_on():
    towers, cache = Towers(num_items=1000), make(100, corpus_size=1000)
    feed = StreamFeed(towers.source(), num_new=10)
    feed.begin(cache)
    assert cache.num_held == 100
    before = set(cache.keys.tolist())
    for _ in range(20):
        cache.commit()
        feed.feed(cache, *nothing(towers))
    after = set(cache.keys.tolist())
    assert cache.num_held == len(after) == 100
    assert len(before & after) < 30  # 10% by chance


def test_a_stream_is_a_uniform_sample():
    towers = Towers(num_items=40)
    counts = torch.zeros(40)
    turns = 600
    cache = make(10, corpus_size=40)
    feed = StreamFeed(towers.source(), num_new=4, seed=1)
    feed.begin(cache)
    for _ in range(turns):
        for _ in range(4):  # until the cache has turned over
            cache.commit()
            feed.feed(cache, *nothing(towers))
        counts[cache.keys] += 1
    expected = turns / 4
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - 1 / 4)
    assert statistic < 95  # about chi-square with 39 degrees of freedom: exceeded once in 10⁶


def test_few_of_many_random_items_are_distinct():
    towers = Towers(num_items=5000)
    cache = make(50)
    StreamFeed(towers.source(), num_new=1).begin(cache)
    assert cache.num_held == 50


def test_a_stream_needs_new_items():
    with pytest.raises(ConfigError, match="num_new >= 1, but got 0"):
        StreamFeed(Towers().source(), num_new=0)


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
def test_chances_to_be_held_are_those_of_a_simulation(eviction):
    generator = torch.Generator().manual_seed(0)
    frequencies = 1 / torch.arange(1, 61) ** 0.8
    cache = NegativeCache(15, 1, eviction=eviction)
    counts = torch.zeros(60)
    for turn in range(4000):
        keys = torch.multinomial(frequencies, 1, generator=generator)
        cache.push({}, torch.zeros(1, 1), keys)
        if turn >= 200:
            counts[cache.keys[cache.keys >= 0]] += 1
    expected = log_inclusion(frequencies, 15, eviction).exp()
    assert expected.sum().item() == pytest.approx(15, rel=1e-4)
    measured = counts / 3800
    assert (measured - expected).abs().max() < 0.08
    assert (measured[:10] - expected[:10]).abs().mean() < 0.035


def test_a_cache_with_room_for_all_that_is_pushed_holds_it_for_sure():
    logs = log_inclusion(torch.tensor([3, 0, 1]), 2)
    assert logs.tolist() == [0.0, -math.inf, 0.0]


def test_frequencies_must_be_frequencies():
    with pytest.raises(ConfigError, match="frequencies must be >= 0"):
        log_inclusion(torch.tensor([1.0, -1.0]), 1)


def test_positives_weigh_the_inverse_of_their_chance_to_be_held():
    counts = torch.tensor([100, 10, 1, 1, 1, 1])
    feed = PositivesFeed(counts, num_held=2)
    cache = make(2)
    keys = torch.tensor([0, 3])
    feed.feed(cache, HeldItems(keys, keys, {"id": keys}), torch.zeros(2, 6))
    expected = -log_inclusion(counts, 2)[keys]
    torch.testing.assert_close(cache.log_weights, expected)
    assert expected[1] > expected[0]

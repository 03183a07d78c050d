"""Which items a cache holds, and how likely."""

import math

import pytest
import torch
from item_sources import Towers

from outsize.errors import ConfigError
from outsize.interrupts import StopRequested, stopping_when
from outsize.negatives import (
    CorpusFeed,
    HeldItems,
    NegativeCache,
    PositivesFeed,
    ShardedNegativeCache,
    StreamFeed,
    contract,
    load_cache,
    save_cache,
)
from outsize.negatives.cache import feeds
from outsize.negatives.inclusion import InclusionProbabilities, log_inclusion
from outsize.ranks.thread_ranks import run_as_ranks


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


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
def test_chances_change_without_a_jump_from_filling_to_full(eviction):
    counts = (1e5 / torch.arange(1, 501)).long()
    chances = InclusionProbabilities(counts, 60, eviction)
    keys = torch.arange(500)
    for edge in (chances.full_at, chances.steady_at):
        before, after = (chances.log_probabilities(keys, edge * by) for by in (1 - 1e-6, 1 + 1e-6))
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)
    for num_pushed in (chances.full_at, (chances.full_at + chances.steady_at) / 2, math.inf):
        assert chances.log_probabilities(keys, num_pushed).exp().sum().item() == pytest.approx(
            60, 1e-4
        )
    torch.testing.assert_close(
        chances.log_probabilities(keys, math.inf), log_inclusion(counts, 60, eviction)
    )


def test_chances_of_a_cache_with_room_for_all_grow_to_one():
    counts = torch.tensor([50, 1, 0, 1])
    for num_pushed in (1, 7):
        expected = 1 - (1 - counts / 52) ** num_pushed
        torch.testing.assert_close(
            log_inclusion(counts, 4, num_pushed=num_pushed).exp(), expected.float()
        )
    assert log_inclusion(counts, 4, num_pushed=10_000).tolist() == [0.0, 0.0, -math.inf, 0.0]


def feed_batches(feed, cache, batches):
    for keys in batches:
        cache.commit()
        feed.feed(cache, HeldItems(keys, keys, {"id": keys}), torch.zeros(len(keys), 6))


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
def test_positives_weigh_the_inverse_of_their_chance_to_be_held_by_then(eviction):
    counts = torch.tensor([100, 10, 1, 1, 1, 1])
    feed, cache = PositivesFeed(counts, 2, eviction), make(2, eviction=eviction)
    feed_batches(feed, cache, [torch.tensor([0]), torch.tensor([0, 0, 0])])
    expected = -log_inclusion(counts, 2, eviction, num_pushed=4)
    assert cache.log_weights[0].item() == pytest.approx(expected[0].item())
    feed_batches(feed, cache, [torch.tensor([0, 3])] * 100)
    expected = -log_inclusion(counts, 2, eviction)
    assert cache.keys.tolist() == [0, 3]
    torch.testing.assert_close(cache.log_weights, expected[torch.tensor([0, 3])])
    assert expected[3] > expected[0]


def partitions_over_time(eviction, steps, seeds, num_items=600, size=120, batch=8):
    """The estimated over the exact partition at each of some steps, a line for each seed.

    Popular items have the greater scores, as they do where a model is trained.
    """
    counts = (1e5 / torch.arange(1, num_items + 1)).long()
    scores = torch.linspace(1, 0, num_items)
    exact = scores.exp().sum()
    found = torch.zeros(seeds, len(steps))
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        feed, cache = PositivesFeed(counts, size, eviction), make(size, eviction=eviction)
        for step in range(1, steps[-1] + 1):
            keys = torch.multinomial(counts.float(), batch, replacement=True, generator=generator)
            feed_batches(feed, cache, [keys])
            if step in steps:
                weights = cache.scored().log_weights
                is_held = cache.keys >= 0
                logits = scores[cache.keys[is_held]] + weights[is_held]
                found[seed, steps.index(step)] = logits.exp().sum() / exact
    return found


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
def test_the_partition_of_the_positives_is_that_of_all_items_from_the_first_step_on(eviction):
    counts = (1e5 / torch.arange(1, 601)).long()
    chances = InclusionProbabilities(counts, 120, eviction)
    full = int(chances.full_at / 8)
    steps = [1, 4, full // 2, full, full + 2, 3 * full // 2]  # of 8 positives each
    found = partitions_over_time(eviction, steps, seeds=30)
    error = found.std(dim=0) / len(found) ** 0.5
    assert (error[2:] < 0.03).all()
    gap = (found.mean(dim=0) - 1).abs()
    assert (gap < 3 * error + 0.02).all()


@pytest.mark.parametrize("num_steps", [3, 40])
def test_a_resumed_cache_of_positives_weighs_as_the_one_that_went_on(num_steps, tmp_path):
    counts = (1e5 / torch.arange(1, 601)).long()
    generator = torch.Generator().manual_seed(1)
    batches = torch.multinomial(counts.float(), 8 * (num_steps + 5), True, generator=generator)
    batches = batches.split(8)
    feed, cache = PositivesFeed(counts, 120), make(120)
    feed_batches(feed, cache, batches[:num_steps])
    save_cache(cache, tmp_path / "saved")
    from_files, from_state = make(120), make(120)
    load_cache(from_files, tmp_path / "saved")
    from_state.load_state_dict(cache.state_dict())
    for other in (cache, from_files, from_state):
        feed_batches(PositivesFeed(counts, 120), other, batches[num_steps:])
    assert cache.num_pushed == 8 * (num_steps + 5)
    for other in (from_files, from_state):
        assert torch.equal(other.log_weights, cache.log_weights)


def test_a_cache_saved_before_pushed_items_were_counted_goes_on_as_a_full_one():
    counts = torch.tensor([100, 10, 1, 1, 1, 1])
    old = make(2).state_dict()
    clock, num_pushes, num_draws, _, seed = old["_extra_state"].tolist()
    old["_extra_state"] = torch.tensor([clock, num_pushes, num_draws, seed])
    cache = make(2)
    cache.load_state_dict(old)
    feed_batches(PositivesFeed(counts, 2), cache, [torch.tensor([0, 3])])
    expected = -log_inclusion(counts, 2)[torch.tensor([0, 3])]
    torch.testing.assert_close(cache.log_weights, expected)


class Counted(Towers):  # type: ignore[misc]
    """Towers that count what they encode at a time."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.sizes = []

    def encode_items(self, features):
        self.sizes.append(len(features["id"]))
        return super().encode_items(features)


def test_a_cache_is_filled_in_pieces_of_what_it_holds(monkeypatch):
    monkeypatch.setattr(feeds, "_FILL_SIZE", 8)
    corpus, stream = Counted(num_items=30), Counted(num_items=30)
    CorpusFeed(corpus.source()).begin(make(40))
    StreamFeed(stream.source(), num_new=1).begin(make(20, corpus_size=30))
    assert corpus.sizes == [8, 8, 8, 6]
    assert stream.sizes == [8, 8, 4]


def test_ranks_encode_equally_many_pieces_of_a_fill(monkeypatch):
    monkeypatch.setattr(feeds, "_FILL_SIZE", 8)
    monkeypatch.setattr(contract, "ENCODED_AT_ONCE", 2)

    def fill(ranks):
        towers = Counted(num_items=21)  # 11 for the first rank, 10 for the second
        cache = ShardedNegativeCache(24, 6, {"id": ((), torch.int64)}, group=ranks)
        CorpusFeed(towers.source()).begin(cache)
        return towers.sizes

    assert run_as_ranks(2, fill) == [[2, 2, 2, 2, 2, 1], [2, 2, 2, 2, 2, 0]]


def test_a_fill_stops_between_pieces(monkeypatch):
    monkeypatch.setattr(feeds, "_FILL_SIZE", 8)
    towers, cache = Counted(num_items=30), make(30)
    with stopping_when(lambda: True), pytest.raises(StopRequested):
        CorpusFeed(towers.source()).begin(cache)
    assert towers.sizes == [8]
    assert cache.num_held == 8


def test_only_positives_need_the_positives_of_a_step():
    kinds = (CorpusFeed, StreamFeed, PositivesFeed)
    assert [kind.needs_positives for kind in kinds] == [False, False, True]
    assert [kind.samples_corpus for kind in kinds] == [False, True, False]

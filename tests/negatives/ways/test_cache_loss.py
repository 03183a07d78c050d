"""A step against a cache, from the draw to the commit."""

import pytest
import torch
from item_sources import Towers

from outsize.errors import ConfigError, NonFiniteError
from outsize.negatives import (
    Comparison,
    CorpusFeed,
    HeldItems,
    NegativeCache,
    NegativeCacheConfig,
    NegativeCacheLoss,
    Upkeep,
)
from outsize.negatives.ways.cache import _p95

KEYS = torch.tensor([3, 7, 3])
ROWS = torch.tensor([0, 1, 2])


def make(towers, comparison=None, num_items=30, **upkeep):
    cache = NegativeCache(num_items, 6, {"id": ((), torch.int64)}, precision="float32")
    feed = {} if num_items < 30 else {"feed": CorpusFeed(towers.source())}
    kept = Upkeep(**{**feed, **upkeep})
    loss = NegativeCacheLoss(cache, towers.encode_items, 5.0, 4, comparison, kept)
    loss.begin()
    return loss


def run(loss, towers, **more):
    return loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, **more)


def exact(towers, extra=None):
    logits = 5.0 * towers.encode_queries(ROWS) @ towers.encode_items({"id": torch.arange(30)}).T
    return (logits.logsumexp(1) - logits[torch.arange(3), KEYS]).detach()


@pytest.mark.parametrize("in_batch", [False, True])
def test_with_a_fresh_cache_of_everything_the_value_is_the_exact_loss(in_batch):
    towers = Towers()
    loss = make(towers, Comparison(in_batch=in_batch))
    torch.testing.assert_close(run(loss, towers).losses, exact(towers), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_batch", [False, True])
def test_items_that_are_known_count_nowhere(in_batch):
    towers = Towers()
    known = torch.tensor([[7, 5, -1], [3, -1, -1], [1, 2, 29]])
    logits = 5.0 * towers.encode_queries(ROWS) @ towers.encode_items({"id": torch.arange(30)}).T
    positive = logits[torch.arange(3), KEYS].clone()
    for query, others in enumerate(known.tolist()):
        logits[query, [key for key in others if key >= 0]] = -torch.inf
    loss = make(towers, Comparison(in_batch=in_batch))
    expected = (logits.logsumexp(1) - positive).detach()
    torch.testing.assert_close(run(loss, towers, known=known).losses, expected)


def test_hard_negatives_count_for_their_own_query_and_only_once():
    towers = Towers()
    keys = torch.tensor([10, 11, 12, 13, 14, 15])
    hard = HeldItems(torch.full_like(keys, -1), keys, {"id": keys})
    report = run(make(towers), towers, hard=hard)
    torch.testing.assert_close(report.losses, exact(towers), rtol=1e-5, atol=1e-5)
    empty = make(towers, num_items=5)
    report = run(empty, towers, hard=hard)  # nothing else to compare with
    items = towers.encode_items({"id": keys}).view(3, 2, 6)
    queries, own = towers.encode_queries(ROWS), towers.encode_items({"id": KEYS})
    logits = 5.0 * torch.einsum("bd,bkd->bk", queries, torch.cat((own[:, None], items), 1))
    torch.testing.assert_close(report.losses, -logits.log_softmax(1)[:, 0].detach())


def test_a_commit_rewrites_what_was_drawn_and_pushes_the_positives():
    towers = Towers()
    loss = make(towers, num_items=8)
    first = run(loss, towers)
    loss.commit(first)
    assert sorted(loss.cache.keys[:2].tolist()) == [3, 7]
    towers.items.data *= -1
    second = run(loss, towers)
    assert set(second.draw.keys[0].tolist()) == {7}
    loss.commit(second)
    rows = loss.cache.rows_of(torch.tensor([3, 7]))
    fresh = towers.encode_items({"id": torch.tensor([3, 7])}).detach()
    torch.testing.assert_close(loss.cache.items.embeddings_at(rows), fresh)
    assert loss.cache.ages().tolist() == [0, 0]
    assert loss.latest_metrics()["pushed_known"] == 1.0


def test_a_sweep_refreshes_the_share_it_is_asked_for():
    towers = Towers()
    loss = make(towers, refresh=0.05)  # 1.5 items per step
    due, oldest = [], loss.cache.oldest
    loss.cache.oldest = lambda num: due.append(num) or oldest(num)
    for _ in range(20):
        loss.commit(run(loss, towers))
        assert loss.latest_metrics()["refreshed"] * 30 >= due[-1]
    assert sum(due) == 30
    assert set(due) == {1, 2}


def test_a_sweep_of_everything_leaves_nothing_stale():
    towers = Towers()
    loss = make(towers, refresh=1.0)
    report = run(loss, towers)
    towers.items.data = torch.randn(30, 6)
    loss.commit(report)
    rows = loss.cache.rows_of(torch.arange(30))
    fresh = towers.encode_items({"id": torch.arange(30)}).detach()
    torch.testing.assert_close(loss.cache.items.embeddings_at(rows), fresh)
    assert loss.latest_metrics()["refreshed"] == 1.0


def test_while_warming_up_the_batch_is_all_there_is():
    towers = Towers()
    loss = make(towers, num_items=8, warmup_steps=2)
    queries, own = towers.encode_queries(ROWS), towers.encode_items({"id": KEYS})
    logits = 5.0 * queries @ own[:2].T  # keys 3 and 7; the third repeats the first
    expected = -logits.log_softmax(1)[torch.arange(3), torch.tensor([0, 1, 0])].detach()
    for _ in range(2):
        report = run(loss, towers)
        assert report.draw is None
        torch.testing.assert_close(report.losses, expected)
        loss.commit(report)
    assert run(loss, towers).draw is not None
    assert loss.cache.num_held == 2


def test_while_warming_up_a_corpus_pushes_nothing():
    towers = Towers()
    loss = make(towers, warmup_steps=2)
    loss.commit(run(loss, towers))
    assert loss.latest_metrics() == {"held": 0.0}


def test_symmetric_is_the_mean_of_both_directions():
    towers = Towers()
    one_way, both = (make(towers, Comparison(symmetric=flag)) for flag in (False, True))
    queries, own = towers.encode_queries(ROWS), towers.encode_items({"id": KEYS})
    logits = (5.0 * own @ queries.T).clone()
    logits[0, 2] = logits[2, 0] = -torch.inf  # one item, two queries
    reverse = (logits.logsumexp(1) - logits.diagonal()).mean()
    expected = (run(one_way, towers).loss + reverse) / 2
    torch.testing.assert_close(run(both, towers).loss, expected)


def test_each_distinct_item_is_encoded_once():
    towers = Towers()
    sizes = []

    def encode(features):
        sizes.append(len(features["id"]))
        assert len(features["id"].unique()) == len(features["id"])
        return towers.encode_items(features)

    cache = NegativeCache(30, 6, {"id": ((), torch.int64)})
    keys = torch.arange(4)
    cache.push({"id": keys}, towers.encode_items({"id": keys}).detach(), keys)
    loss = NegativeCacheLoss(cache, encode, 5.0, 64)
    report = run(loss, towers)
    assert sizes == [6 - 1]  # keys 0 to 3 and 7: one of the positives is held, and drawn
    assert report.drawn.shape == (3, 64, 6)
    num_drawn = len(report.draw.keys.unique())
    assert report.metrics["duplicates"].item() == pytest.approx(1 - num_drawn / 192)


def test_metrics_say_how_stale_and_how_old():
    towers = Towers()
    loss = make(towers)
    for _ in range(3):
        loss.cache.commit()
    towers.items.data = -towers.items.data
    report = run(loss, towers)
    assert report.metrics["staleness"].item() == pytest.approx(4.0, rel=1e-4)  # ‖2x‖²/‖x‖²
    assert report.metrics["staleness_p95"].item() == pytest.approx(4.0, rel=1e-4)
    assert report.metrics["drawn_age"].item() == 3
    assert report.metrics["without_negatives"] == 0
    loss.commit(report)
    metrics = loss.latest_metrics()
    encoded = torch.cat((report.draw.keys.flatten(), KEYS))  # positives are written back too
    distinct = len(encoded.unique())
    assert metrics["refreshed"] == pytest.approx(distinct / 30)
    assert metrics["age"] == pytest.approx(4 * (30 - distinct) / 30)
    assert metrics["age_p95"] == 4
    assert (metrics["held"], metrics["alpha"]) == (30, 1)


def test_a_single_draw_repeats_nothing():
    towers = Towers()
    cache = NegativeCache(30, 6, {"id": ((), torch.int64)}, precision="float32")
    kept = Upkeep(feed=CorpusFeed(towers.source()))
    loss = NegativeCacheLoss(cache, towers.encode_items, 5.0, 1, upkeep=kept)
    loss.begin()
    report = loss(towers.encode_queries(ROWS[:1]), {"id": KEYS[:1]}, KEYS[:1])
    assert report.metrics["duplicates"] == 0


def test_the_highest_staleness_but_for_a_twentieth_is_reported():
    towers = Towers()
    loss = make(towers)
    with torch.no_grad():  # of the items drawn, some are as they were
        towers.items[::2] *= -1
    report = loss(towers.encode_queries(torch.arange(5)), {"id": torch.arange(5)}, torch.arange(5))
    values = sorted(4.0 if key % 2 == 0 else 0.0 for key in report.draw.keys.flatten().tolist())
    assert report.metrics["staleness_p95"].item() == pytest.approx(values[18], abs=1e-4)
    assert _p95(torch.arange(20.0)) == 18
    assert _p95(torch.arange(21.0).flip(0)) == 19
    assert _p95(torch.tensor([3.0])) == 3


def test_accumulated_and_skipped_steps_leave_the_cache_alone():
    towers = Towers()
    loss = make(towers)
    before = loss.cache.items.vectors.clone()
    for _ in range(3):
        run(loss, towers).loss.backward()
    assert torch.equal(loss.cache.items.vectors, before)
    assert loss.cache.clock == 0


def test_an_encoder_that_gives_nan_is_found_before_it_is_kept():
    towers = Towers()
    loss = make(towers)
    report = run(loss, towers)
    report.drawn[:, :, 0] = torch.nan
    before = loss.cache.items.vectors.clone()
    with pytest.raises(NonFiniteError, match="embeddings are NaN or infinite"):
        loss.commit(report)
    assert torch.equal(loss.cache.items.vectors, before)


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda: Upkeep(refresh=1.5), "refresh must be from 0 to 1, but got 1.5"),
        (lambda: NegativeCacheConfig(refresh=1.5), "refresh must be from 0 to 1"),
        (lambda: NegativeCacheConfig(refresh=-0.1), "refresh must be a finite number >= 0"),
        (lambda: NegativeCacheConfig(warmup_steps=-1), "warmup_steps must be a finite number >= 0"),
        (lambda: NegativeCacheConfig(num_negatives=0), "num_negatives"),
        (lambda: NegativeCacheConfig(num_items=5), "remove num_items, or set feed = 'stream'"),
        (
            lambda: NegativeCacheConfig(feed="stream", num_items=5, eviction="lru"),
            "uniform sample only with eviction = 'fifo'",
        ),
        (
            lambda: NegativeCacheConfig(feed="positives").build(Towers().source(), 0),
            "log_q needs ItemSource.counts: give them, or set log_q = false",
        ),
    ],
)
def test_what_cannot_be_is_refused(make_it, words):
    with pytest.raises(ConfigError, match=words):
        make_it()


@pytest.mark.parametrize("feed", ["corpus", "stream", "positives"])
def test_each_feed_can_be_configured(feed):
    size = {} if feed == "corpus" else {"num_items": 9}
    config = NegativeCacheConfig(feed=feed, refresh=0.1, num_new=2, **size)
    towers = Towers()
    loss = config.build(towers.source(torch.ones(30, dtype=torch.int64)), seed=1)
    loss.begin()
    assert loss.cache.num_held == {"corpus": 30, "stream": 9, "positives": 0}[feed]
    loss.commit(run(loss, towers))
    assert loss.cache.corpus_size == (30 if feed == "stream" else None)

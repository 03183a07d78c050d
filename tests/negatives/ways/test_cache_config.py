"""What the negative cache names is looked up when it is used, so it may be a user's own."""

from inspect import signature

import pytest
import torch
from item_sources import Towers

from outsize.errors import ConfigError
from outsize.negatives import (
    ESTIMATORS,
    FEEDS,
    ITEM_EVICTION,
    PRECISIONS,
    CorpusFeed,
    Estimator,
    ItemEviction,
    NegativeCacheConfig,
    NegativeCacheLoss,
    QueueConfig,
    TopItemsConfig,
)
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"feed": "corpse"},
            "feed must be one of corpus, stream, positives, but got 'corpse'.",
        ),
        ({"precision": "int4"}, "precision must be one of float32, bfloat16, int8, but got"),
        ({"eviction": "lfu"}, "eviction must be one of fifo, lru, but got 'lfu'"),
        (
            {"estimator": "x"},
            "estimator must be one of weighted, sampled, control-variate, shared, systematic, "
            "shared-systematic, but",
        ),
        ({"kind": "queue", "precision": "x"}, "precision must be one of float32, bfloat16, int8"),
        ({"kind": "top-items", "precision": "x"}, "precision must be one of float32, bfloat16"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(settings, words):
    tree = {
        "data": {"kind": "synthetic-interactions"},
        "model": {"kind": "two-tower"},
        "negatives": {"kind": "cache", **settings},
    }
    with pytest.raises(ConfigError) as caught:
        decode(RunConfig, tree, "run.toml")
    assert f"run.toml: [negatives] {words}" in str(caught.value)
    assert str(caught.value).endswith("--import MODULE")


def one_step(config):
    towers = Towers()
    loss = config.build(towers.source(torch.ones(30, dtype=torch.int64)), seed=0)
    loss.begin()
    keys = torch.arange(4)
    report = loss(towers.encode_queries(keys), {"id": keys}, keys)
    loss.commit(report)
    return loss, report


def test_an_estimator_of_your_own_is_asked_for_its_losses(monkeypatch):
    seen = []

    def twice(logits, draw):
        seen.append(draw.mean_embedding)
        return 2 * ESTIMATORS["weighted"].losses(logits, draw)

    monkeypatch.setitem(ESTIMATORS, "twice", Estimator(twice, needs_mean=True))
    _, usual = one_step(NegativeCacheConfig())
    _, own = one_step(NegativeCacheConfig(estimator="twice"))
    torch.testing.assert_close(own.losses, 2 * usual.losses)
    assert seen[0] is not None


def test_an_eviction_of_your_own_decides_which_writes_renew_an_item(monkeypatch):
    lru = ITEM_EVICTION["lru"]
    monkeypatch.setitem(ITEM_EVICTION, "own", ItemEviction(renews=True, occupancy=lru.occupancy))
    loss, _ = one_step(NegativeCacheConfig(eviction="own"))
    assert loss.cache.eviction == "own"
    assert loss.cache.stamps.max() > 1  # written back after the one push
    with pytest.raises(ConfigError, match="with 'own', items that are drawn often would stay"):
        NegativeCacheConfig(feed="stream", eviction="own")


def test_a_feed_of_your_own_is_built_from_the_settings(monkeypatch):
    class Own(CorpusFeed):
        @classmethod
        def require_possible(cls, settings):
            if settings.num_new != 7:
                raise ConfigError("num_new must be 7")

    monkeypatch.setitem(FEEDS, "own", Own)
    loss, _ = one_step(NegativeCacheConfig(feed="own", num_new=7))
    assert isinstance(loss.upkeep.feed, Own)
    with pytest.raises(ConfigError, match="num_new must be 7"):
        NegativeCacheConfig(feed="own")


def test_a_precision_of_your_own_is_stored(monkeypatch):
    monkeypatch.setitem(PRECISIONS, "own", torch.bfloat16)
    assert one_step(NegativeCacheConfig(precision="own"))[0].cache.items.precision == "own"
    assert QueueConfig(precision="own").precision == TopItemsConfig(precision="own").precision


def test_defaults_are_those_of_the_documentation():
    config = NegativeCacheConfig()
    assert (config.num_negatives, config.num_new, config.warmup_steps) == (16, 64, 0)
    assert (config.in_batch, config.symmetric, config.log_q) == (False, False, True)
    assert config.refresh == 0
    assert signature(NegativeCacheLoss).parameters["beta"].default == 20

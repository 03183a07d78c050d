"""What a commit keeps: whole or not at all, fresh when it counts, encoded without dropout."""

import pytest
import torch
from item_sources import Towers
from torch import nn

from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.negatives import (
    NEGATIVES,
    CorpusFeed,
    NegativeCache,
    NegativeCacheConfig,
    NegativeCacheLoss,
    PositivesFeed,
    ShardedNegativeCache,
    StreamFeed,
    Upkeep,
)
from outsize.ranks.thread_ranks import run_as_ranks

ROWS, KEYS = torch.tensor([0, 1, 2]), torch.tensor([3, 7, 3])
ID = {"id": ((), torch.int64)}


def make(towers, feed="corpus", cache=None, encode=None, eviction="fifo", **upkeep):
    size = 30 if feed == "corpus" else 10
    cache = cache or NegativeCache(size, 6, ID, precision="float32", eviction=eviction)
    source = towers.source()
    feeds = {"corpus": CorpusFeed, "stream": lambda source: StreamFeed(source, 3)}
    kept = Upkeep(feeds[feed](source) if feed in feeds else PositivesFeed(), **upkeep)
    loss = NegativeCacheLoss(cache, encode or towers.encode_items, 5.0, 4, upkeep=kept)
    loss.begin()
    return loss


def run(loss, towers, keys=KEYS):
    return loss(towers.encode_queries(ROWS[: len(keys)]), {"id": keys}, keys)


def everything(cache):
    """All that a cache is: rows, clock, ages, index, counters, and what comes next."""
    cache = cache.own if isinstance(cache, ShardedNegativeCache) else cache
    return {
        **{name: value.tolist() for name, value in cache.state_dict().items()},
        "held": cache.num_held,
        "ages": cache.ages().tolist(),
        "rows": cache.rows_of(torch.arange(40)).tolist(),
        "oldest": cache.oldest(5).keys.tolist(),
        "next": cache._by_stamp.take(5).tolist(),
    }


class Spoilt:
    """An encoder that fails or gives NaN from some call on."""

    def __init__(self, towers, how):
        self.towers, self.how, self.is_spoilt = towers, how, False

    def __call__(self, features):
        encoded = self.towers.encode_items(features)
        if self.is_spoilt and self.how == "raises":
            raise RuntimeError("out of memory")
        return encoded * torch.nan if self.is_spoilt else encoded


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
@pytest.mark.parametrize("where", ["drawn", "positives", "sweep", "encoder"])
@pytest.mark.parametrize("feed", ["corpus", "positives"])
def test_a_commit_that_raises_has_changed_nothing(feed, where, eviction):
    towers = Towers()
    encode = Spoilt(towers, "raises" if where == "encoder" else "NaN")
    loss = make(towers, feed, encode=encode, eviction=eviction, refresh=0.5)
    for start in range(6):
        loss.commit(run(loss, towers, torch.arange(start, start + 3)))
    report = run(loss, towers)
    if where == "drawn":
        report.drawn[0, 0] = torch.nan
    elif where == "positives":
        report.positive_embeddings[1] = torch.nan
    else:
        encode.is_spoilt = True
    before, metrics = everything(loss.cache), loss.latest_metrics()
    with pytest.raises(RuntimeError if where == "encoder" else NonFiniteError):
        loss.commit(report)
    assert everything(loss.cache) == before
    assert loss.latest_metrics() == metrics
    encode.is_spoilt = False
    again = run(loss, towers)
    loss.commit(again)  # and training goes on
    assert loss.cache.clock == 7


def test_a_stream_that_cannot_be_encoded_changes_nothing():
    towers = Towers()
    loss = make(towers, "stream")
    loss.commit(run(loss, towers))
    report, before = run(loss, towers), everything(loss.cache)
    towers.items.data *= torch.nan
    with pytest.raises(NonFiniteError):
        loss.commit(report)
    assert everything(loss.cache) == before


def test_a_fill_at_the_end_of_warming_up_is_kept_whole_or_not_at_all(monkeypatch):
    monkeypatch.setattr("outsize.negatives.cache.feeds._FILL_SIZE", 8)
    towers = Towers()
    loss = make(towers, warmup_steps=1)
    report, before = run(loss, towers), everything(loss.cache)
    towers.items.data[20] = torch.nan  # in the third of four pieces
    with pytest.raises(NonFiniteError):
        loss.commit(report)
    assert everything(loss.cache) == before
    towers.items.data[20] = 1.0
    loss.commit(report)
    assert loss.cache.num_held == 30


@pytest.mark.parametrize("where", ["drawn", "positives", "sweep", "encoder"])
@pytest.mark.parametrize("feed", ["corpus", "stream", "positives"])
def test_if_one_rank_cannot_commit_no_rank_changes_and_all_raise(feed, where):
    def work(ranks):
        towers = Towers()
        spoilt = Spoilt(towers, "raises" if where == "encoder" else "NaN")
        cache = ShardedNegativeCache(30, 6, ID, precision="float32", group=ranks)
        loss = make(towers, feed, cache, spoilt, refresh=0.5)
        for _ in range(2):
            loss.commit(run(loss, towers))
        report = run(loss, towers)
        if ranks.rank == 1:
            if where == "drawn":
                report.drawn.fill_(torch.nan)
            elif where == "positives":
                report.positive_embeddings[1] = torch.nan
            spoilt.is_spoilt = where in ("sweep", "encoder")
        before, held = everything(cache), cache.num_held
        kind = RuntimeError if where == "encoder" else NonFiniteError
        with pytest.raises(kind if ranks.rank else DataError) as caught:
            loss.commit(report)
        assert everything(cache) == before
        assert cache.num_held == held
        spoilt.is_spoilt = False
        loss.commit(run(loss, towers))
        return str(caught.value)

    assert run_as_ranks(2, work)[0].startswith("rank 1 ")


@pytest.mark.parametrize("refresh_every", [1, 5])
@pytest.mark.parametrize("kind", ["queue", "top-items"])
def test_other_ways_keep_a_step_whole_or_not_at_all(kind, refresh_every):
    towers = Towers()
    options = {"num_items": 8} if kind == "queue" else {"refresh_every": refresh_every}
    loss = NEGATIVES[kind](**options).build(towers.source(), 0)
    loss.begin()
    loss.commit(run(loss, towers))
    if kind == "queue":
        report = run(loss, towers)
        report.embeddings[0] = torch.nan
    else:
        for _ in range((-2) % refresh_every):
            loss.commit(run(loss, towers))
        report = run(loss, towers)
        towers.items.data *= torch.nan
    before, known = everything(loss.cache), loss.get_extra_state() if kind != "queue" else None
    with pytest.raises(NonFiniteError):
        loss.commit(report)
    assert everything(loss.cache) == before
    assert known is None or torch.equal(known, loss.get_extra_state())


@pytest.mark.parametrize("given", [{"weights": torch.zeros(3)}, {"device": "meta"}])
def test_a_push_that_cannot_be_written_changes_nothing(given, unchecked_shapes):
    cache = NegativeCache(4, 2, precision="float32")
    cache.push({}, torch.ones(2, 2), torch.tensor([5, 6]))
    before = everything(cache)
    embeddings = torch.ones(2, 2, device=given.get("device", "cpu"))
    with pytest.raises(
        DataError, match=r"log_weights must be one per item, here|embeddings are on meta"
    ):
        cache.push({}, embeddings, torch.tensor([6, 7]), given.get("weights"))
    assert everything(cache) == before


@pytest.mark.parametrize("feed", ["corpus", "stream", "positives"])
def test_a_cache_is_fresh_when_it_starts_to_count(feed):
    torch.manual_seed(0)
    towers = Towers()
    loss = make(towers, feed, warmup_steps=50)
    optimizer = torch.optim.Adam(towers.parameters(), lr=0.05)
    for step in range(50):
        report = run(loss, towers, (KEYS + step) % 30)
        assert report.draw is None
        optimizer.zero_grad()
        report.loss.backward()
        optimizer.step()
        loss.commit(report)
    assert loss.cache.num_held == (30 if feed == "corpus" else 10)
    assert loss.latest_metrics()["age"] == 0
    report = run(loss, towers)
    # the last positives are a step old; without a fill the others would be off by 0.5
    assert report.metrics["staleness"] < (1e-3 if feed == "positives" else 1e-9)
    assert report.metrics["drawn_age"] == 0


@pytest.mark.parametrize("feed", ["corpus", "stream"])
def test_a_corpus_and_a_stream_are_encoded_once_for_a_warm_up(feed):
    towers = Towers()
    encoded = []
    encode_items = towers.encode_items
    towers.encode_items = lambda features: (
        encoded.append(len(features["id"])) or encode_items(features)
    )
    loss = make(towers, feed, warmup_steps=4, refresh=0.5)
    assert not encoded
    for _ in range(4):
        loss.commit(run(loss, towers))
    assert encoded == [2, 2, 2, 2, 30 if feed == "corpus" else 10]


def test_whole_caches_are_refreshed_in_pieces_by_all_ranks(monkeypatch):
    monkeypatch.setattr("outsize.negatives.contract.ENCODED_AT_ONCE", 2)

    def work(ranks):
        towers = Towers()
        cache = ShardedNegativeCache(12, 6, ID, precision="float32", group=ranks)
        loss = make(towers, "positives", cache, warmup_steps=3)
        for start in (0, 6, 12):
            keys = 2 * torch.arange(3) + start + ranks.rank
            loss.commit(run(loss, towers, keys))
        assert cache.ages().tolist() == [0] * cache.num_held_here
        return cache.num_held_here

    assert run_as_ranks(2, work) == [6, 6]


def test_a_corpus_without_room_is_refused_before_warming_up():
    cache = NegativeCache(20, 6, ID)
    with pytest.raises(ConfigError, match="holds 20 items, but the corpus has 30"):
        make(Towers(), "corpus", cache, warmup_steps=9)


@pytest.mark.parametrize("feed", ["corpus", "stream"])
def test_held_positives_are_written_back_without_another_encoding(feed):
    towers = Towers()
    encoded = []

    def encode(features):
        encoded.append(features["id"].tolist())
        return towers.encode_items(features)

    loss = make(towers, feed, encode=encode)
    held = loss.cache.keys[:3].clone()
    towers.items.data = torch.randn(30, 6)
    report = run(loss, towers, held)
    loss.commit(report)
    rows = loss.cache.rows_of(held)
    stays = rows >= 0  # a stream may have pushed some out
    assert stays.any()
    found = loss.cache.items.embeddings_at(rows[stays])
    torch.testing.assert_close(found, towers.encode_items({"id": held[stays]}).detach())
    assert len(encoded) == 1


@pytest.mark.parametrize("size", [1, 3])
def test_positives_are_written_back_where_they_are_kept(size):
    def work(ranks):
        towers = Towers()
        cache = ShardedNegativeCache(30, 6, ID, precision="float32", group=ranks)
        loss = make(towers, cache=cache)
        before = cache.own.items.vectors.clone()
        towers.items.data = -towers.items.data
        keys = 3 * ranks.rank + torch.arange(3)
        report = run(loss, towers, keys)
        loss.commit(report)
        fresh = towers.encode_items({"id": torch.arange(30)}).detach()
        own = cache.own.keys[cache.own.keys >= 0]
        is_new = (cache.own.items.embeddings_at(cache.own.rows_of(own)) == fresh[own]).all(dim=1)
        assert before.shape == cache.own.items.vectors.shape
        return own[is_new].tolist(), report.draw.keys.unique().tolist(), cache.ages().tolist()

    found = run_as_ranks(size, work)
    written = {key for own, _, _ in found for key in own}
    drawn = {key for _, keys, _ in found for key in keys}
    assert written == drawn | set(range(3 * size))
    assert sum(age == 0 for _, _, ages in found for age in ages) == len(written)


class Noisy(nn.Module):
    """An encoder with dropout and running statistics."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.frozen = nn.Dropout(0.9).eval()

    def forward(self, features):
        assert features["id"].numel()
        encoded = self.frozen(self.drop(self.norm(self.table(features["id"]))))
        return nn.functional.normalize(encoded, dim=1)


def modes(module):
    return [part.training for part in module.modules()]


@pytest.mark.parametrize("how", ["module", "method", "function"])
def test_a_fill_and_a_sweep_encode_in_evaluation_mode(how):
    encoder = Noisy()
    encode = {"module": encoder, "method": encoder.forward, "function": lambda f: encoder(f)}[how]
    cache = NegativeCache(30, 6, ID, precision="float32")
    source = Towers().source()
    source = type(source)(30, 6, source.features_of, encode)
    upkeep = Upkeep(CorpusFeed(source), refresh=1.0)
    loss = NegativeCacheLoss(cache, encode, 5.0, 4, upkeep=upkeep)
    before, statistics = modes(encoder), encoder.norm.running_mean.clone()
    assert before == [True, True, True, True, False]
    loss.begin()
    assert modes(encoder) == before
    assert torch.equal(encoder.norm.running_mean, statistics)

    def error():
        fresh = encoder.eval()({"id": torch.arange(30)}).detach()
        encoder.train()
        encoder.frozen.eval()
        held = cache.items.embeddings_at(cache.rows_of(torch.arange(30)))
        return (held - fresh).square().sum(dim=1).max().item()

    assert error() < 1e-12
    report = loss(torch.randn(3, 6), {"id": KEYS}, KEYS)  # with gradients, so in training mode
    assert not torch.equal(encoder.norm.running_mean, statistics)
    statistics = encoder.norm.running_mean.clone()
    loss.commit(report)
    assert modes(encoder) == before
    assert torch.equal(encoder.norm.running_mean, statistics)
    assert error() < 1e-12


def test_modules_that_an_encoder_hides_are_switched_when_they_are_called():
    parts = [nn.Embedding(30, 6), nn.Dropout(0.5)]
    source = Towers().source()
    source = type(source)(30, 6, source.features_of, lambda f: parts[1](parts[0](f["id"])))
    assert torch.equal(source.encode_keys(torch.arange(30)), parts[0].weight)
    assert parts[1].training


def test_modes_are_restored_when_the_encoder_raises():
    encoder = Noisy()

    def encode(features):
        encoder(features)
        raise RuntimeError("no more")

    source = Towers().source()
    source = type(source)(30, 6, source.features_of, encode)
    before = modes(encoder)
    with pytest.raises(RuntimeError, match="no more"):
        source.encode_keys(torch.arange(3))
    assert modes(encoder) == before
    encoder({"id": torch.arange(3)})
    assert modes(encoder) == before  # nothing stays hooked


@pytest.mark.parametrize("kind", ["cache", "top-items"])
def test_an_index_and_a_stream_are_encoded_without_dropout(kind):
    towers = Towers(dropout=0.3)
    options = {"feed": "stream", "num_items": 20} if kind == "cache" else {"refresh_every": 1}
    config = NEGATIVES[kind](precision="float32", **options)
    loss = config.build(towers.source(), 0)
    loss.begin()
    if kind == "top-items":
        loss.commit(run(loss, towers))
    clean = nn.functional.normalize(towers.items, dim=1).detach()
    held = loss.cache.keys
    torch.testing.assert_close(loss.cache.items.embeddings_at(torch.arange(len(held))), clean[held])
    assert towers.dropout.training


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_encoder_is_switched_as_well(how, unchecked_shapes):
    encoder = Noisy()
    compiled = encoder
    if how == "wrapped":
        compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    else:
        encoder.compile(backend="eager", fullgraph=True)
    before = modes(encoder)
    source = Towers().source()
    source = type(source)(30, 6, source.features_of, lambda features: compiled(features))
    found = source.encode_keys(torch.arange(30))
    assert modes(encoder) == before
    torch.testing.assert_close(found, encoder.eval()({"id": torch.arange(30)}).detach())


@pytest.mark.parametrize("kind", sorted(NEGATIVES))
def test_an_evaluation_in_between_leaves_training_as_it_would_have_been(kind):
    found = []
    for evaluates in (False, True):
        towers = Towers(dropout=0.0)
        small = {"num_negatives": 3} if "num_negatives" in NEGATIVES[kind]().__dict__ else {}
        loss = NEGATIVES[kind](beta=4.0, **small).build(towers.source(torch.ones(30).long()), 0)
        loss.begin()
        optimizer = torch.optim.Adam(towers.parameters(), lr=0.05)
        for step in range(4):
            if evaluates:
                with torch.no_grad():
                    for _ in range(step + 1):
                        run(loss, towers)
            report = run(loss, towers)
            optimizer.zero_grad()
            report.loss.backward()
            optimizer.step()
            loss.commit(report)
        found.append((towers.items.tolist(), {k: v.tolist() for k, v in loss.state_dict().items()}))
    assert found[0] == found[1]


def test_an_evaluation_on_shared_ranks_leaves_their_draws_alone():
    def work(ranks):
        towers = Towers()
        draws = []
        for evaluates in (False, True):
            cache = ShardedNegativeCache(30, 6, ID, precision="float32", group=ranks, seed=3)
            loss = make(towers, cache=cache)
            if evaluates:
                with torch.no_grad():
                    run(loss, towers)
            report = run(loss, towers)
            draws.append((report.draw.keys.tolist(), report.draw.uniforms.tolist()))
            assert run(loss, towers).draw.uniforms.tolist() != draws[-1][1]  # others next time
        assert draws[0] == draws[1]

    run_as_ranks(2, work)


def test_draws_by_hand_are_counted_unless_told_otherwise():
    cache = NegativeCache(30, 6, precision="float32", seed=1)
    cache.push({}, torch.randn(30, 6), torch.arange(30))
    before = cache.counters()
    first, again = (cache.sample(torch.zeros(2, 6), 5, advance=False) for _ in range(2))
    assert cache.counters() == before
    assert torch.equal(first.keys, again.keys)
    with torch.no_grad():
        one, other = (cache.sample(torch.zeros(2, 6), 5) for _ in range(2))
    assert not torch.equal(one.keys, other.keys)


def test_a_warm_up_can_be_configured_with_every_feed():
    towers = Towers()
    loss = NegativeCacheConfig(warmup_steps=2).build(towers.source(), 0)
    loss.begin()
    assert loss.cache.num_held == 0
    for _ in range(2):
        loss.commit(run(loss, towers))
    assert loss.cache.num_held == 30

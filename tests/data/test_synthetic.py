import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outsize.data.click_data import SPLITS
from outsize.data.synthetic import SyntheticConfig
from outsize.data.zipf import Zipf
from outsize.errors import ConfigError

SMALL = SyntheticConfig(
    num_train=20_000, num_validation=300, num_test=200, num_dense=3, vocabulary=(50, 1000, 7)
)
# One feature and nothing else: an example's logit is the effect of its id.
ONE_FEATURE = replace(SMALL, num_dense=0, vocabulary=(2000,), num_clusters=9, skew=0.0)


def make(config, **changes):
    return replace(config, **changes).build()


@pytest.fixture(scope="module")
def small():
    return make(SMALL)


@pytest.fixture(scope="module")
def whole_train(small):
    return small.examples("train", 0, 20_000)


def columns_of(batch):
    return [batch.dense, batch.labels, *batch.ids.values()]


def assert_same_examples(batch, other):
    for one, two in zip(columns_of(batch), columns_of(other), strict=True):
        assert torch.equal(one, two)


def assert_batches_are(batches, whole):
    """The batches, one after the other, are the examples of `whole`."""
    parts = zip(*(columns_of(batch) for batch in batches), strict=True)
    for part, column in zip(parts, columns_of(whole), strict=True):
        assert torch.equal(torch.cat(part), column)


def id_counts(data, split, first, stop, feature="c1"):
    ids = data.examples(split, first, stop).ids[feature]
    return torch.bincount(ids, minlength=data.vocabularies[feature])


def most_popular(data, split, first, stop, count=1):
    return id_counts(data, split, first, stop).topk(count).indices.tolist()


# The same log, however it is read


def test_the_same_config_gives_the_same_log(small):
    for split in SPLITS:
        assert_same_examples(small.examples(split, 0, 200), make(SMALL).examples(split, 0, 200))


def test_another_seed_gives_another_log(small):
    other = make(SMALL, seed=1)
    one, two = small.examples("train", 0, 200), other.examples("train", 0, 200)
    for name in ("dense", "labels", "probability"):
        assert not torch.equal(getattr(one, name), getattr(two, name))
    for feature in small.vocabularies:
        assert not torch.equal(one.ids[feature], two.ids[feature])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.sampled_from(["validation", "test"]))
def test_any_batch_size_gives_the_same_examples(small, batch_size, split):
    total = small.num_examples(split)
    batches = list(small.batches(split, batch_size))
    assert len(batches) == small.num_batches(split, batch_size)
    assert [batch.num_examples for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert_batches_are(batches, small.examples(split, 0, total))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 19_950), st.integers(1, 50))
def test_an_example_is_the_same_in_any_company(small, whole_train, first, count):
    alone = small.examples("train", first, first + count)
    for one, column in zip(columns_of(alone), columns_of(whole_train), strict=True):
        assert torch.equal(one, column[first : first + count])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 19_950), st.integers(1, 50))
def test_a_probability_is_the_same_to_the_last_bit_in_any_company(small, whole_train, first, count):
    # A label is a comparison with it, so the last bit can turn a label.
    alone = small.examples("train", first, first + count).probability
    assert torch.equal(alone, whole_train.probability[first : first + count])


@pytest.mark.parametrize("start", [0, 1, 3, 7])
def test_reading_from_a_later_batch_skips_the_earlier_ones(small, start):
    batches = list(small.batches("validation", 43))
    resumed = list(small.batches("validation", 43, start=start))
    assert len(resumed) == 7 - start
    for one, other in zip(resumed, batches[start:], strict=True):
        assert_same_examples(one, other)


def test_every_epoch_repeats_the_same_log(small):
    for epoch in (1, 5):
        again = small.batches("test", 64, epoch=epoch, start=1)
        assert_batches_are(list(again), small.examples("test", 64, 200))


def test_a_split_has_as_many_examples_as_asked(small):
    counts = [sum(batch.num_examples for batch in small.batches(s, 4096)) for s in SPLITS]
    assert counts == [20_000, 300, 200]
    assert [small.num_examples(split) for split in SPLITS] == counts


def test_no_two_splits_share_an_example(small):
    rows = torch.cat([small.examples(split, 0, 200).dense for split in SPLITS])
    assert rows.unique(dim=0).shape[0] == 3 * 200


def test_no_two_examples_of_a_split_are_alike(small):
    assert small.examples("train", 0, 20_000).dense.unique(dim=0).shape[0] == 20_000


# Features


def test_dense_features_are_independent_standard_normals(small):
    dense = small.examples("train", 0, 20_000).dense.double()
    assert dense.shape == (20_000, 3)
    for column in dense.t():
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-5
    between = torch.corrcoef(dense.t()) - torch.eye(3)
    assert between.abs().max() < 4.5 / math.sqrt(20_000)


def test_features_are_named_and_sized_as_asked(small):
    assert small.num_dense == 3
    assert small.vocabularies == {"c1": 50, "c2": 1000, "c3": 7}
    assert list(small.examples("train", 0, 1).ids) == ["c1", "c2", "c3"]


def test_sizes_grow_evenly_in_the_logarithm_when_none_are_given():
    sizes = SyntheticConfig(num_categorical=5, largest_vocabulary=100_000).sizes()
    assert sizes == (10, 100, 1000, 10_000, 100_000)
    assert SyntheticConfig(num_categorical=3, largest_vocabulary=4).sizes() == (4, 4, 4)
    assert len(SyntheticConfig().sizes()) == 26


@pytest.mark.parametrize("skew", [0.0, 1.05, 1.5])
def test_ids_follow_the_zipf_distribution_of_their_vocabulary(skew):
    data = make(SMALL, num_train=50_000, skew=skew)
    for feature, size in data.vocabularies.items():
        counts = id_counts(data, "train", 0, 50_000, feature)
        assert counts.numel() == size
        expected = 50_000 * Zipf([size], skew).probability(torch.arange(size))
        if skew == 0:
            assert stats.chisquare(counts.numpy()).pvalue > 1e-5
            continue
        # Which id has which rank is not told, but the first few are far enough apart to see.
        found = counts.sort(descending=True).values[:5].double()
        assert ((found - expected[:5]).abs() < 4.5 * expected[:5].sqrt()).all()
        assert counts.sum() == 50_000


def test_popular_ids_lie_scattered_over_the_table(small):
    popular = id_counts(small, "train", 0, 20_000, "c2").topk(20).indices.sort().values
    assert (popular.diff() > 1).all()
    # Twenty ids in ten tenths of the table: each tenth has some.
    assert (popular * 10 // 1000).unique().numel() == 10


def test_every_id_can_be_drawn():
    data = make(SMALL, skew=0.0, vocabulary=(1, 2, 6, 12, 50))
    for feature in data.vocabularies:
        assert (id_counts(data, "train", 0, 20_000, feature) > 0).all()


def test_features_are_drawn_independently(small):
    ids = small.examples("train", 0, 20_000).ids
    counts = torch.bincount((ids["c1"] % 5) * 7 + ids["c3"], minlength=35).view(5, 7)
    assert stats.chi2_contingency(counts.numpy()).pvalue > 1e-5


# Labels


@pytest.mark.parametrize("click_rate", [0.02, 0.25, 0.7])
def test_labels_have_the_asked_mean(click_rate):
    data = make(SMALL, num_train=50_000, num_test=50_000, click_rate=click_rate)
    for split in ("train", "test"):
        batch = data.examples(split, 0, 50_000)
        # The rate is set on the first training examples, so it too has a sampling error.
        assert batch.probability.mean().item() == pytest.approx(click_rate, rel=0.05)
        variance = (batch.probability * (1 - batch.probability)).double().sum().item()
        clicks = batch.labels.double().sum().item()
        assert clicks == pytest.approx(
            batch.probability.double().sum().item(), abs=4.5 * math.sqrt(variance)
        )
        assert set(batch.labels.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("signal", [0.0, 0.5, 2.0])
def test_the_logit_has_the_asked_spread(signal):
    data = make(SMALL, signal=signal)
    logit = torch.logit(data.examples("train", 0, 20_000).probability.double())
    assert logit.std().item() == pytest.approx(signal, rel=0.02, abs=1e-6)
    assert torch.sigmoid(logit).mean().item() == pytest.approx(0.25, rel=0.02)


def test_labels_are_drawn_with_the_given_probability():
    data = make(SMALL, num_train=100_000)
    batch = data.examples("train", 0, 100_000)
    order = batch.probability.argsort()
    groups = zip(
        batch.probability[order].double().chunk(20),
        batch.labels[order].double().chunk(20),
        strict=True,
    )
    scores = [((labels - p).sum() / (p * (1 - p)).sum().sqrt()).item() ** 2 for p, labels in groups]
    assert stats.chi2(20).sf(sum(scores)) > 1e-5


def test_no_predictor_beats_the_given_probability():
    data = make(SMALL, num_test=100_000)
    batch = data.examples("test", 0, 100_000)
    logit = torch.logit(batch.probability.double())

    def loss(predicted):
        return F.binary_cross_entropy_with_logits(predicted, batch.labels.double()).item()

    best = loss(logit)
    noise = torch.randn(logit.shape, generator=torch.Generator().manual_seed(1)).double()
    others = {
        "too high": logit + 0.2,
        "too low": logit - 0.2,
        "too sure": logit * 1.2,
        "too timid": logit / 1.2,
        "noisy": logit + 0.2 * noise,
        "base rate": torch.full_like(logit, torch.logit(batch.labels.double().mean()).item()),
    }
    for name, predicted in others.items():
        assert loss(predicted) > best + 5e-4, name
    # The best loss is the mean entropy of the labels.
    p = batch.probability.double()
    surprise = torch.stack([-p.log(), -(1 - p).log()])
    entropy = (surprise * torch.stack([p, 1 - p])).sum(dim=0).mean().item()
    error = (p * (1 - p)).sqrt().mul(logit).square().mean().sqrt().item() / math.sqrt(100_000)
    assert best == pytest.approx(entropy, abs=4.5 * error)


# Clusters


def effects_of(data):
    """The logit of every id of a log of one feature, NaN where it was not drawn."""
    batch = data.examples("train", 0, data.num_examples("train"))
    effects = torch.full((data.vocabularies["c1"],), math.nan, dtype=torch.float64)
    effects[batch.ids["c1"]] = torch.logit(batch.probability.double())
    again = effects[batch.ids["c1"]]
    assert torch.allclose(again, torch.logit(batch.probability.double()), atol=1e-5)
    return effects


def test_ids_of_a_cluster_have_one_effect_when_they_have_none_of_their_own():
    effects = effects_of(make(ONE_FEATURE, individuality=0.0))
    drawn = effects[~effects.isnan()]
    # Sigmoid and its inverse cost a few bits of float32.
    levels = np.unique(drawn.numpy().round(4))
    assert len(levels) == 9
    sizes = np.array([(np.abs(drawn.numpy() - level) < 1e-3).sum() for level in levels])
    assert sizes.sum() == drawn.numel()
    assert stats.chisquare(sizes).pvalue > 1e-5


def test_ids_with_effects_of_their_own_all_differ():
    effects = effects_of(make(ONE_FEATURE, individuality=0.5))
    drawn = effects[~effects.isnan()]
    assert len(np.unique(drawn.numpy().round(4))) > 1000


@pytest.mark.parametrize("individuality", [0.1, 0.5, 1.0])
def test_individuality_is_the_share_of_variance_inside_clusters(individuality):
    config = replace(ONE_FEATURE, num_clusters=300, vocabulary=(6000,), num_train=60_000)
    planted = effects_of(make(config, individuality=0.0))
    effects = effects_of(make(config, individuality=individuality))
    drawn = ~(planted.isnan() | effects.isnan())
    levels, cluster = np.unique(planted[drawn].numpy().round(5), return_inverse=True)
    assert len(levels) > 250
    values = effects[drawn].numpy()
    means = np.bincount(cluster, values) / np.bincount(cluster)
    inside = np.square(values - means[cluster]).sum() / (len(values) - len(levels))
    share = inside / values.var()
    assert share == pytest.approx(individuality, rel=0.2)


def test_each_feature_has_clusters_of_its_own():
    # Clusters that two features shared would give only 15 levels, the order of a pair being lost.
    data = make(ONE_FEATURE, vocabulary=(500, 500), num_clusters=5, individuality=0.0)
    probability = data.examples("train", 0, 20_000).probability
    assert len(np.unique(probability.numpy().round(5))) == 5 * 5


def test_features_interact():
    # Of a logit that were a sum over features, this contrast of four examples would vanish.
    data = make(SMALL, num_dense=0, vocabulary=(2, 2), skew=0.0, individuality=0.5)
    batch = data.examples("train", 0, 1000)
    logit = torch.logit(batch.probability.double())
    cell = {
        (one, two): logit[(batch.ids["c1"] == one) & (batch.ids["c2"] == two)][0].item()
        for one in (0, 1)
        for two in (0, 1)
    }
    assert abs(cell[0, 0] - cell[0, 1] - cell[1, 0] + cell[1, 1]) > 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"vocabulary": (1,)},
        {"vocabulary": (1, 1, 1)},
        {"vocabulary": (100,), "num_clusters": 1},
        {"vocabulary": (10, 100, 1000), "num_clusters": 1},
        {"vocabulary": tuple(range(10, 36)), "num_clusters": 1},
    ],
)
def test_a_log_without_anything_to_learn_still_has_its_click_rate(change):
    data = make(SMALL, num_dense=0, individuality=0.0, **change)
    probability = data.examples("train", 0, 1000).probability
    assert torch.allclose(probability, torch.tensor(0.25), atol=1e-5)


# Drift

DRIFTING = replace(
    SMALL, num_train=1_000_000, num_validation=2000, num_test=2000, skew=1.5, drift=10.0
)


def test_new_ids_enter_at_the_top_as_often_as_asked():
    data = make(DRIFTING)
    tops = [most_popular(data, "train", t, t + 2000)[0] for t in range(0, 1_000_000, 100_000)]
    assert len(set(tops)) == 10
    # Within the time one id is on top nothing changes.
    assert most_popular(data, "train", 97_000, 99_000)[0] == tops[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_drifting_log_has_the_asked_mean_over_its_whole_length(seed):
    data = make(DRIFTING, seed=seed)
    starts = range(0, 1_000_000, 20_000)
    rates = [data.examples("train", t, t + 500).probability.mean().item() for t in starts]
    assert sum(rates) / len(rates) == pytest.approx(0.25, rel=0.05)


def test_an_id_ages_by_one_rank_with_each_newcomer():
    data = make(DRIFTING)
    before = most_popular(data, "train", 0, 10_000, 3)
    after = most_popular(data, "train", 100_000, 110_000, 4)
    assert after[1:] == before
    assert after[0] not in before


def test_without_drift_the_popular_ids_stay():
    data = make(DRIFTING, drift=0.0)
    for split, first in (("train", 0), ("train", 990_000), ("validation", 0), ("test", 0)):
        assert most_popular(data, split, first, first + 2000, 2) == most_popular(
            data, "train", 500_000, 502_000, 2
        )


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_follow_the_training_examples_in_time(split):
    data = make(DRIFTING)
    last = most_popular(data, "train", 990_000, 1_000_000, 2)
    held_out = most_popular(data, split, 0, 2000, 3)
    assert held_out[1:] == last
    assert held_out[0] not in most_popular(data, "train", 0, 10_000, 10)


# Configuration


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_train", 0),
        ("num_validation", 0),
        ("num_test", -1),
        ("num_categorical", 0),
        ("num_clusters", 0),
        ("num_dense", -1),
        ("vocabulary", (5, 0)),
        ("largest_vocabulary", 0),
        ("individuality", -0.1),
        ("individuality", 1.1),
        ("individuality", math.nan),
        ("click_rate", 0.0),
        ("click_rate", 1.0),
        ("click_rate", math.nan),
        ("drift", -1.0),
        ("drift", math.inf),
        ("drift", math.nan),
        ("signal", -1.0),
        ("signal", math.inf),
        ("signal", math.nan),
        ("skew", -0.5),
        ("skew", math.nan),
    ],
)
def test_a_config_that_describes_no_log_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must .*but got {re.escape(str(value))}"):
        replace(SMALL, **{name: value})


def test_the_smallest_log_there_is_can_be_read():
    config = SyntheticConfig(
        num_train=1, num_validation=1, num_test=1, num_dense=0, vocabulary=(1,), num_clusters=1
    )
    for split in SPLITS:
        (batch,) = make(config).batches(split, 8)
        assert batch.ids["c1"].tolist() == [0]
        assert batch.dense.shape == (1, 0)
        assert batch.probability.item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_ranks_together_see_the_batches_of_one_process(world_size):
    data = SyntheticConfig(num_train=205, num_validation=1, num_test=1, num_dense=2,
                           vocabulary=(50, 7)).build()  # fmt: skip
    parts = [
        list(data.batches("train", 34, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for whole, *split in zip(data.batches("train", 34), *parts, strict=True):
        assert torch.equal(torch.cat([part.labels for part in split]), whole.labels)
        assert torch.equal(torch.cat([part.ids["c1"] for part in split]), whole.ids["c1"])
        assert {part.num_global for part in split} == {whole.num_examples}
        sizes = [part.num_examples for part in split]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("batch_size", "start"), [(7, 0), (100, 3), (4096, 0), (5000, 1)])
def test_batches_made_several_at_once_are_the_same(batch_size, start):
    data = SyntheticConfig(num_train=9_999, num_validation=1, num_test=1, num_dense=2,
                           vocabulary=(50, 7)).build()  # fmt: skip
    made = list(data.batches("train", batch_size, start=start))
    whole = data.examples("train", start * batch_size, 9_999)
    assert [b.num_examples for b in made[:-1]] == [batch_size] * (len(made) - 1)
    assert all(b.num_global == b.num_examples for b in made)
    assert torch.equal(torch.cat([b.labels for b in made]), whole.labels)
    assert torch.equal(torch.cat([b.probability for b in made]), whole.probability)
    assert torch.equal(torch.cat([b.ids["c2"] for b in made]), whole.ids["c2"])


@pytest.mark.gpu
def test_a_log_made_on_cuda_is_the_same_to_the_last_bits():
    data = SyntheticConfig(num_train=50_000, drift=100).build()
    here = data.examples("train", 0, 50_000)
    there = data.to(torch.device("cuda")).examples("train", 0, 50_000)
    assert there.labels.is_cuda
    for name, ids in here.ids.items():
        assert torch.equal(there.ids[name].cpu(), ids)
    torch.testing.assert_close(there.probability.cpu(), here.probability)
    assert (there.labels.cpu() != here.labels).sum() <= 1

"""What a cache draws: who counts, and with what weight."""

import math

import pytest
import torch

from outsize.negatives import NegativeCache


def make(embeddings, keys=None, **options):
    embeddings = torch.as_tensor(embeddings, dtype=torch.float32)
    keys = torch.arange(len(embeddings)) if keys is None else torch.as_tensor(keys)
    options.setdefault("num_items", len(embeddings) + 3)
    cache = NegativeCache(dim=embeddings.shape[1], precision="float32", **options)
    cache.push({}, embeddings, keys)
    return cache


def test_empty_rows_never_count():
    cache = make([[1.0], [2.0]], num_items=1000)
    draw = cache.sample(torch.tensor([[1.0]]), num=200)
    assert set(draw.keys.flatten().tolist()) == {0, 1}
    assert draw.log_partition.item() == pytest.approx(math.log(math.e + math.e**2), rel=1e-6)


def test_the_draws_are_those_of_softmax():
    generator = torch.Generator().manual_seed(3)
    items = torch.randn(12, 4, generator=generator)
    query = torch.randn(1, 4, generator=generator)
    draw = make(items).sample(query, num=40_000, beta=1.5)
    expected = torch.softmax(1.5 * query @ items.T, dim=1).flatten() * 40_000
    counts = torch.bincount(draw.keys.flatten(), minlength=12)
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert statistic < 50  # chi-square with 11 degrees of freedom: exceeded once in 10⁶


def test_a_querys_own_positive_does_not_count():
    cache = make([[3.0], [1.0], [0.0]], keys=[30, 10, 20])
    draw = cache.sample(torch.ones(2, 1), num=500, exclude=torch.tensor([30, 10]))
    assert set(draw.keys[0].tolist()) == {10, 20}
    assert set(draw.keys[1].tolist()) == {30, 20}
    expected = torch.tensor([math.log(math.e + 1), math.log(math.e**3 + 1)])
    torch.testing.assert_close(draw.log_partition, expected)


def test_a_list_of_positives_does_not_count_and_unknown_keys_in_it_are_nothing():
    cache = make([[3.0], [1.0], [0.0]], keys=[30, 10, 20])
    lists = torch.tensor([[30, 10, 10], [-1, 77, -1]])
    draw = cache.sample(torch.ones(2, 1), num=300, exclude=lists)
    assert set(draw.keys[0].tolist()) == {20}
    assert set(draw.keys[1].tolist()) == {30, 10, 20}


def test_items_excluded_everywhere_count_for_nobody():
    cache = make([[3.0], [1.0], [0.0]])
    draw = cache.sample(torch.ones(2, 1), num=99, exclude_everywhere=torch.tensor([0, 2, 55]))
    assert set(draw.keys.flatten().tolist()) == {1}


def test_an_excluded_item_with_all_of_the_mass_takes_nothing_with_it():
    cache = make([[100.0], [0.0], [math.log(3)]])
    draw = cache.sample(torch.ones(1, 1), num=20_000, exclude=torch.tensor([0]))
    assert draw.log_partition.item() == pytest.approx(math.log(4), rel=1e-5)
    assert (draw.keys == 2).float().mean().item() == pytest.approx(0.75, abs=0.02)


def test_an_empty_cache_and_an_all_masked_query_draw_nothing():
    empty = NegativeCache(4, 2, {"id": ((3,), torch.int64)})
    draw = empty.sample(torch.randn(2, 2), num=3, exclude=torch.tensor([1, 2]))
    assert (draw.rows == -1).all()
    assert (draw.keys == -1).all()
    assert (draw.log_partition == -torch.inf).all()
    assert draw.features["id"].shape == (2, 3, 3)
    masked = make([[1.0], [2.0]]).sample(
        torch.ones(2, 1), 2, exclude=torch.tensor([[0, 1], [0, -1]])
    )
    assert masked.rows[0].tolist() == [-1, -1]
    assert masked.log_partition[0] == -torch.inf
    assert masked.keys[1].tolist() == [1, 1]


def test_more_draws_than_items_repeat_items():
    draw = make([[1.0], [2.0]]).sample(torch.ones(1, 1), num=64)
    assert draw.keys.shape == (1, 64)
    assert set(draw.keys.flatten().tolist()) == {0, 1}


def test_a_sample_of_the_corpus_counts_for_all_of_it():
    items = torch.randn(20, 3)
    whole = make(items)
    sample = make(items, corpus_size=5000)
    query = torch.randn(2, 3)
    more = sample.sample(query).log_partition - whole.sample(query).log_partition
    torch.testing.assert_close(more, torch.full((2,), math.log(5000 / 20)))
    assert sample.alpha == pytest.approx(20 / 5000)


def test_weights_are_added_to_logits():
    cache = NegativeCache(3, 1, precision="float32")
    weights = torch.tensor([0.0, math.log(3)])
    cache.push({}, torch.zeros(2, 1), torch.tensor([0, 1]), weights)
    draw = cache.sample(torch.ones(1, 1), num=20_000)
    assert draw.log_partition.item() == pytest.approx(math.log(4), rel=1e-6)
    assert (draw.keys == 1).float().mean().item() == pytest.approx(0.75, abs=0.02)


def test_draws_differ_from_call_to_call_and_repeat_with_the_seed():
    items, query = torch.randn(50, 4), torch.randn(3, 4)
    one, other = make(items, seed=1), make(items, seed=1)
    first = one.sample(query, 8).keys
    assert not torch.equal(one.sample(query, 8).keys, first)
    assert torch.equal(other.sample(query, 8).keys, first)
    assert not torch.equal(make(items, seed=2).sample(query, 8).keys, first)


def test_no_draws_give_the_log_partition_alone():
    draw = make([[1.0], [2.0]]).sample(torch.ones(2, 1), num=0)
    assert draw.rows.shape == (2, 0)
    assert torch.isfinite(draw.log_partition).all()


def test_the_mean_is_that_of_softmax():
    items, query = torch.randn(9, 4), torch.randn(2, 4)
    draw = make(items).sample(query, 1, beta=2.0, exclude=torch.tensor([4, 5]), with_mean=True)
    logits = 2 * query @ items.T
    logits[0, 4] = logits[1, 5] = -torch.inf
    torch.testing.assert_close(draw.mean_embedding, logits.softmax(1) @ items)


def test_a_draw_says_what_the_cache_knows_of_its_items():
    cache = NegativeCache(4, 2, {"id": ((), torch.int64)}, precision="int8")
    cache.push({"id": torch.tensor([7])}, torch.tensor([[1.0, -0.5]]), torch.tensor([7]))
    cache.commit()
    cache.commit()
    draw = cache.sample(torch.ones(1, 2), num=2)
    assert draw.ages.tolist() == [[2, 2]]
    assert draw.features["id"].tolist() == [[7, 7]]
    torch.testing.assert_close(
        draw.embeddings[0, 0], torch.tensor([1.0, -0.5]), atol=1 / 254, rtol=0
    )

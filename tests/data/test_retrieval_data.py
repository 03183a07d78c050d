import itertools

import pytest
import torch
from counting import numbers_written

from outsize.data import Entities, ItemLists, RetrievalData, SyntheticInteractionsConfig
from outsize.errors import ConfigError, DataError

SMALL = SyntheticInteractionsConfig(
    num_queries=60, num_items=40, items_per_query=7, num_groups=5, latent_dim=4
)


def entities(name, num_rows):
    return Entities(num_rows, {name: torch.arange(num_rows)}, {name: num_rows})


def make(train, validation, test, num_queries=4, num_items=6, **options):
    pairs = {
        split: tuple(torch.tensor(column) for column in zip(*given, strict=True))
        for split, given in (("train", train), ("validation", validation), ("test", test))
    }
    return RetrievalData(entities("q", num_queries), entities("i", num_items), pairs, **options)


def seen(data, **options):
    batches = list(data.batches("train", 16, **options))
    return [(int(q), int(i)) for b in batches for q, i in zip(b.query_rows, b.items, strict=True)]


def as_python(lists):
    edges = lists.offsets.tolist()
    return [lists.values[a:b].tolist() for a, b in itertools.pairwise(edges)]


def test_lists_hold_each_item_once():
    lists = ItemLists(torch.tensor([2, 0, 2, 2]), torch.tensor([5, 1, 3, 5]), 4)
    assert lists.counts().tolist() == [1, 0, 2, 0]
    rows = torch.tensor([2, 1, 0])
    assert as_python(lists.of(rows)) == [[3, 5], [], [1]]
    assert as_python(lists.of(rows, most=1)) == [[3], [], [1]]
    assert as_python(lists.of(rows[:0])) == []
    values, offsets = lists.flat(rows)
    assert (values.tolist(), offsets.tolist()) == ([3, 5, 1], [0, 2, 2])
    asked = torch.tensor([2, 2, 3]), torch.tensor([5, 4, 5])
    assert lists.contains(*asked).tolist() == [True, False, False]


def test_known_items_are_not_evaluated():
    data = make([(0, 1), (1, 2)], [(0, 1), (0, 2)], [(0, 2), (0, 3), (0, 3), (3, 1), (1, 2)])
    assert data.relevant("validation").pairs()[1].tolist() == [2]
    values = data.relevant("test").pairs()
    assert [part.tolist() for part in values] == [[0], [3]]  # once, and no cold query
    assert as_python(data.known("test").of(torch.tensor([0]))) == [[1, 2]]
    assert data.num_cold_queries == 2


def test_items_of_training_are_known_and_counted():
    data = make([(0, 1), (0, 4), (1, 4)], [(0, 5)], [(0, 3)])
    assert as_python(data.known_items(torch.tensor([0, 1, 2]))) == [[1, 4], [4], []]
    assert as_python(data.known_items(torch.tensor([0, 1]), max_known=1)) == [[1], [4]]
    assert data.item_counts.tolist() == [0, 1, 0, 0, 2, 0]


def test_an_epoch_is_every_pair_once_in_an_order_of_its_own():
    data = SMALL.build()
    first, second = seen(data), seen(data, epoch=1)
    assert len(first) == 300
    assert first != second
    assert sorted(first) == sorted(second)
    assert seen(SMALL.build()) == first


def test_a_pass_can_begin_at_any_batch():
    data = SMALL.build()
    assert seen(data, epoch=3, start=5) == seen(data, epoch=3)[80:]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_see_what_one_process_sees(world_size):
    data = SMALL.build()
    parts = [list(data.batches("train", 16, rank=r, world_size=world_size))
             for r in range(world_size)]  # fmt: skip
    whole = list(data.batches("train", 16))
    assert len(whole) == data.num_batches("train", 16) == 19
    for batch, *pieces in zip(whole, *parts, strict=True):
        assert torch.equal(torch.cat([piece.items for piece in pieces]), batch.items)
        assert {piece.num_global for piece in pieces} == {batch.items.shape[0]}
        groups = torch.cat([piece.queries["query_group"] for piece in pieces])
        assert torch.equal(groups, batch.queries["query_group"])


def test_a_split_without_pairs_and_a_feature_of_both_sides_are_refused():
    pairs = {s: (torch.zeros(0).long(),) * 2 for s in ("train", "validation", "test")}
    with pytest.raises(DataError, match="no pair is left for the train split"):
        RetrievalData(entities("q", 1), entities("i", 1), pairs)
    with pytest.raises(DataError, match="feature 'q' is one of queries and of items"):
        RetrievalData(entities("q", 1), entities("q", 1), {})


def test_the_fingerprint_follows_the_data():
    one = make([(0, 1)], [(0, 2)], [(0, 3)])
    assert one.fingerprint == make([(0, 1)], [(0, 2)], [(0, 3)]).fingerprint
    assert one.fingerprint != make([(0, 1)], [(0, 3)], [(0, 2)]).fingerprint


def test_synthetic_queries_take_different_items_they_like():
    data = SMALL.build()
    lists = data.known("test").joined(data.relevant("test"))
    assert set(lists.counts().tolist()) == {7}
    assert data.items.features["item_tags"].shape == (40, 4)


def test_synthetic_choices_follow_the_stated_probabilities():
    config = SyntheticInteractionsConfig(
        num_queries=30_000, num_items=5, items_per_query=3, latent_dim=2, skew=1.0
    )
    latents = config._normal("items", 5)
    one_query = torch.zeros(30_000, 2)  # without a taste, popularity alone decides
    taken = config._take(one_query, latents)
    probability = torch.softmax(config.log_popularity(), dim=0)
    # How often an item is among three drawn without replacement, by enumeration.
    expected = torch.zeros(5)
    for i in range(5):
        for j in range(5):
            for k in range(5):
                if len({i, j, k}) == 3:
                    p = probability
                    chance = p[i] * p[j] / (1 - p[i]) * p[k] / (1 - p[i] - p[j])
                    expected[[i, j, k]] += chance
    share = torch.bincount(taken.flatten(), minlength=5) / 30_000
    assert torch.allclose(share, expected, atol=0.012)


def test_the_work_of_making_pairs_grows_with_queries_times_items_and_no_faster():
    def numbers(num_queries, num_items):
        config = SyntheticInteractionsConfig(num_queries=num_queries, num_items=num_items)
        return numbers_written(config.build)

    few = numbers(500, 400)
    assert few < 20 * 500 * 400
    assert numbers(1000, 800) < 4.2 * few


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="cannot take 9 of 5 items"):
        SyntheticInteractionsConfig(num_items=5, items_per_query=9)
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        SyntheticInteractionsConfig(temperature=0.0)


def test_the_first_lists_are_those_of_queries_with_items():
    lists = ItemLists(torch.tensor([1, 1, 3, 4]), torch.tensor([7, 5, 2, 9]), 6)
    first = lists.first(2)
    assert first.num_queries == 6
    assert first.values.tolist() == [5, 7, 2]
    assert first.counts().tolist() == [0, 2, 0, 1, 0, 0]
    assert lists.first(9).values.tolist() == lists.values.tolist()
    assert ItemLists(torch.tensor([0]), torch.tensor([1]), 1).first(0).values.tolist() == []

"""One key, one item: what a batch may not hold."""

import pytest
import torch
from item_sources import Towers

from outsize.errors import DataError
from outsize.negatives import NEGATIVES, HeldItems, NegativeCache, NegativeCacheLoss
from outsize.negatives.batch_items import encode_distinct, require_items
from outsize.negatives.cache.sharded_cache import ShardedNegativeCache
from outsize.ranks.thread_ranks import run_as_ranks

ID = {"id": ((), torch.int64)}


def items(keys, **features):
    keys = torch.tensor(keys)
    return HeldItems(torch.full_like(keys, -1), keys, features)


def state(cache):
    return {name: value.clone() for name, value in cache.state_dict().items()}


@pytest.mark.parametrize(
    ("keys", "ids", "hard", "words"),
    [
        ([3, -2, 5], [3, 4, 5], None, "keys of positives must be >= 0, but got -2"),
        ([3, 4, 3], [3, 4, 9], None, "two items of the batch have the key 3 but different feature"),
        ([3, 4, 5], [3, 4, 5], [4, 8, 9], "two items of the batch have the key 4"),
        ([3, 4, 5], [3, 4, 5], [8, 7, 8], "two items of the batch have the key 8"),
        ([3, 4, 5], [3, 4, 5], [8, -7, 9], "must be >= 0, or −1 for none, but got -7"),
    ],
)
def test_a_forward_refuses_keys_that_do_not_tell_items_apart(keys, ids, hard, words):
    towers = Towers()
    cache = NegativeCache(8, 6, ID, precision="float32")
    loss = NegativeCacheLoss(cache, towers.encode_items, 5.0, 2)
    before = state(cache)
    more = None if hard is None else items(hard, id=torch.tensor([8, 7, 9]))
    queries = towers.encode_queries(torch.arange(3))
    with pytest.raises(DataError, match=words):
        loss(queries, {"id": torch.tensor(ids)}, torch.tensor(keys), hard=more)
    assert all(torch.equal(value, before[name]) for name, value in cache.state_dict().items())


def test_a_queue_refuses_them_too():
    towers = Towers()
    loss = NEGATIVES["queue"](num_items=8).build(towers.source(), 0)
    queries = towers.encode_queries(torch.arange(2))
    with pytest.raises(DataError, match="keys of positives must be >= 0, but got -1"):
        loss(queries, {"id": torch.tensor([1, 2])}, torch.tensor([1, -1]))
    with pytest.raises(DataError, match="the key 4 but different features"):
        loss(queries, {"id": torch.tensor([1, 2])}, torch.tensor([4, 4]))
    assert loss.cache.clock == 0


def test_if_one_rank_refuses_its_batch_all_ranks_raise():
    towers = Towers()

    def work(ranks):
        cache = ShardedNegativeCache(8, 6, ID, precision="float32", group=ranks)
        loss = NegativeCacheLoss(cache, towers.encode_items, 5.0, 2)
        keys = torch.tensor([4, 4])
        ids = torch.tensor([4, 4 + ranks.rank])
        with pytest.raises(DataError) as caught:
            loss(towers.encode_queries(keys), {"id": ids}, keys)
        return str(caught.value)

    one, other = run_as_ranks(2, work)
    assert one.startswith("rank 1 could not take this step")
    assert other.startswith("two items of the batch have the key 4")


def test_equal_items_are_no_mistake_also_where_a_number_is_missing():
    values = torch.tensor([[1.0, torch.nan], [2.0, 0.0], [1.0, torch.nan]])
    short = torch.tensor([[7], [60_000], [7]]).to(torch.uint16)
    require_items(items([5, 6, 5], x=values, y=short))
    with pytest.raises(DataError, match="the key 5"):
        require_items(items([5, 5], x=values[:2]))


def padded(texts, width, pad=0):
    ids = torch.full((len(texts), width), pad)
    mask = torch.zeros(len(texts), width, dtype=torch.int64)
    for line, text in enumerate(texts):
        ids[line, : len(text)] = torch.tensor(text)
        mask[line, : len(text)] = 1
    return ids, mask


@pytest.mark.parametrize("pad", [0, 1])
def test_a_text_padded_to_two_widths_is_one_item(pad):
    ids, mask = padded([[5, 6], [5, 6, 7]], 3, pad)
    wide_ids, wide_mask = padded([[5, 6], [8]], 6, pad)
    positives = items([2, 3], ids=ids, mask=mask)
    require_items(positives, items([2, 4], ids=wide_ids, mask=wide_mask))
    seen = {}

    def encode(features):
        seen.update(features)
        return (features["ids"] * features["mask"]).sum(dim=1, keepdim=True).float()

    hard = items([2, 4], ids=wide_ids, mask=wide_mask)
    own, others = encode_distinct(encode, [positives, hard])
    assert own.flatten().tolist() == [11, 18]
    assert others.flatten().tolist() == [11, 8]
    assert seen["ids"].shape == (3, 6)


def test_a_longer_text_is_another_item_and_not_a_padded_one():
    ids, mask = padded([[5, 6]], 2, 1)
    longer = padded([[5, 6, 7]], 3, 1)
    other = padded([[5, 9]], 3, 1)
    for wide_ids, wide_mask in (longer, other):
        with pytest.raises(DataError, match="the key 2 but different features"):
            require_items(items([2], ids=ids, mask=mask), items([2], ids=wide_ids, mask=wide_mask))
        with pytest.raises(DataError, match="the key 2 but different features"):
            require_items(items([2], ids=ids), items([2], ids=wide_ids))


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        (items([1], text=torch.tensor([1])), "positives have the features"),
        (items([1], id=torch.tensor([[1]])), "feature 'id' has the shape"),
        (items([1], id=torch.tensor([1, 2])), "feature 'id' has the shape"),
    ],
)
def test_features_of_another_kind_are_refused(hard, words):
    with pytest.raises(DataError, match=words):
        require_items(items([5], id=torch.tensor([5])), hard)


def test_keys_must_be_whole_numbers(unchecked_shapes):
    with pytest.raises(DataError, match=r"keys must be one int64 per item, but got \(1,\)"):
        require_items(items([5.0], id=torch.tensor([5])))


def test_a_later_push_of_a_key_replaces_what_was_held():
    towers = Towers()
    cache = NegativeCache(8, 6, ID, precision="float32")
    loss = NegativeCacheLoss(cache, towers.encode_items, 5.0, 2)
    for number in (3, 9):
        keys, ids = torch.tensor([2]), torch.tensor([number])
        loss.commit(loss(towers.encode_queries(keys), {"id": ids}, keys))
        assert cache.items.feature_id[cache.rows_of(keys)].tolist() == [number]
        fresh = towers.encode_items({"id": ids}).detach()
        torch.testing.assert_close(cache.items.embeddings_at(cache.rows_of(keys)), fresh)

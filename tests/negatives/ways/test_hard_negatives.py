"""Hard negatives count once, and only where they are negatives."""

import pytest
import torch
from item_sources import Towers

from outsize.errors import DataError
from outsize.negatives import (
    ESTIMATORS,
    NEGATIVES,
    Comparison,
    CorpusFeed,
    HeldItems,
    NegativeCache,
    NegativeCacheLoss,
    ShardedNegativeCache,
    Upkeep,
)
from outsize.negatives.batch_items import hard_negative_mask
from outsize.ranks.thread_ranks import run_as_ranks

ROWS, KEYS = torch.tensor([0, 1, 2]), torch.tensor([3, 7, 3])
KNOWN = torch.tensor([[5, -1], [9, 4], [-1, -1]])
ID = {"id": ((), torch.int64)}


def hard_items(lists, filler=0):
    keys = torch.tensor(lists, dtype=torch.int64).flatten()
    return HeldItems(torch.full_like(keys, -1), keys, {"id": torch.where(keys < 0, filler, keys)})


def make(towers, comparison=None, held=30, cache=None, **upkeep):
    cache = cache or NegativeCache(30, 6, ID, precision="float32")
    if held:
        keys = torch.arange(held)
        cache.push({"id": keys}, towers.encode_items({"id": keys}).detach(), keys)
    return NegativeCacheLoss(cache, towers.encode_items, 5.0, 4, comparison, Upkeep(**upkeep))


def expected_losses(towers, lists, in_batch, held, known=KNOWN):
    """Cross-entropy over the set of items that a query is compared with."""
    logits = 5.0 * towers.encode_queries(ROWS) @ towers.encode_items({"id": torch.arange(30)}).T
    losses = []
    for query, key in enumerate(KEYS.tolist()):
        others = set(range(held)) | set(lists[query]) | (set(KEYS.tolist()) if in_batch else set())
        wrong = others - set(known[query].tolist()) - {-1, key}
        row = logits[query, [key, *sorted(wrong)]]
        losses.append(row.logsumexp(0) - row[0])
    return torch.stack(losses).detach()


# the own positive, a known one, one twice, another query's positive, nothing
TRICKY = [[3, 10, 10, 7, -1], [9, 7, 3, 20, 4], [-1, -1, 7, 8, 3]]


@pytest.mark.parametrize("held", [0, 12, 30])
@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_hard_negatives_count_once_and_only_where_they_are_wrong(estimator, in_batch, held):
    towers = Towers()
    loss = make(towers, Comparison(estimator, in_batch), held)
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN, hard_items(TRICKY))
    expected = expected_losses(towers, TRICKY, in_batch, held)
    torch.testing.assert_close(report.losses, expected, rtol=1e-6, atol=1e-6)
    report.loss.backward()
    assert towers.items.grad.isfinite().all()


def test_a_hard_negative_equal_to_the_positive_is_masked():
    towers = Towers()
    loss = make(towers, held=0)
    hard = hard_items(KEYS.unsqueeze(1).tolist())
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, hard=hard)
    assert report.losses.tolist() == [0, 0, 0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_other_direction_is_the_same_with_and_without_hard_negatives_that_do_not_count(
    estimator,
):
    towers = Towers()
    comparison = Comparison(estimator, in_batch=True, symmetric=True)
    plain, tricky = (make(towers, comparison, held=12) for _ in range(2))
    given = (towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN)
    hard = hard_items([[3, 7, -1], [9, 3, 4], [7, 7, 3]])  # all of them count elsewhere or nowhere
    torch.testing.assert_close(tricky(*given, hard).loss, plain(*given).loss, rtol=1e-6, atol=1e-6)


def test_while_warming_up_other_positives_given_as_hard_negatives_count_once():
    towers = Towers()
    loss = make(towers, held=0, warmup_steps=3)
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN, hard_items(TRICKY))
    expected = expected_losses(towers, TRICKY, in_batch=True, held=0)
    torch.testing.assert_close(report.losses, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("in_batch", [False, True])
def test_on_several_ranks_a_positive_of_another_rank_counts_once(in_batch, estimator):
    towers = Towers()
    lists = [TRICKY[0], TRICKY[1], TRICKY[2]]
    comparison = Comparison(estimator, in_batch)

    def work(ranks):
        cache = ShardedNegativeCache(30, 6, ID, precision="float32", group=ranks)
        keys = torch.arange(ranks.rank, 12, 2)
        cache.push({"id": keys}, towers.encode_items({"id": keys}).detach(), keys)
        mine = slice(0, 1) if ranks.rank == 0 else slice(1, 3)
        loss = make(towers, comparison, held=0, cache=cache)
        given = (towers.encode_queries(ROWS[mine]), {"id": KEYS[mine]}, KEYS[mine], KNOWN[mine])
        return loss(*given, hard_items(lists[mine])).losses

    losses = torch.cat(run_as_ranks(2, work))
    expected = expected_losses(towers, lists, in_batch, held=12)
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)


def test_a_rank_without_queries_has_no_hard_negatives():
    towers = Towers()

    def work(ranks):
        cache = ShardedNegativeCache(30, 6, ID, precision="float32", group=ranks)
        loss = make(towers, Comparison(in_batch=True), held=0, cache=cache)
        mine = slice(0, 3 * ranks.rank)
        hard = hard_items(TRICKY[mine])
        return loss(towers.encode_queries(ROWS[mine]), {"id": KEYS[mine]}, KEYS[mine], hard=hard)

    assert [len(report.losses) for report in run_as_ranks(2, work)] == [0, 3]


def test_what_stands_for_nothing_is_never_encoded():
    towers = Towers()

    def encode(features):
        assert (features["id"] != 29).all()
        return towers.encode_items(features)

    cache = NegativeCache(30, 6, ID, precision="float32")
    loss = NegativeCacheLoss(cache, encode, 5.0, 4)
    hard = hard_items([[-1, 5], [-1, -1], [6, -1]], filler=29)
    loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, hard=hard).loss.backward()


def test_dice_above_all_shares_of_an_empty_cache_pick_the_positive():
    towers = Towers()
    loss = make(towers, Comparison("sampled"), held=0)
    sample = loss.cache.sample

    def highest(*given, **more):
        draw = sample(*given, **more)
        draw.uniforms.fill_(1.0)
        return draw

    loss.cache.sample = highest
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, hard=hard_items([[5, -1]] * 3))
    report.loss.backward()
    assert report.loss.isfinite()
    assert towers.items.grad.isfinite().all()


def test_lists_without_known_items_mask_repeats_and_nothing_else():
    hard = torch.tensor([[4, 2, 4, 2, -1], [1, 0, -1, 1, 5]])
    counts = hard_negative_mask(hard, torch.tensor([2, 9]), batch_keys=torch.tensor([5, 9]))
    assert counts.tolist() == [
        [True, False, False, False, False],
        [True, True, False, False, False],
    ]


def test_an_uneven_number_of_hard_negatives_is_refused():
    towers = Towers()
    with pytest.raises(
        DataError, match="4 hard negatives for 3 queries: give each query the same number"
    ):
        make(towers, held=0)(
            towers.encode_queries(ROWS), {"id": KEYS}, KEYS, hard=hard_items([[1, 2, 4, 5]])
        )


@pytest.mark.parametrize("in_batch", [False, True])
def test_the_best_items_of_an_index_count_once_beside_the_batch(in_batch):
    towers = Towers()
    config = NEGATIVES["top-items"](
        num_negatives=27, num_candidates=27, in_batch=in_batch, beta=5.0, precision="float32"
    )
    loss = config.build(towers.source(), seed=0)
    loss.begin()  # 27 of 30: all but the own and two known ones
    known = torch.tensor([[5, 6], [9, 4], [1, 2]])
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, known)
    expected = expected_losses(towers, [[]] * 3, in_batch, held=30, known=known)
    torch.testing.assert_close(report.losses, expected, rtol=1e-6, atol=1e-6)


def test_a_fed_corpus_with_hard_negatives_is_the_exact_loss():
    towers = Towers()
    loss = make(towers, held=0, feed=CorpusFeed(towers.source()))
    loss.begin()
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN, hard_items(TRICKY))
    torch.testing.assert_close(
        report.losses, expected_losses(towers, TRICKY, False, 30), rtol=1e-6, atol=1e-6
    )

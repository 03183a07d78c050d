"""All that is known to be right for a query is masked, however long the lists are."""

import pytest
import torch
from item_sources import Towers

from outsize.kernels.ragged import Ragged
from outsize.negatives import (
    NEGATIVES,
    CorpusFeed,
    InBatchLoss,
    NegativeCache,
    NegativeCacheLoss,
    ShardedNegativeCache,
    Temperature,
    Upkeep,
    in_batch_logits,
)
from outsize.negatives.ways.in_batch import items_to_queries
from outsize.ranks.thread_ranks import run_as_ranks

NUM_ITEMS = 30
KEYS = torch.tensor([3, 7, 3, 20, 11])
ROWS = torch.arange(5)
# Nothing, duplicates and the query's own, all items, all but two, and one of another query.
ALL = list(range(NUM_ITEMS))
LISTS = [[], [7, 4, 4, 9, 7], ALL, [key for key in ALL if key not in (3, 20)], [3]]


def ragged(lists):
    values = torch.tensor([key for each in lists for key in each], dtype=torch.int64)
    return Ragged.from_sizes(values, torch.tensor([len(each) for each in lists]))


KNOWN = ragged(LISTS)
PADDED = torch.tensor([[*each, *[-1] * (NUM_ITEMS - len(each))] for each in LISTS])
SMALL = {
    "cache": {"num_negatives": 3, "precision": "float32"},
    "queue": {"num_items": 12, "precision": "float32"},
    "uniform": {"num_negatives": 40},
    "top-items": {"num_negatives": 30, "num_candidates": 30, "precision": "float32"},
}


def build(kind, towers, **options):
    config = NEGATIVES[kind](**{**SMALL.get(kind, {}), "beta": 4.0, **options})
    loss = config.build(towers.source(torch.arange(1, NUM_ITEMS + 1)), 0)
    loss.begin()
    return loss


def by_hand(towers):
    """Softmax over all items but those known, with Python's lists."""
    logits = 4.0 * towers.encode_queries(ROWS) @ towers.encode_items({"id": torch.arange(30)}).T
    for query, others in enumerate(LISTS):
        for key in others:
            if key != KEYS[query]:
                logits[query, key] = -torch.inf
    return -torch.log_softmax(logits, dim=1)[ROWS, KEYS].detach()


@pytest.mark.parametrize("kind", sorted(NEGATIVES))
def test_lists_mean_what_a_matrix_of_the_same_keys_means(kind):
    found = []
    for known in (KNOWN, PADDED):
        towers = Towers()
        loss = build(kind, towers)
        for _ in range(2):
            report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, known)
            loss.commit(report)
        report.loss.backward()
        found.append((report.losses, towers.items.grad, towers.queries.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["exact", "cache", "top-items"])
def test_the_loss_over_all_items_leaves_out_every_known_one(kind):
    towers = Towers()
    options = {"in_batch": False} if kind == "top-items" else {}
    report = build(kind, towers, **options)(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN)
    torch.testing.assert_close(report.losses, by_hand(towers), rtol=1e-4, atol=1e-4)


def test_even_draws_are_never_known_items():
    towers = Towers()
    loss = build("uniform", towers)
    report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN)
    assert report.losses[2].item() == 0  # everything is known
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        chosen = loss.choose(towers.encode_queries(ROWS), KEYS, KNOWN, generator)
        for query, others in enumerate(LISTS):
            assert not set(chosen[query].tolist()) & {*others, int(KEYS[query])}
        assert set(chosen[3].tolist()) <= {-1, 3}


def test_items_of_a_batch_are_masked_as_a_loop_over_all_pairs_would():
    towers = Towers()
    queries, items = towers.encode_queries(ROWS), towers.encode_items({"id": KEYS})
    logits = in_batch_logits(queries, items, 4.0, KEYS, KNOWN)
    scores = 4.0 * queries @ items.T
    back = 4.0 * items @ queries.T
    for query in range(5):
        for place, key in enumerate(KEYS.tolist()):
            is_positive = key == KEYS[query] or key in LISTS[query]
            is_repeated = key in KEYS[:place].tolist()
            expected = -torch.inf if is_positive or is_repeated else scores[query, place].item()
            assert logits[query, place].item() == pytest.approx(expected)
            if is_positive and place != query:
                back[place, query] = -torch.inf
    found = items_to_queries(queries, items, 4.0, KEYS, KNOWN)
    torch.testing.assert_close(found, back.logsumexp(dim=1) - back.diagonal())


@pytest.mark.parametrize("kind", ["in-batch", "cache"])
def test_lists_of_all_ranks_are_those_of_one_process(kind):
    towers = Towers()

    def losses(ranks, lines):
        queries, keys = towers.encode_queries(ROWS[lines]), KEYS[lines]
        if kind == "in-batch":
            loss = InBatchLoss(towers.source(), Temperature(4.0), symmetric=True, ranks=ranks)
        else:
            group = {} if ranks is None else {"group": ranks}
            cls = NegativeCache if ranks is None else ShardedNegativeCache
            cache = cls(30, 6, {"id": ((), torch.int64)}, precision="float32", **group)
            feed = CorpusFeed(towers.source())
            loss = NegativeCacheLoss(cache, towers.encode_items, 4.0, 2, upkeep=Upkeep(feed))
            loss.begin()
        report = loss(queries, {"id": keys}, keys, ragged(LISTS[lines]))
        return report.losses, report.loss.detach() * len(keys)

    whole = losses(None, slice(0, 5))
    parts = run_as_ranks(
        2, lambda ranks: losses(ranks, slice(0, 2) if ranks.rank == 0 else slice(2, 5))
    )
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), whole[0])
    torch.testing.assert_close(sum(part[1] for part in parts), whole[1])
    if kind == "cache":
        torch.testing.assert_close(whole[0], by_hand(towers), rtol=1e-4, atol=1e-4)

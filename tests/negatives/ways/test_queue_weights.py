"""What a queued item stands for in the softmax over all items (logQ)."""

import pytest
import torch
from torch import nn

from outsize.negatives import NEGATIVES, ItemSource

NUM_ITEMS, DIM, BETA, BATCH = 1000, 8, 3.0, 32
COUNTS = (1e5 / torch.arange(1, NUM_ITEMS + 1)).long()


def mean_ratio(num_steps, first=0, **options):
    """Estimated over exact partition, over steps from some step on; items never change."""
    generator = torch.Generator().manual_seed(0)
    items = nn.functional.normalize(torch.randn(NUM_ITEMS, DIM, generator=generator))
    queries = nn.functional.normalize(torch.randn(BATCH, DIM, generator=generator))
    source = ItemSource(NUM_ITEMS, DIM, lambda keys: {"id": keys}, lambda f: items[f["id"]], COUNTS)
    loss = NEGATIVES["queue"](beta=BETA, precision="float32", **options).build(source, 0)
    exact = (BETA * queries @ items.T).exp().sum(dim=1)
    ratios = []
    for step in range(num_steps):
        keys = torch.multinomial(COUNTS.float(), BATCH, replacement=True, generator=generator)
        report = loss(queries, {"id": keys}, keys)
        own = BETA * (queries * items[keys]).sum(dim=1)
        if step >= first:
            ratios.append(((report.losses + own).exp() / exact).mean())
        loss.commit(report)
    return float(torch.stack(ratios).mean())


@pytest.mark.parametrize(("num_steps", "first"), [(60, 0), (400, 100)])
def test_a_weighted_queue_estimates_the_softmax_over_all_items(num_steps, first):
    assert mean_ratio(num_steps, first, num_items=150, log_q=True) == pytest.approx(1.0, abs=0.05)


def test_a_weighted_queue_with_room_for_every_item_estimates_it_too():
    ratio = mean_ratio(1500, 1400, num_items=NUM_ITEMS, log_q=True)
    assert ratio == pytest.approx(1.0, abs=0.05)


def test_a_queue_without_weights_is_a_part_of_the_corpus():
    assert mean_ratio(400, 100, num_items=150) < 0.3

"""What an item of the batch stands for in the softmax over all items (logQ)."""

import pytest
import torch
from torch import nn

from outsize.negatives import InBatchLoss, ItemSource, Temperature
from outsize.negatives.inclusion import log_prob_drawn

NUM_ITEMS, DIM, BETA = 3000, 8, 3.0
COUNTS = (1e6 / torch.arange(1, NUM_ITEMS + 1)).long()


class Corpus:
    """Zipf items, and queries against them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.generator = generator
        self.items = nn.functional.normalize(torch.randn(NUM_ITEMS, DIM, generator=generator))
        self.query = nn.functional.normalize(torch.randn(1, DIM, generator=generator))
        source = ItemSource(
            NUM_ITEMS, DIM, lambda keys: {"id": keys}, lambda f: self.items[f["id"]], COUNTS
        )
        self.loss = InBatchLoss(source, Temperature(BETA), log_q=True)

    def batch(self, size):
        return torch.multinomial(COUNTS.float(), size, replacement=True, generator=self.generator)

    def exact(self, known=()):
        """The partition over all items but known ones."""
        logits = BETA * (self.items @ self.query[0])
        logits[list(known)] = -torch.inf
        return logits.exp().sum()

    def estimated(self, keys, known=None):
        """The partition over the others, and the own item's part, as the first query's loss has it.

        The first query is the one that `exact` asks with; the others do not matter.
        """
        queries = self.query.expand(len(keys), DIM)
        report = self.loss(queries, {"id": keys}, keys, known)
        own = BETA * (self.items[keys[0]] @ self.query[0])
        whole = (report.losses[0] + own).exp()
        return whole - own.exp(), own.exp()


def mean_ratio(corpus, size, num_batches, known=None):
    """Estimated over exact partition: the mean over batches, known to 1%."""
    exact = corpus.exact(() if known is None else known)
    lists = None if known is None else torch.tensor([known] * size)
    ratios = []
    while len(ratios) < num_batches:
        keys = corpus.batch(size)
        if known is None or int(keys[0]) not in known:
            ratios.append(sum(corpus.estimated(keys, lists)) / exact)
    found = torch.stack(ratios)
    assert found.std() / num_batches**0.5 < 0.01
    return found.mean().item()


@pytest.mark.parametrize(
    ("size", "num_batches"),
    [(256, 400), (2048, 60), pytest.param(2048, 1000, marks=pytest.mark.slow)],
)
def test_the_partition_of_a_batch_is_on_average_that_of_all_items(size, num_batches):
    assert mean_ratio(Corpus(), size, num_batches) == pytest.approx(1, abs=0.02)


def test_known_positives_are_left_out_of_both_partitions():
    known = [0, 1, 2, 5, 40]
    assert mean_ratio(Corpus(), 256, 400, known) == pytest.approx(1, abs=0.02)


def test_a_batch_of_one_query_has_no_others_and_no_loss():
    corpus = Corpus()
    others, _ = corpus.estimated(torch.tensor([17]))
    assert others.item() == 0


def test_the_chance_of_a_rare_item_is_exact_and_that_of_a_frequent_one_is_one():
    shares = torch.tensor([1e-12, 1e-4, 0.5, 1.0], dtype=torch.float64)
    found = log_prob_drawn(shares, 2047).exp()
    assert found[0].item() == pytest.approx(2047e-12, rel=1e-6)
    assert found[1].item() == pytest.approx(1 - (1 - 1e-4) ** 2047, rel=1e-9)
    assert found[2:].tolist() == [1.0, 1.0]

"""How often ids occur, as reclustering weighs them."""

import torch

from outsize.contracts import Bag
from outsize.data import ClickBatch, ClickData
from outsize.data import click_data as clicks_module


class Counted(ClickData):
    """A source whose ids are functions of the example's number."""

    def __init__(self):
        self.num_dense = 0
        self.vocabularies = {"single": 7, "bag": 5}

    def num_examples(self, split):
        return 100

    def examples(self, split, first, stop, epoch=0):
        numbers = torch.arange(first, stop)
        values = torch.stack([numbers % 5, numbers % 3], dim=1).flatten()
        bag = Bag(values, torch.arange(len(numbers)) * 2)
        labels = torch.zeros(len(numbers))
        return ClickBatch(torch.empty(len(numbers), 0), {"single": numbers % 7, "bag": bag}, labels)


def test_ids_of_the_first_examples_are_counted_bags_too():
    counts = Counted().count_ids(30)
    assert counts["single"].tolist() == [5, 5, 4, 4, 4, 4, 4]
    assert counts["bag"].tolist() == [6 + 10, 6 + 10, 6 + 10, 6, 6]


def test_of_very_many_examples_spread_chunks_are_counted(monkeypatch):
    monkeypatch.setattr(clicks_module, "_CHUNK_EXAMPLES", 10)
    monkeypatch.setattr(clicks_module, "_MAX_CHUNKS", 4)
    counts = Counted().count_ids(95)  # ten chunks, of which 0, 2, 5 and 7 are read
    expected = torch.cat([torch.arange(a, a + 10) for a in (0, 20, 50, 70)]) % 7
    assert torch.equal(counts["single"], expected.bincount(minlength=7))


def test_nothing_seen_is_nothing_counted():
    assert all(not count.any() for count in Counted().count_ids(0).values())

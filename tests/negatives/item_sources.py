"""Items for tests: a table of embeddings, known by key."""

import torch
from torch import nn

from outsize.negatives import ItemSource


class Towers(nn.Module):
    """A table of queries and a table of items, normalised."""

    def __init__(self, num_queries=40, num_items=30, dim=6, seed=0, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.queries = nn.Parameter(torch.randn(num_queries, dim, generator=generator))
        self.items = nn.Parameter(torch.randn(num_items, dim, generator=generator))
        self.dropout = nn.Dropout(dropout)

    def encode_queries(self, rows):
        return nn.functional.normalize(self.queries[rows], dim=1)

    def encode_items(self, features):
        return nn.functional.normalize(self.dropout(self.items[features["id"]]), dim=1)

    def source(self, counts=None):
        return ItemSource(
            num_items=len(self.items),
            dim=self.items.shape[1],
            features_of=lambda keys: {"id": keys},
            encode=self.encode_items,
            counts=counts,
        )

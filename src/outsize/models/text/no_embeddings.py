"""The embeddings of a model that has its own."""

from __future__ import annotations

from torch import nn

from outsize.collection import EmbeddingCollection


class NoEmbeddings(EmbeddingCollection):
    """A collection without features, for a model whose embeddings are weights like others."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.features = ()
        self.specs = {}
        self.tables, self.store = nn.ModuleDict(), None
        self._selections = {}

"""The interface of retrieval models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError


class Searcher(Protocol):
    """Searches items for rows of raw values; an exported model brings its own."""

    def search(self, model: RetrievalModel, rows: Any, k: int, exclude: Any = None) -> Any:
        """See `RetrievalModel.search`."""


class RetrievalModel(nn.Module, ABC):
    """Encodes queries and items as vectors of one width, whose inner product is their score.

    Features of queries and items share `embeddings`, but a call has those of one side: read them
    with `embeddings(inputs, only=self.query_features)`.

    Attributes:
        embeddings: The features of queries and items.
        dim: Width of the vectors.
        query_features: The features of queries; a model that does not say them is not exported.
        item_features: The features of items, likewise.
        numbers: The features among them that are numbers, not ids.
        tokenizer: How texts become tokens, for a model that reads texts.
        searcher: How items are found for raw rows; `outsize.load_exported` sets it.
    """

    embeddings: EmbeddingCollection
    dim: int
    query_features: tuple[str, ...] = ()
    item_features: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()
    tokenizer: Any = None
    searcher: Searcher | None = None

    @abstractmethod
    def encode_queries(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch dim"]:
        """The vectors of queries, given their features."""

    @abstractmethod
    def encode_items(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "n dim"]:
        """The vectors of items, given their features."""

    def forward(
        self, queries: Mapping[str, FeatureInput], items: Mapping[str, FeatureInput]
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "n dim"]]:
        """Encode queries and items in one call, for training."""
        return self.encode_queries(queries), self.encode_items(items)

    def use_tokenizer(self, tokenizer: Any) -> None:
        """Take the tokenizer of the data; `None` for data without texts."""
        self.tokenizer = tokenizer

    @property
    def write_encoder(self) -> Callable[[Path], None] | None:
        """Writes weights and tokenizer as a folder of the model's own, for an export.

        The configuration of such a model names that folder as `path`. `None` for a model whose
        weights are written as those of others.
        """
        return None

    def search(self, rows: Any, k: int = 10, exclude: Any = None) -> Any:
        """The best items for queries of raw values, exactly, over all items of the training data.

        Args:
            rows: The columns of the query tower, in any of the forms that `ClickModel.predict`
                takes. A query that is identified by its id must occur in the training data.
            k: Items per query.
            exclude: Raw ids of items to leave out, a list for each row, such as what a user has
                seen. Ids that are of no item are a warning.

        Returns:
            `.items`, lists of raw item ids, best first, and `.scores`, `(num_queries, k)`.
        """
        if self.searcher is None:
            raise ConfigError(
                "this model has no items to search: export its run, and load it with "
                "outsize.load_exported"
            )
        return self.searcher.search(self, rows, k, exclude)


class RetrievalModelConfig(ABC):
    """The configuration of a retrieval model; `build` makes the model."""

    task: ClassVar[str] = "retrieval"
    reads_texts: ClassVar[bool] = False
    """Whether the model encodes texts, and no other features."""

    @property
    def has_tables(self) -> bool:
        """Whether the model reads tables, as `[embeddings]` describes them."""
        return True

    def load_tokenizer(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        """The tokenizer that an export holds."""
        raise ConfigError(f"{type(self).__name__} has no tokenizer to load")

    @abstractmethod
    def features_of(self, known: Sequence[str], side: str) -> tuple[str, ...]:
        """The features that the model reads, of those the data has for "query" or "item"."""

    @abstractmethod
    def build(
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> RetrievalModel:
        """Build the model with initial weights; `numbers` are features that are not ids."""

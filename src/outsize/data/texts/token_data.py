"""Pairs of texts as a model reads them: rows of token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from outsize.data.click_data import Split
from outsize.data.encoding.text_keys import Column
from outsize.data.retrieval_data import Entities, RetrievalData
from outsize.data.texts.text_pairs import TextPairs
from outsize.spec import FeatureSpec

_TEXTS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class TokenRows(Entities):
    """Texts as token ids, held as 32-bit integers."""

    def take(self, rows: Int64[Tensor, " n"]) -> dict[str, Int64[Tensor, "n _"]]:
        """The tokens of the given rows, as wide as the longest of them."""
        taken = {}
        for name, values in self.features.items():
            chosen = values.index_select(0, rows)
            width = int((chosen >= 0).sum(dim=1).max()) if len(chosen) else 1
            taken[name] = chosen[:, : max(1, width)].long()
        return taken


@dataclass(frozen=True)
class TokenFeature:
    """The tokens of queries, or of items.

    Attributes:
        name: The feature.
        table: The table of its tokens; empty for a model that has its own.
        num_tokens: Size of that table.
        ids: The tokens of each text, padded with −1.
    """

    name: str
    table: str
    num_tokens: int
    ids: Int32[Tensor, "n longest"]

    def rows(self, names: Column) -> TokenRows:
        """The texts as entities."""
        return TokenRows(len(self.ids), {self.name: self.ids}, {self.name: self.num_tokens}, names)


class TokenData(RetrievalData):
    """Queries and a corpus of texts, tokenized, and pairs of both in three splits.

    Args:
        texts: The texts and their pairs.
        queries: The tokens of the queries.
        items: The tokens of the items.
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the shuffling.

    Attributes:
        texts: The texts and their pairs.
    """

    def __init__(
        self,
        texts: TextPairs,
        queries: TokenFeature,
        items: TokenFeature,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(
            queries.rows(texts.queries.ids),
            items.rows(texts.items.ids),
            texts.pairs,
            "sum",
            shuffle,
            seed,
            evaluate_cold=True,
        )
        self.texts, self.item_texts = texts, texts.items
        self._tables = {feature.name: feature.table for feature in (queries, items)}

    @property
    def features(self) -> Sequence[FeatureSpec]:
        """The tokens of queries and of items, which may share a table."""
        return tuple(
            FeatureSpec(name, table, pooling="sum", padding_id=-1)
            for name, table in self._tables.items()
            if table
        )

    def count_ids(self) -> dict[str, Int64[Tensor, " _"]]:
        """How often each token of each table occurs in training pairs."""
        counts: dict[str, Tensor] = {}
        for name, found in super().count_ids().items():
            table = self._tables[name]
            counts[table] = counts[table] + found if table in counts else found
        return counts

    def grades(self, split: Split) -> Int64[Tensor, " n"] | None:
        """How relevant each item of `relevant(split)` is, by its `values`; `None` if all alike.

        An item that is not in the list is not relevant, or has not been judged.
        """
        if not self.texts.is_graded:
            return None
        relevant = self.relevant(split)
        asked, wanted = (part.to(relevant.values.device) for part in self.texts.pairs[split])
        is_listed = relevant.contains(asked, wanted)
        order = _pair_keys(asked[is_listed], wanted[is_listed]).argsort()
        grades: Tensor = self.texts.grades[split].to(order.device)[is_listed][order]
        return grades

    def min_grade(self, split: Split) -> int:
        """The smallest grade of a relevant item; NDCG counts lower ones too."""
        return self.texts.min_grades.get(split, 1)


def _pair_keys(queries: Tensor, items: Tensor) -> Tensor:
    """Numbers that are ordered as the pairs of `ItemLists` are."""
    return (queries << 32) | items


def text_batches(texts: Column, rows: Column = None) -> Iterator[list[str]]:
    """Texts in batches, all of them or those in some rows."""
    for first in range(0, len(texts if rows is None else rows), _TEXTS_AT_ONCE):
        chosen = slice(first, first + _TEXTS_AT_ONCE)
        part = texts[chosen] if rows is None else texts.take(rows[chosen])
        yield part.to_pylist()


def training_queries(texts: TextPairs) -> Column:
    """The rows of the queries that have a training pair, a pyarrow array."""
    import pyarrow as pa

    return pa.array(torch.unique(texts.pairs["train"][0]).numpy())

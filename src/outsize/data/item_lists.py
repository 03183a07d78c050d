"""The items of each query, as flat values with offsets."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged

_ITEM_BITS = 32


class ItemLists:
    """The distinct items of each query, in ascending order.

    Args:
        queries: The query of each pair.
        items: The item of each pair, below 2³²; pairs may repeat and come in any order.
        num_queries: Queries are `0 … num_queries − 1`.

    Attributes:
        values: The items of all queries, concatenated.
        offsets: The start of each query's items, and the end of the last.
    """

    def __init__(
        self, queries: Int64[Tensor, " n"], items: Int64[Tensor, " n"], num_queries: int
    ) -> None:
        self._pairs = torch.unique((queries << _ITEM_BITS) | items)
        self.values = self._pairs & ((1 << _ITEM_BITS) - 1)
        edges = torch.arange(num_queries + 1, device=queries.device) << _ITEM_BITS
        self.offsets = torch.searchsorted(self._pairs, edges)

    @property
    def num_queries(self) -> int:
        """Number of queries, including those without items."""
        return self.offsets.shape[0] - 1

    def pairs(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        """All pairs, sorted by query and item."""
        return self._pairs >> _ITEM_BITS, self.values

    def counts(self) -> Int64[Tensor, " num_queries"]:
        """Number of items of each query."""
        return self.offsets.diff()

    def contains(
        self, queries: Int64[Tensor, " n"], items: Int64[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """A mask of the pairs that are in the lists."""
        if not self._pairs.shape[0]:
            return torch.zeros_like(queries, dtype=torch.bool)
        asked = (queries << _ITEM_BITS) | items
        place = torch.searchsorted(self._pairs, asked).clamp_(max=self._pairs.shape[0] - 1)
        return torch.eq(self._pairs[place], asked)

    def first(self, most: int) -> ItemLists:
        """The lists of the first queries that have items, `most` of them; the others are empty."""
        asked = self.counts().nonzero().flatten()[:most]
        known = self._pairs[: int(self.offsets[asked[-1] + 1]) if len(asked) else 0]
        return ItemLists(known >> _ITEM_BITS, known & ((1 << _ITEM_BITS) - 1), self.num_queries)

    def spread(self, most: int) -> ItemLists:
        """The lists of `most` of the queries that have items, equally spaced; others are empty."""
        asked = self.counts().nonzero().flatten()
        if asked.numel() <= most:
            return self
        is_taken = torch.zeros(self.num_queries, dtype=torch.bool, device=asked.device)
        is_taken[asked[torch.arange(most, device=asked.device) * asked.numel() // most]] = True
        queries, items = self.pairs()
        taken = is_taken[queries]
        return ItemLists(queries[taken], items[taken], self.num_queries)

    def of(self, queries: Int64[Tensor, " batch"], most: int | None = None) -> Ragged:
        """The items of some queries, or only the first `most` items of each."""
        starts = self.offsets[queries]
        sizes = self.offsets[queries + 1] - starts
        if most is not None:
            sizes = sizes.clamp_max(most)
        lists = Ragged.from_sizes(self.values[:0], sizes)
        total = int(lists.offsets[-1])
        shifts = (starts - lists.offsets[:-1]).repeat_interleave(sizes, output_size=total)
        places = torch.arange(total, device=queries.device) + shifts
        return Ragged(self.values[places], lists.offsets, ascending=True)

    def flat(
        self, queries: Int64[Tensor, " batch"]
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " batch"]]:
        """All items of some queries as flat values, and the start of each query's items."""
        lists = self.of(queries)
        return lists.values, lists.offsets[:-1]

    def joined(self, other: ItemLists) -> ItemLists:
        """The union of both lists, query by query."""
        (queries, items), (more_queries, more_items) = self.pairs(), other.pairs()
        together = torch.cat((queries, more_queries)), torch.cat((items, more_items))
        return ItemLists(*together, self.num_queries)

    def to(self, device: torch.device) -> ItemLists:
        """The same lists on a device."""
        moved = object.__new__(ItemLists)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

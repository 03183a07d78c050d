"""The items of each query, as one flat list with offsets."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged

_ITEM_BITS = 32


class ItemLists:
    """For each query its items, ascending and each once.

    Args:
        queries: The query of each pair.
        items: Its item, below 2³²; pairs may repeat and come in any order.
        num_queries: Queries are `0 … num_queries − 1`.

    Attributes:
        values: The items of all queries, one query after the other.
        offsets: Where the items of each begin, and the end of the last.
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
        """Queries, those without items included."""
        return self.offsets.shape[0] - 1

    def pairs(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        """All pairs, ordered by query and item."""
        return self._pairs >> _ITEM_BITS, self.values

    def counts(self) -> Int64[Tensor, " num_queries"]:
        """How many items each query has."""
        return self.offsets.diff()

    def contains(
        self, queries: Int64[Tensor, " n"], items: Int64[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """Which pairs are in the lists."""
        if not self._pairs.shape[0]:
            return torch.zeros_like(queries, dtype=torch.bool)
        asked = (queries << _ITEM_BITS) | items
        place = torch.searchsorted(self._pairs, asked).clamp_(max=self._pairs.shape[0] - 1)
        return torch.eq(self._pairs[place], asked)

    def of(self, queries: Int64[Tensor, " batch"], most: int | None = None) -> Ragged:
        """The items of some queries, at most `most` of each: those that stand first."""
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
        """All items of some queries as flat values and where those of each begin."""
        lists = self.of(queries)
        return lists.values, lists.offsets[:-1]

    def joined(self, other: ItemLists) -> ItemLists:
        """The items of both."""
        (asked, taken), (more_asked, more_taken) = self.pairs(), other.pairs()
        together = torch.cat((asked, more_asked)), torch.cat((taken, more_taken))
        return ItemLists(*together, self.num_queries)

    def to(self, device: torch.device) -> ItemLists:
        """The same lists on a device."""
        moved = object.__new__(ItemLists)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

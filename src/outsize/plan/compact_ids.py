"""New ids for the rows that a sample of batches reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.plan.reads import StepReads


class CompactIds:
    """Renames store ids so that only those that occur have rows; every row keeps its owner.

    Args:
        reads: The ids that occur.
        num_owners: Number of ranks that own rows.
        num_slots: Slots of a cache.
        num_rows: Number of all rows, to keep their ids; `None` to rename them.

    Attributes:
        num_rows: Number of rows there are then: at least as many as the cache has slots.
        largest: Number of ids of the largest step.
    """

    def __init__(
        self,
        reads: Sequence[StepReads],
        num_owners: int,
        num_slots: int,
        num_rows: int | None,
    ) -> None:
        steps = [torch.cat(parts) for step in reads for parts in step if parts]
        self.largest = max((ids.shape[0] for ids in steps), default=0)
        self._keeps = num_rows is not None
        if num_rows is not None:
            self.num_rows = num_rows
            return
        self._ids = torch.cat(steps).unique() if steps else torch.empty(0, dtype=torch.int64)
        self._new = torch.empty_like(self._ids)
        for owner in range(num_owners):
            own = (self._ids % num_owners == owner).nonzero().flatten()
            self._new[own] = torch.arange(own.shape[0]) * num_owners + owner
        found = int(self._new.max()) + 1 if self._new.numel() else 1
        self.num_rows = max(found, num_slots, num_owners)

    def __call__(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """New ids, ascending, for ascending ones."""
        if self._keeps:
            return ids
        return self._new[torch.searchsorted(self._ids, ids)].sort().values

"""Least frequently used, as in HET (Miao et al., VLDB 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.stores.eviction.policy import EvictionPolicy, lowest_ids, lowest_slots


class LFU(EvictionPolicy):
    """Least frequently used: evicts the row with the fewest uses since it was admitted.

    Rows are admitted while there is room, lowest ids first. Ties go to the least recently used row,
    then to the lowest slot. The count of a row is lost when it is evicted.
    """

    step: Tensor
    used_at: Tensor
    uses: Tensor

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.register_buffer("step", torch.zeros((), dtype=torch.int32))
        self.register_buffer("used_at", torch.zeros(num_slots, dtype=torch.int32))
        self.register_buffer("uses", torch.zeros(num_slots, dtype=torch.int32))

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.step += 1
        slots = slots[slots >= 0]
        self.used_at[slots] = self.step
        self.uses[slots] += 1

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        # One key orders by uses first and by recency second, so that one selection is enough.
        keys = (self.uses.long() << 32) + self.used_at
        victims = lowest_slots(keys, evictable, ids.shape[0] - num_free)
        return lowest_ids(ids, num_free + victims.shape[0]), victims

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step
        self.uses[slots] = 1

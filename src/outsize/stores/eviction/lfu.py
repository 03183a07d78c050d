"""Least frequently used, as in HET (Miao et al., VLDB 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.stores.eviction.policy import (
    EvictionPolicy,
    in_slot_order,
    lowest_ids,
    lowest_slots,
)
from outsize.stores.eviction.victims import VictimQueue


class LFU(EvictionPolicy):
    """Least frequently used: evicts the row with the fewest uses since it was admitted.

    Rows are admitted while there is room, lowest ids first. Ties go to the least recently used row,
    then to the lowest slot. The count of a row is lost when it is evicted.

    Args:
        num_slots: Number of rows the cache can hold.
        queue: The queue of the rows that may be evicted; by default all.
    """

    step: Tensor
    used_at: Tensor
    uses: Tensor

    def __init__(self, num_slots: int, queue: VictimQueue | None = None) -> None:
        super().__init__(num_slots, queue)
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
        victims = lowest_slots(self._keys(), evictable, ids.shape[0] - num_free)
        return lowest_ids(ids, num_free + victims.shape[0]), victims

    def queued_victims(  # noqa: D102
        self, num: int, held: Int64[Tensor, " num_slots"], read: Int64[Tensor, " r"]
    ) -> Int64[Tensor, " k"] | None:
        victims = self._queue.take_lowest(num, self.uses, self.used_at, held, read)
        return None if victims is None else in_slot_order(victims, self._keys(victims))

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step
        self.uses[slots] = 1
        self._queue.admitted(slots, self.uses, self.used_at)

    def _keys(self, slots: Tensor | slice = slice(None)) -> Int64[Tensor, " _"]:
        # One key orders by uses first and by recency second, so that one selection is enough.
        return (self.uses[slots].long() << 32) + self.used_at[slots]

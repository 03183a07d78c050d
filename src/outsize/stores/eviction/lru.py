"""Least recently used, as in HET (Miao et al., VLDB 2022)."""

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


class LRU(EvictionPolicy):
    """Least recently used: evicts the row whose last use is the most steps ago.

    Rows are admitted while there is room, lowest ids first. Ties go to the lowest slot.
    """

    step: Tensor
    used_at: Tensor

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.register_buffer("step", torch.zeros((), dtype=torch.int32))
        self.register_buffer("used_at", torch.zeros(num_slots, dtype=torch.int32))

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.step += 1
        self.used_at[slots[slots >= 0]] = self.step

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        victims = lowest_slots(self.used_at, evictable, ids.shape[0] - num_free)
        return lowest_ids(ids, num_free + victims.shape[0]), victims

    def queued_victims(  # noqa: D102
        self, num: int, held: Int64[Tensor, " num_slots"], read: Int64[Tensor, " r"]
    ) -> Int64[Tensor, " k"] | None:
        victims = self._queue.take_lowest(num, self.used_at, self.used_at, held, read)
        return None if victims is None else in_slot_order(victims, self.used_at[victims])

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step
        self._queue.admitted(slots, self.used_at, self.used_at)

"""Least recently used, as in HET (Miao et al., VLDB 2022)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.stores.eviction.policy import (
    ChosenAhead,
    EvictionPolicy,
    in_slot_order,
    lowest_ids,
    lowest_slots,
)


class LRU(EvictionPolicy):
    """Least recently used: evicts the row whose last use is the most steps ago.

    Rows are admitted while there is room, lowest ids first. Ties go to the lowest slot.
    """

    chooses_ahead = True
    step: Tensor
    used_at: Tensor

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.register_buffer("step", torch.zeros((), dtype=torch.int32))
        self.register_buffer("used_at", torch.zeros(num_slots, dtype=torch.int32))

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.step += 1
        own = slots.clamp_min(0)  # rows that are not in the cache add nothing to slot 0
        since = self.step - self.used_at.index_select(0, own)
        self.used_at.index_add_(0, own, torch.where(slots >= 0, since, 0))

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        victims = lowest_slots(self.used_at, evictable, ids.shape[0] - num_free)
        return lowest_ids(ids, num_free + victims.shape[0]), victims

    def choose_ahead(  # noqa: D102
        self,
        ids: Int64[Tensor, " n"],
        missing: Bool[Tensor, " n"],
        num_free: int,
        held: Int64[Tensor, " num_slots"],
        slots: Int64[Tensor, " n"],
        *,
        among_all: bool,
    ) -> ChosenAhead:
        num = ids.shape[0] - num_free
        victims, may_go, num_left = self.candidates.in_order(
            self.used_at, held, slots, num, among_all=among_all
        )
        order = missing.cumsum(0)
        num_wanted = order[-1] - num_free
        num_victims = torch.minimum(num_wanted, may_go.sum()).clamp_min(0)
        keys = self.used_at.index_select(0, victims)
        bound = keys.index_select(0, (num_victims - 1).clamp_min(0).unsqueeze(0))
        kind = torch.where(may_go, (keys >= bound).long() + (keys > bound), 3)
        victims = victims[((kind << 32) | victims).argsort()]  # as `in_slot_order`
        is_victim = torch.arange(victims.shape[0], device=ids.device) < num_victims
        admitted = missing & (order <= num_free + num_victims)
        is_short = None if num_left is None else num_wanted > num_left
        return ChosenAhead(admitted, victims, is_victim, num_left, is_short)

    def queued_victims(  # noqa: D102
        self, num: int, held: Int64[Tensor, " num_slots"], read: Int64[Tensor, " r"]
    ) -> Int64[Tensor, " k"] | None:
        victims = self._queue.take_lowest(num, self.used_at, self.used_at, held, read)
        return None if victims is None else in_slot_order(victims, self.used_at[victims])

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step
        self._queue.admitted(slots, self.used_at, self.used_at)

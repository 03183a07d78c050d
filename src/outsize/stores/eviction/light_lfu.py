"""Light LFU of HET (Miao et al., VLDB 2022): rows that are used often become permanent."""

from __future__ import annotations

from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.stores.eviction.lfu import LFU
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.eviction.victims import VictimQueue

_USES_UNTIL_PERMANENT = 10  # HET's constant


class LightLFU(EvictionPolicy):
    """LFU in which a row that has been used 10 times is permanent (light LFU in HET).

    The other rows are admitted and evicted as in LFU. Once all rows are permanent, no row is
    admitted any more: the cache keeps the rows that were popular first and cannot follow drift.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.counts = LFU(num_slots, VictimQueue(num_slots, limit=_USES_UNTIL_PERMANENT))

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.counts.used(ids, slots)

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        not_permanent = self.counts.uses < _USES_UNTIL_PERMANENT
        return self.counts.choose(ids, num_free, evictable & not_permanent)

    def queued_victims(  # noqa: D102
        self, num: int, held: Int64[Tensor, " num_slots"], read: Int64[Tensor, " r"]
    ) -> Int64[Tensor, " k"] | None:
        return self.counts.queued_victims(num, held, read)

    def memory(self) -> list[Tensor]:  # noqa: D102
        return self.counts.memory()

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.counts.admitted(ids, slots)

"""Which rows a bounded cache keeps, by name in `EVICTION`.

LRU, LFU and light LFU are those of HET (Miao et al., "HET: Scaling out Huge Embedding Model
Training via Cache-enabled Distributed Framework", VLDB 2022). They admit every row there is room
for. Fading LFU admits only what pays, and follows a popularity that drifts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.stores.eviction_fading import FadingLFU
from outsize.stores.eviction_policy import EvictionPolicy, lowest_slots

_USES_UNTIL_PERMANENT = 10  # HET's constant


class LRU(EvictionPolicy):
    """Least recently used: the row whose last use lies the most steps back gives way.

    Rows are admitted while there is room, lowest ids first. Of rows last used in the same step,
    the one in the lowest slot gives way first.
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
        return _lowest_ids(ids, num_free + victims.shape[0]), victims

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step


class LFU(EvictionPolicy):
    """Least frequently used: the row with the fewest uses since it was admitted gives way.

    Rows are admitted while there is room, lowest ids first. Of rows with equally many uses, the
    least recently used gives way first, then the one in the lowest slot. What is known of a row
    is lost when it leaves.
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
        # One number orders by uses first and by recency second, so that one selection does.
        keys = (self.uses.long() << 32) + self.used_at
        victims = lowest_slots(keys, evictable, ids.shape[0] - num_free)
        return _lowest_ids(ids, num_free + victims.shape[0]), victims

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.used_at[slots] = self.step
        self.uses[slots] = 1


class LightLFU(EvictionPolicy):
    """LFU in which a row that has been used 10 times is permanent (light LFU in HET).

    The other rows are admitted and give way as in LFU. Once all rows are permanent, nothing is
    admitted any more: the cache keeps what was popular first and cannot follow a popularity that
    drifts.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.counts = LFU(num_slots)

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.counts.used(ids, slots)

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        not_permanent = self.counts.uses < _USES_UNTIL_PERMANENT
        return self.counts.choose(ids, num_free, evictable & not_permanent)

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.counts.admitted(ids, slots)


def _lowest_ids(ids: Int64[Tensor, " m"], num: int) -> Bool[Tensor, " m"]:
    """Mark the first `num` of ascending ids, or all if they are fewer."""
    return torch.arange(ids.shape[0], device=ids.device) < num


EVICTION: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": LRU,
    "lfu": LFU,
    "light-lfu": LightLFU,
    "fading-lfu": FadingLFU,
}

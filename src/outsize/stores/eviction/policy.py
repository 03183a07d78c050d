"""The contract of an eviction policy: who enters a bounded cache, and who gives way.

A cache calls, in each training step, with ids ascending and each once:

    policy.used(ids, slots)                                       what the step reads
    admit, victims = policy.choose(missing, num_free, evictable)
    policy.removed(victim_ids, victims)
    policy.admitted(missing[admit], slots_they_got)

A row counts once a step, however often it occurs in the batch. Every decision is a function of the
calls so far, and all that is remembered is in buffers: a policy that is saved and loaded goes on
exactly as it would have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor, nn

from outsize.errors import ConfigError


class EvictionPolicy(nn.Module, ABC):
    """Decides for a cache of `num_slots` rows; a row lies in at most one slot.

    Args:
        num_slots: How many rows the cache holds.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__()
        if num_slots < 1:
            raise ConfigError(f"a cache needs at least one slot, but got num_slots={num_slots}")
        self.num_slots = num_slots

    @abstractmethod
    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """A step reads rows. Called once a step, also with no ids: a policy's time moves here.

        Args:
            ids: The rows.
            slots: Where each lies, or -1 for a row that is not in the cache.
        """

    @abstractmethod
    def choose(
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        """Say which rows to admit and which slots give way to them; nothing changes yet.

        Args:
            ids: Rows of this step that are not in the cache.
            num_free: How many slots are empty; they are filled before any row gives way.
            evictable: False for empty slots and for those that this step reads.

        Returns:
            Whether each row is admitted, and the slots that give way: as many as rows are
            admitted beyond `num_free`, each once.
        """

    @abstractmethod
    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """These rows lie in these slots now. The step that admits a row is its first use there."""

    def removed(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """These rows leave these slots, because they were chosen or for any other reason."""


def lowest_slots(
    keys: Shaped[Tensor, " num_slots"], evictable: Bool[Tensor, " num_slots"], num: int
) -> Int64[Tensor, " k"]:
    """The evictable slots with the `num` lowest keys, or all if they are fewer.

    Of equal keys the lowest slots are taken. The order of the result says nothing.
    """
    num = min(num, int(evictable.sum()))
    if num <= 0:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    last = torch.inf if keys.is_floating_point() else torch.iinfo(keys.dtype).max
    keys = torch.where(evictable, keys, last)
    # Only the bound comes from `topk`: which of equal keys it returns is up to the device.
    bound = keys.topk(num, largest=False).values[-1]
    below = (keys < bound).nonzero().flatten()
    equal = (keys == bound).nonzero().flatten()
    return torch.cat([below, equal[: num - below.shape[0]]])


def lowest_ids(ids: Int64[Tensor, " m"], num: int) -> Bool[Tensor, " m"]:
    """Mark the first `num` of ascending ids, or all if they are fewer."""
    return torch.arange(ids.shape[0], device=ids.device) < num

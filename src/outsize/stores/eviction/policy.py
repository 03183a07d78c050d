"""The contract of an eviction policy: which rows are admitted, and which are evicted.

In each training step the cache calls these methods, with ids ascending and each once:

    policy.used(ids, slots)                                       # the rows that the step reads
    admit, victims = policy.choose(missing, num_free, evictable)
    policy.removed(victim_ids, victims)
    policy.admitted(missing[admit], slots_they_got)

A row counts once per step, however often it occurs in the batch. Every decision is a function of
the calls so far, and all state is in buffers: a policy that is saved and loaded continues exactly.

`choose` gets a flag for every slot. A policy that finds victims without a look at all slots may
override `choose_from` as well, which the cache calls instead; both must decide the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor, nn

from outsize.errors import ConfigError
from outsize.stores.eviction.candidates import Candidates
from outsize.stores.eviction.victims import VictimQueue


class ChosenAhead(NamedTuple):
    """What `EvictionPolicy.choose_ahead` chose.

    Attributes:
        admitted: Which rows are admitted.
        slots: Slots, each once, with the victims first.
        is_victim: Which of them are victims.
        num_left: How many candidates there were; `None` if all slots were.
        is_short: Whether there were too few of them; `None` likewise.
    """

    admitted: Bool[Tensor, " n"]
    slots: Int64[Tensor, " k"]
    is_victim: Bool[Tensor, " k"]
    num_left: Int64[Tensor, ""] | None
    is_short: Bool[Tensor, ""] | None


class EvictionPolicy(nn.Module, ABC):
    """Chooses the rows of a cache with `num_slots` slots; a row has at most one slot.

    Args:
        num_slots: Number of rows the cache can hold.
        queue: The queue of the rows that may be evicted, for policies that use it; by default all.

    Attributes:
        chooses_ahead: Whether it has `choose_ahead`.
        candidates: The slots among which that chooses.
    """

    chooses_ahead: bool = False

    def __init__(self, num_slots: int, queue: VictimQueue | None = None) -> None:
        super().__init__()
        if num_slots < 1:
            raise ConfigError(f"a cache needs at least one slot, but got num_slots={num_slots}")
        self.num_slots = num_slots
        self._queue = queue or VictimQueue(num_slots)
        self.candidates = Candidates()

    @abstractmethod
    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Record the rows that a step reads, with their slots; -1 if a row is not in the cache.

        Called once per step, even without ids.
        """

    @abstractmethod
    def choose(
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        """Choose the rows to admit and the victims; nothing changes yet.

        Args:
            ids: Rows of this step that are not in the cache.
            num_free: Number of empty slots; they are filled before any row is evicted.
            evictable: False for empty slots and for slots that this step reads.

        Returns:
            Whether each row is admitted, and the slots of the victims: one for each admitted row
            beyond `num_free`.
        """

    def choose_from(
        self,
        ids: Int64[Tensor, " m"],
        num_free: int,
        held: Int64[Tensor, " num_slots"],
        read: Int64[Tensor, " r"],
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        """`choose`, given the ids in the slots and the slots that this step reads.

        If `queued_victims` finds the victims, their slots, and the free ones, go to the lowest ids.

        Args:
            ids: As for `choose`.
            num_free: As for `choose`.
            held: The id in each slot; −1 for empty slots.
            read: Slots that this step reads, each once.
        """
        victims = self.queued_victims(ids.shape[0] - num_free, held, read)
        if victims is None:
            return self.choose(ids, num_free, (held >= 0).index_fill(0, read, False))
        return lowest_ids(ids, num_free + victims.shape[0]), victims

    def choose_ahead(
        self,
        ids: Int64[Tensor, " n"],
        missing: Bool[Tensor, " n"],
        num_free: int,
        held: Int64[Tensor, " num_slots"],
        slots: Int64[Tensor, " n"],
        *,
        among_all: bool,
    ) -> ChosenAhead:
        """`choose_from` in tensors of known lengths, so that no GPU is waited for.

        A policy that overrides it says so by `chooses_ahead`, and reads nothing back in `used`.

        Args:
            ids: All rows that the step reads.
            missing: Which of them are not in the cache.
            num_free: As for `choose`; less than the number of `ids`.
            held: As for `choose_from`.
            slots: The slot of each row that is not missing.
            among_all: Look at all slots, because there were not enough candidates.
        """
        raise NotImplementedError

    def queued_victims(
        self, num: int, held: Int64[Tensor, " num_slots"], read: Int64[Tensor, " r"]
    ) -> Int64[Tensor, " k"] | None:
        """The `num` slots that `choose` would choose, without a look at all; `None` if it must."""
        return None

    def memory(self) -> list[Tensor]:
        """Tensors besides buffers, which are derived from them."""
        return self._queue.tensors()

    @abstractmethod
    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Record that rows were admitted to slots. This step counts as their first use there."""

    def removed(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Record that rows were removed from slots, as victims or for any other reason."""

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._queue.forget()
        self.candidates.forget()


def lowest_slots(
    keys: Shaped[Tensor, " num_slots"], evictable: Bool[Tensor, " num_slots"], num: int
) -> Int64[Tensor, " k"]:
    """The evictable slots with the `num` lowest keys, or all if there are fewer.

    Ties go to the lowest slots. The result is in no particular order.
    """
    num = min(num, int(evictable.sum()))
    if num <= 0:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    last = torch.inf if keys.is_floating_point() else torch.iinfo(keys.dtype).max
    keys = torch.where(evictable, keys, last)
    # Only the bound comes from `topk`: how it breaks ties depends on the device.
    bound = keys.topk(num, largest=False).values[-1]
    below = (keys < bound).nonzero().flatten()
    equal = (keys == bound).nonzero().flatten()
    return torch.cat([below, equal[: num - below.shape[0]]])


def lowest_ids(ids: Int64[Tensor, " m"], num: int) -> Bool[Tensor, " m"]:
    """Mark the first `num` of ascending ids, or all if there are fewer."""
    return torch.arange(ids.shape[0], device=ids.device) < num


def in_slot_order(victims: Int64[Tensor, " k"], keys: Shaped[Tensor, " k"]) -> Int64[Tensor, " k"]:
    """Slots by ascending key, in the order in which `lowest_slots` returns them."""
    if victims.shape[0] < 2:
        return victims
    is_below = keys < keys[-1]
    return torch.cat([victims[is_below].sort().values, victims[~is_below]])

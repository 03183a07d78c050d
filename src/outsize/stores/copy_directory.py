"""Which rows have copies in a cache, and in which slots.

Everything here is as long as the cache, not as the table, and a step costs as much as its batch:
an index finds the slots of ids, free slots come from a heap, and policies find victims themselves
(`EvictionPolicy.choose_from`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from outsize.kernels.directory.slots import HashedSlots, SlotIndex, slot_index
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.recent_ids import RecentIds

# Instead of a slot:
NO_COPY = -1
UNPROFITABLE = -2  # the copy was dropped; not admitted again before the next flush
NEVER_COPIED = -3  # the row is not remote

_MARKED = "unprofitable"
_SLOTS_OF_ROWS = "slot_of"  # in older state dicts: the slot of every row of the table


class Choice(NamedTuple):
    """What `CopyDirectory.choose_ahead` chose.

    Attributes:
        admitted: Whether a row gets a copy.
        slots: The slots of rows that do.
        victims: Slots, each once; the victims come first, in the order in which they get new rows.
        is_victim: Which of them are evicted.
        holds_victim: Whether a slot is evicted, for each slot.
        num_left: As in `ChosenAhead`.
        is_short: As in `ChosenAhead`: if so, the choice is not to be used.
    """

    admitted: Bool[Tensor, " n"]
    slots: Int64[Tensor, " n"]
    victims: Int64[Tensor, " k"]
    is_victim: Bool[Tensor, " k"]
    holds_victim: Bool[Tensor, " num_slots"]
    num_left: Int64[Tensor, ""] | None
    is_short: Bool[Tensor, ""] | None


class Others(NamedTuple):
    """What `CopyDirectory.find_others` found.

    Attributes:
        slots: The slot of each row; `NEVER_COPIED` for those that are not remote.
        ids: The remote rows.
        places: Their places.
        found: Their slots; negative if there is no copy.
    """

    slots: Int64[Tensor, " n"]
    ids: Int64[Tensor, " m"]
    places: Int64[Tensor, " m"]
    found: Int64[Tensor, " m"]


class CopyDirectory(nn.Module):
    """Maps rows to slots and back.

    Rows that are `UNPROFITABLE` are remembered until the next flush: as many as there are slots,
    the latest ones.

    Args:
        num_rows: Number of rows that may have a copy.
        num_slots: Maximum number of copies.
        policy: Chooses which rows are admitted and which copies are evicted.
    """

    ids: Tensor
    _index: SlotIndex
    _first_unused: int  # slots from here on were never taken; empty ones before are in a heap
    _freed: list[int]

    def __init__(self, num_rows: int, num_slots: int, policy: EvictionPolicy) -> None:
        super().__init__()
        self.policy = policy
        self._num_rows = num_rows
        self.register_buffer("ids", torch.full((num_slots,), -1, dtype=torch.int64))
        self._unprofitable = RecentIds(num_slots, num_rows)
        self._index_slots()

    @property
    def num_copies(self) -> int:
        """Number of slots that hold a copy."""
        return self.ids.shape[0] - self._num_free()

    def find(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The slot of each row; negative if there is no copy."""
        return self._marked(ids, self._index.find(ids, self.ids))

    def find_others(self, ids: Int64[Tensor, " n"], rank: int, num_owners: int) -> Others | None:
        """`lookup` of the rows of other owners than `rank`; `None` if no kernel can."""
        if not isinstance(self._index, HashedSlots):
            return None
        return Others(*self._index.find_others(ids, self.ids, rank, num_owners, NEVER_COPIED))

    def _marked(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Replace −1 by `UNPROFITABLE` where it is remembered, in place."""
        if len(self._unprofitable):
            missing = (slots < 0).nonzero().flatten()
            marked = missing[self._unprofitable.contain(ids[missing])]
            slots.index_fill_(0, marked, UNPROFITABLE)
        return slots

    def choose(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"], Int64[Tensor, " v"]]:
        """Record that a step reads rows, and choose which of those without a copy get one.

        Args:
            ids: Rows that may have a copy, ascending.
            slots: Their slots, from `find`.

        Returns:
            Whether each row without a copy is admitted, the slots of those that are, and the
            slots among them whose copies must be evicted first. The caller does both.
        """
        ids, slots = self.note_used(ids, slots)
        is_held = slots >= 0
        chosen, victims = self.policy.choose_from(
            ids[~is_held], self._num_free(), self.ids, slots[is_held]
        )
        num_new = int(chosen.sum()) - victims.shape[0]
        return chosen, torch.cat([self._take_free(num_new), victims]), victims

    def note_used(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
        """Record that a step reads rows; returns those that have a copy or may get one."""
        if len(self._unprofitable):
            known = slots != UNPROFITABLE
            ids, slots = ids[known], slots[known]
        self.policy.used(ids, slots)
        return ids, slots

    def lookup(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """`find`, for a directory that remembers no unprofitable rows."""
        return self._index.find(ids, self.ids)

    def chooses_ahead(self) -> bool:
        """Whether `choose_ahead` can be used in this step."""
        return not self._freed and not len(self._unprofitable) and self.policy.chooses_ahead

    def choose_ahead(
        self, ids: Int64[Tensor, " n"], found: Int64[Tensor, " n"], *, among_all: bool = False
    ) -> Choice:
        """`choose`, after `used`, without telling the host how many there are.

        Args:
            ids: Rows that may have a copy, ascending; more than `has_room_for`.
            found: Their slots, from `lookup`.
            among_all: As for `EvictionPolicy.choose_ahead`.
        """
        missing, num_free = found < 0, self._num_free()
        first = self._first_unused
        admitted, victims, is_victim, num_left, is_short = self.policy.choose_ahead(
            ids, missing, num_free, self.ids, found, among_all=among_all
        )
        order = admitted.cumsum(0) - 1
        num_new = missing.sum().clamp_max(num_free)
        replaced = victims[(order - num_new).clamp(0, victims.shape[0] - 1)]
        slots = torch.where(order < num_new, first + order, replaced)
        holds_victim = torch.zeros_like(self.ids, dtype=torch.bool)
        holds_victim.index_copy_(0, victims, is_victim)
        return Choice(admitted, slots, victims, is_victim, holds_victim, num_left, is_short)

    def has_room_for(self, num: int) -> bool:
        """Whether so many rows get a copy, and nothing is evicted."""
        return num <= self._num_free()

    def next_free(self, num: int) -> Int64[Tensor, " num"]:
        """The slots that the next rows without a copy get, if `chooses_ahead`."""
        first = self._first_unused
        return torch.arange(first, first + num, device=self.ids.device)

    def took_free(self, num: int) -> None:
        """Record that the first empty slots were taken, as `choose_ahead` or `next_free` say."""
        self._first_unused += num
        if num:
            self.policy.candidates.forget()

    def assign(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Give slots to rows, as `choose` chose them."""
        if not ids.shape[0]:
            return
        self.ids[slots] = ids
        self._index.put(ids, slots, self.ids)
        self.policy.admitted(ids, slots)

    def evict(self, slots: Int64[Tensor, " n"]) -> None:
        """Empty slots that `assign` gives to other rows at once."""
        if slots.shape[0]:
            self._empty(slots)

    def drop(self, slots: Int64[Tensor, " n"]) -> None:
        """Empty slots whose copies are unprofitable."""
        if not slots.shape[0]:
            return
        self._unprofitable.add(self._empty(slots))
        for slot in slots.tolist():
            heappush(self._freed, slot)

    def directory(self) -> dict[str, Tensor]:
        """Which rows have copies, and the state of the policy; not the values of the copies."""
        policy = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        return {"ids": self.ids, **policy}

    def fits_directory(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether a saved directory has the shapes and types of this one, and valid ids."""
        here = self.directory()
        if here.keys() != saved.keys() or any(
            here[n].shape != value.shape or here[n].dtype != value.dtype
            for n, value in saved.items()
        ):
            return False
        held = saved["ids"][saved["ids"] >= 0]
        return bool((held < self._num_rows).all()) and len(held.unique()) == len(held)

    def load_directory(self, saved: Mapping[str, Tensor]) -> None:
        """Load what `directory` returned."""
        self.ids.copy_(saved["ids"])
        self.policy.load_state_dict(with_prefix("policy.", saved))
        self._index_slots()
        self._unprofitable.clear()

    def index_memory(self) -> list[Tensor]:
        """Tensors besides buffers, which are derived from them."""
        return [*self._index.tensors(), *self._unprofitable.tensors(), *self.policy.memory()]

    def _empty(self, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Remove copies; returns their rows."""
        ids = self.ids.index_select(0, slots)
        self.policy.removed(ids, slots)
        self._index.remove(ids, self.ids)
        self.ids.index_fill_(0, slots, -1)
        return ids

    def _num_free(self) -> int:
        return self.ids.shape[0] - self._first_unused + len(self._freed)

    def _take_free(self, num: int) -> Int64[Tensor, " n"]:
        """The lowest empty slots."""
        self.policy.candidates.forget()
        freed = [heappop(self._freed) for _ in range(min(num, len(self._freed)))]
        first = self._first_unused
        self._first_unused = first + num - len(freed)
        unused = torch.arange(first, self._first_unused, device=self.ids.device)
        return torch.cat([unused.new_tensor(freed), unused]) if freed else unused

    def _index_slots(self) -> None:
        """Derive everything else from `ids`."""
        self._index = slot_index(self.ids, self._num_rows)
        taken = (self.ids >= 0).nonzero().flatten()
        self._first_unused = int(taken[-1]) + 1 if taken.numel() else 0
        empty = self.ids[: self._first_unused] < 0
        self._freed = empty.nonzero().flatten().tolist()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CopyDirectory:
        device = self.ids.device
        super()._apply(fn, recurse)
        if self.ids.device != device:
            self._index_slots()
            self._unprofitable.load(self._unprofitable.ids().to(self.ids.device))
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + _MARKED] = self._unprofitable.ids()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        slots = state_dict.pop(prefix + _SLOTS_OF_ROWS, None)
        marked = state_dict.pop(prefix + _MARKED, None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if slots is not None:
            marked = (slots == UNPROFITABLE).nonzero().flatten()
        self._index_slots()
        self._unprofitable.load(self.ids[:0] if marked is None else marked.to(self.ids.device))


def with_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state whose names start with a prefix; the prefix is removed."""
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}

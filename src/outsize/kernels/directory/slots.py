"""Which slot of a cache holds an id: look-ups whose memory grows with the slots, not with the ids.

The truth is one array, `held`: the id in each slot, −1 if the slot is empty. An index answers the
opposite question, and can be rebuilt from `held` at any time. All indexes give the same answers.

The compiled index is a hash table with open addressing: 16 bytes per slot, at most half full.
A removal moves the entries behind it back (no tombstones), so its speed does not depend on history.
On CUDA the hash table keeps slots alone, 16 bytes per slot as well (`slots_triton`). The reference
searches sorted lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.arrays import array, is_plain
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.directory.lookup import SortedKeys, rows_holding
from outsize.kernels.huge_pages import prefer_huge_pages

LEAST_SLOTS = 4096
_KERNELS = "directory.slots_numba"
_MOST_SLOTS = 1 << 31
_ENTRIES_PER_SLOT = 2
_NARROW_IDS = 1 << 32  # ids below fit into an entry
_LEAST_RECENT = 4096
_PROBED_ENTRIES_PER_SLOT = 4
_MOST_PROBED_SLOTS = 1 << 28  # with more, a place takes more than 31 bits


class SlotIndex(ABC):
    """Finds the slots of ids. `held` is always the same array, one id per slot."""

    @abstractmethod
    def find(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> Int64[Tensor, " n"]:
        """The slot that holds each id; −1 if there is none."""

    @abstractmethod
    def put(
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        held: Int64[Tensor, " slots"],
    ) -> None:
        """Record ids that are not in the index, each once; `held` has them already."""

    @abstractmethod
    def remove(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> None:
        """Forget ids that are in the index, each once; `held` still has them."""

    @abstractmethod
    def rebuild(self, held: Int64[Tensor, " slots"]) -> None:
        """Index all ids in `held`."""

    @abstractmethod
    def compact(self, held: Int64[Tensor, " slots"]) -> None:
        """Drop entries that are not valid any more."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What the index keeps in memory."""


def slot_index(held: Int64[Tensor, " slots"], num_ids: int) -> SlotIndex:
    """An index of the ids in `held`, which are below `num_ids`: compiled where it can be."""
    index: SlotIndex = SortedSlots()
    if slot_kernels(_KERNELS, held.shape[0], held) is not None:
        index = HashedSlots(held.shape[0], num_ids)
    elif uses_triton(held) and held.shape[0] < _MOST_PROBED_SLOTS:
        index = ProbedSlots(held.shape[0], held.device)
    index.rebuild(held)
    return index


def slot_kernels(module: str, num_slots: int, tensor: Tensor) -> Any:
    """A module of kernels for a cache of so many slots; `None` if it works by torch.

    Args:
        module: A module of kernels, below `outsize.kernels`.
        num_slots: Number of slots.
        tensor: A tensor of the cache, as it is wherever the cache is.
    """
    return compiled(module) if is_large(num_slots) and is_plain(tensor) else None


def is_large(num_slots: int) -> bool:
    """Whether a cache has so many slots that it should use compiled kernels."""
    return is_worthwhile(num_slots, LEAST_SLOTS) and num_slots < _MOST_SLOTS


class HashedSlots(SlotIndex):
    """A hash table of (lower half of the id, slot), one word per entry, probed linearly.

    Args:
        num_slots: Number of slots.
        num_ids: Ids are below; if they do not fit into 32 bits, matches are checked in `held`.
    """

    def __init__(self, num_slots: int, num_ids: int) -> None:
        self._is_wide = num_ids > _NARROW_IDS
        size = _ENTRIES_PER_SLOT * max(num_slots, 4)
        self.entries = prefer_huge_pages(torch.empty(size, dtype=torch.int64)).zero_()

    def find(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> Int64[Tensor, " n"]:  # noqa: D102
        found = torch.empty(ids.shape[0], dtype=torch.int64)
        _kernels().find(*self._table(held), array(ids.contiguous()), array(found))
        return found

    def find_others(
        self,
        ids: Int64[Tensor, " n"],
        held: Int64[Tensor, " slots"],
        own: int,
        number: int,
        skipped: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`find`, for ids that are not `own` modulo a number.

        Returns:
            The slot of each id, `skipped` for those that are; and the others, their places and
            their slots.
        """
        slots, others, places, found = torch.empty(4, ids.shape[0], dtype=torch.int64)
        num = _kernels().find_others(
            *self._table(held), array(ids), own, number, skipped, array(slots), array(others),
            array(places), array(found),
        )  # fmt: skip
        return slots, others[:num], places[:num], found[:num]

    def put(  # noqa: D102
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        held: Int64[Tensor, " slots"],
    ) -> None:
        if ids.shape[0]:
            given = (array(ids.contiguous()), array(slots.contiguous()))
            _kernels().put(self._entries(), *given)

    def remove(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        if ids.shape[0]:
            _kernels().remove(*self._table(held), array(ids.contiguous()))

    def rebuild(self, held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        self.entries.zero_()
        _kernels().put_all(self._entries(), array(held))

    def compact(self, held: Int64[Tensor, " slots"]) -> None:
        """Nothing: a removal leaves none."""

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [self.entries]

    def _table(self, held: Tensor) -> tuple[Any, Any, bool]:
        return self._entries(), array(held), self._is_wide

    def _entries(self) -> Any:
        return array(self.entries).view("uint64")


class ProbedSlots(SlotIndex):
    """A hash table of slots in the memory of a GPU: see `slots_triton`.

    It is rebuilt when as many ids were put as there are slots: at most half of it is in use.

    Args:
        num_slots: Number of slots.
        device: Where `held` is.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._num_slots = num_slots
        self._num_put = 0
        size = _PROBED_ENTRIES_PER_SLOT * max(num_slots, 4)
        self.entries = torch.full((size,), -1, dtype=torch.int32, device=device)

    def find(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> Int64[Tensor, " n"]:  # noqa: D102
        from outsize.kernels.directory.slots_triton import find_by_triton

        return find_by_triton(self.entries, held, ids)

    def put(  # noqa: D102
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        held: Int64[Tensor, " slots"],
    ) -> None:
        from outsize.kernels.directory.slots_triton import put_by_triton

        self._num_put += ids.shape[0]
        if self._num_put > self._num_slots:
            self.rebuild(held)
        else:
            put_by_triton(self.entries, ids, slots)

    def remove(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> None:
        """Nothing: an entry is valid while `held` has the id that is looked for."""

    def rebuild(self, held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        from outsize.kernels.directory.slots_triton import put_by_triton

        self._num_put = 0
        put_by_triton(self.entries.fill_(-1), held, None)

    def compact(self, held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        self.rebuild(held)

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [self.entries]


class SortedSlots(SlotIndex):
    """Two sorted lists: of all ids, and of those put since; an entry is valid while `held` agrees.

    The short list is merged into the long one when it is as long as a few batches, at most.
    """

    def __init__(self) -> None:
        self._long = self._recent = _no_keys(torch.empty(0, dtype=torch.int64))

    def find(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> Int64[Tensor, " n"]:  # noqa: D102
        return rows_holding(ids, held, (self._long, self._recent))

    def put(  # noqa: D102
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        held: Int64[Tensor, " slots"],
    ) -> None:
        if self._recent.keys.shape[0] + ids.shape[0] > _LEAST_RECENT:
            self.rebuild(held)
        elif ids.shape[0]:
            keys, order = torch.cat([self._recent.keys, ids]).sort(stable=True)  # newest last
            self._recent = SortedKeys(keys, torch.cat([self._recent.rows, slots])[order])

    def remove(self, ids: Int64[Tensor, " n"], held: Int64[Tensor, " slots"]) -> None:
        """Nothing: once `held` changes, the entries are not valid any more."""

    def rebuild(self, held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        # Empty slots too: the size of the list is that of the cache, whatever is in it.
        self._long, self._recent = SortedKeys(*held.sort()), _no_keys(held)

    def compact(self, held: Int64[Tensor, " slots"]) -> None:  # noqa: D102
        self.rebuild(held)

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [*self._long, *self._recent]


def _no_keys(like: Int64[Tensor, " _"]) -> SortedKeys:
    none = torch.empty(0, dtype=torch.int64, device=like.device)
    return SortedKeys(none, none)


def _kernels() -> Any:
    return compiled(_KERNELS)

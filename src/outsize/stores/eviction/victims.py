"""The slots of a cache by a key, so that victims are found without a look at every slot."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty
from outsize.kernels.directory.slots import slot_kernels

_NO_LIMIT = 1 << 40


class VictimQueue:
    """A priority queue of the slots of one cache, built when victims are first needed.

    The key of a slot is (high, low), two tensors of the policy; ties go to the lowest slot. A key
    may only grow while a row stays in its slot; `forget` the queue if keys change otherwise. Then a
    step costs O(n log slots) for the n rows that it reads, admits and evicts, amortised.

    Args:
        num_slots: Number of slots.
        limit: Slots whose high number has reached it are never taken.
    """

    def __init__(self, num_slots: int, limit: int = _NO_LIMIT) -> None:
        self._num_slots = num_slots
        self._limit = limit
        self._size: int | None = None
        self._tensors: tuple[Tensor, Tensor, Tensor] | None = None
        self._taken = torch.empty(0, dtype=torch.int64)

    def forget(self) -> None:
        """Build the queue again when it is next needed."""
        self._size = None

    def admitted(
        self,
        slots: Int64[Tensor, " n"],
        high: Int32[Tensor, " num_slots"],
        low: Int32[Tensor, " num_slots"],
    ) -> None:
        """Record that slots got new rows; their keys are set."""
        if self._size is None:
            return
        kernels = _kernels(high)
        if kernels is None:
            self.forget()
        else:
            self._add(kernels, self._arrays(high, low), array(slots.contiguous()))

    def take_lowest(
        self,
        num: int,
        high: Int32[Tensor, " num_slots"],
        low: Int32[Tensor, " num_slots"],
        held: Int64[Tensor, " num_slots"],
        read: Int64[Tensor, " r"],
        offers: Float32[Tensor, " o"] | None = None,
    ) -> Int64[Tensor, " k"] | None:
        """The slots with the `num` lowest keys, in their order; `None` if there is no kernel.

        Args:
            num: How many, or all if there are fewer.
            high: Upper part of the key of each slot.
            low: Lower part.
            held: The id in each slot, −1 for none; empty slots are not taken.
            read: Slots that are not taken either.
            offers: If given, slot i of the result is taken only if offer i is greater than its
                high number as a float32, and neither are those after it.
        """
        kernels = _kernels(high)
        if kernels is None:
            return None
        if num <= 0:
            return torch.empty(0, dtype=torch.int64)
        arrays, ids = self._arrays(high, low), array(held)
        if self._size is not None:
            self._put_back(kernels, arrays, held)
        if self._size is None:
            self._size = kernels.build(*arrays, ids, self._limit)
        assert self._tensors is not None
        worth = array(high).view("float32")
        bids = empty(0) if offers is None else array(offers.contiguous())
        victims, count = torch.empty(num, dtype=torch.int64), empty(1, dtype=torch.int64)
        self._size = kernels.take_lowest(
            *arrays, self._size, ids, self._limit, array(read.contiguous()),
            array(self._tensors[2]), bids, worth, array(victims), count,
        )  # fmt: skip
        self._taken = victims[: int(count[0])]
        return self._taken

    def tensors(self) -> list[Tensor]:
        """What the queue keeps in memory."""
        return list(self._tensors or ())

    def _put_back(self, kernels: Any, arrays: tuple[Any, ...], held: Tensor) -> None:
        """Add victims that were chosen last but stayed: choosing alone changes nothing."""
        stored, chosen = arrays[1], array(self._taken)
        stayed = chosen[(stored[chosen] < 0) & (array(held)[chosen] >= 0)]
        self._add(kernels, arrays, stayed)

    def _add(self, kernels: Any, arrays: tuple[Any, ...], slots: Any) -> None:
        assert self._size is not None
        if self._size + len(slots) > len(arrays[0]):
            self.forget()  # too many old lines
        elif len(slots):
            self._size = kernels.add(*arrays, self._size, slots)

    def _arrays(self, high: Tensor, low: Tensor) -> tuple[Any, Any, Any, Any]:
        if self._tensors is None:
            num_lines = self._num_slots + max(64, self._num_slots // 4)
            self._tensors = (
                torch.empty(num_lines, 2, dtype=torch.int64),
                torch.empty(self._num_slots, dtype=torch.int64),
                torch.zeros(self._num_slots, dtype=torch.uint8),
            )
        heap, stored, _ = self._tensors
        return array(heap), array(stored), array(high), array(low)


def _kernels(per_slot: Tensor) -> Any:
    return slot_kernels("directory.victims_numba", per_slot.shape[0], per_slot)

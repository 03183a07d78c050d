"""How often rows outside a cache are used: a count-min sketch, which bounds the memory it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from outsize.hashing import draw_hashes, hash_ids
from outsize.kernels.arrays import array
from outsize.kernels.available import uses_triton
from outsize.kernels.directory.slots import slot_kernels

BUCKETS_PER_SLOT = 2  # of the cache, for each hash function
_NUM_HASHES = 4
_MOST_NARROW_BUCKETS = 1 << 24  # of hash functions with 32 bits, which kernels compute


class CountMinSketch(nn.Module):
    """Estimates an amount per id in bounded memory: never too low, sometimes too high.

    An id has one bucket per hash function; its amount is the minimum of its buckets. Buckets are
    raised no higher than necessary (conservative update), so an amount is too high only if the id
    shares every bucket with an id of a greater amount. Maxima do not depend on order: the same
    calls give the same sketch, bit for bit.

    Args:
        num_buckets: Buckets per hash function; there are four functions, and 4 bytes per bucket.
        seed: Draws the hash functions.
    """

    amounts: Tensor
    hashes: Tensor

    def __init__(self, num_buckets: int, seed: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.register_buffer("amounts", torch.zeros(_NUM_HASHES * num_buckets))
        self.register_buffer("hashes", draw_hashes(_NUM_HASHES, seed))

    def estimate(self, ids: Int64[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """The amount of each id."""
        kernels = self._kernels()
        if kernels is not None:
            amounts = torch.empty(ids.shape[0])
            kernels.estimate(*self._arrays(ids), _buckets_of(ids), array(amounts))
            return amounts
        if self._uses_triton(ids):
            from outsize.kernels.directory.sketch_triton import estimate_by_triton

            return estimate_by_triton(self.amounts, self.hashes, ids)
        return self.amounts[self._buckets(ids)].amin(dim=1)

    def add(self, ids: Int64[Tensor, " n"], amount: Float32[Tensor, ""]) -> None:
        """Add an amount to each id; ids must be distinct."""
        buckets = self._buckets(ids)
        self._lift(buckets, self.amounts[buckets].amin(dim=1) + amount)

    def lift(self, ids: Int64[Tensor, " n"], amounts: Float32[Tensor, " n"]) -> None:
        """Raise each id to at least this amount."""
        kernels = self._kernels()
        if kernels is not None:
            kernels.lift(*self._arrays(ids), _buckets_of(ids), array(amounts.contiguous()))
            return
        if self._uses_triton(ids):
            from outsize.kernels.directory.sketch_triton import lift_by_triton

            lift_by_triton(self.amounts, self.hashes, ids, amounts)
            return
        self._lift(self._buckets(ids), amounts)

    def count_uses(
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        worth: Float32[Tensor, " num_slots"],
        amount: Float32[Tensor, ""],
    ) -> None:
        """Add an amount to each id: to the worth of its slot, or here if the slot is negative."""
        kernels = self._kernels()
        if kernels is not None:
            kernels.count_uses(
                *self._arrays(ids), array(slots.contiguous()), array(worth), float(amount),
                _buckets_of(ids), np.empty(ids.shape[0], np.float32),
            )  # fmt: skip
            return
        if self._uses_triton(ids):
            from outsize.kernels.directory.sketch_triton import count_uses_by_triton

            count_uses_by_triton(self.amounts, self.hashes, ids, slots, worth, float(amount))
            return
        cached = slots >= 0
        worth.index_add_(0, slots.clamp_min(0), cached * amount)
        buckets = self._buckets(ids)
        counted = self.amounts[buckets].amin(dim=1) + amount
        self._lift(buckets, torch.where(cached, 0.0, counted))  # amounts are never below 0

    def scale(self, factor: float) -> None:
        """Multiply all amounts."""
        self.amounts *= factor

    def _lift(self, buckets: Int64[Tensor, "n hashes"], amounts: Float32[Tensor, " n"]) -> None:
        source = amounts.unsqueeze(1).expand_as(buckets).flatten()
        self.amounts.scatter_reduce_(0, buckets.flatten(), source, "amax")

    def _uses_triton(self, ids: Tensor) -> bool:
        return self.num_buckets <= _MOST_NARROW_BUCKETS and uses_triton(ids, self.amounts)

    def _kernels(self) -> Any:
        if self.num_buckets > _MOST_NARROW_BUCKETS:
            return None
        num_slots = self.num_buckets // BUCKETS_PER_SLOT
        return slot_kernels("directory.sketch_numba", num_slots, self.amounts)

    def _arrays(self, ids: Tensor) -> tuple[Any, Any, int, Any]:
        return array(self.amounts), array(self.hashes), self.num_buckets, array(ids.contiguous())

    def _buckets(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n hashes"]:
        starts = torch.arange(_NUM_HASHES, device=ids.device) * self.num_buckets
        return hash_ids(ids, self.hashes, self.num_buckets) + starts


def _buckets_of(ids: Tensor) -> Any:
    return np.empty((ids.shape[0], _NUM_HASHES), np.int64)

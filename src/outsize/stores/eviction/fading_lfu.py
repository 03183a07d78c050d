"""An eviction policy that follows drift and admits a row only if it is used more than its victim.

The idea is that of TinyLFU (Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache
Admission Policy", 2017): a small sketch remembers how often rows outside the cache are used, its
counts fade, and a row is admitted only if it was used more than its victim. There are three
differences. Counts fade exponentially: the weight of a use grows, instead of counts being halved
now and then. Cached rows have exact counts and are not in the sketch, which therefore holds only
the tail. And a margin keeps rows of similar worth from replacing each other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

from outsize.errors import ConfigError
from outsize.hashing import draw_hashes, hash_ids
from outsize.kernels.arrays import array, empty
from outsize.kernels.directory.slots import slot_kernels
from outsize.stores.eviction.policy import EvictionPolicy, lowest_slots

_NUM_HASHES = 4
_BUCKETS_PER_SLOT = 2  # for each hash function
_MOST_NARROW_BUCKETS = 1 << 24  # of hash functions with 32 bits, which kernels compute
_HALVINGS_PER_SCALING = 32  # a use weighs at most 2³², far below the largest float32


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
                _buckets_of(ids), empty(ids.shape[0]),
            )  # fmt: skip
            return
        cached = slots >= 0
        worth[slots[cached]] += amount
        self.add(ids[~cached], amount)

    def scale(self, factor: float) -> None:
        """Multiply all amounts."""
        self.amounts *= factor

    def _lift(self, buckets: Int64[Tensor, "n hashes"], amounts: Float32[Tensor, " n"]) -> None:
        source = amounts.unsqueeze(1).expand_as(buckets).flatten()
        self.amounts.scatter_reduce_(0, buckets.flatten(), source, "amax")

    def _kernels(self) -> Any:
        if self.num_buckets > _MOST_NARROW_BUCKETS:
            return None
        num_slots = self.num_buckets // _BUCKETS_PER_SLOT
        return slot_kernels("directory.sketch_numba", num_slots, self.amounts)

    def _arrays(self, ids: Tensor) -> tuple[Any, Any, int, Any]:
        return array(self.amounts), array(self.hashes), self.num_buckets, array(ids.contiguous())

    def _buckets(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n hashes"]:
        starts = torch.arange(_NUM_HASHES, device=ids.device) * self.num_buckets
        return hash_ids(ids, self.hashes, self.num_buckets) + starts


def _buckets_of(ids: Tensor) -> Any:
    return empty(ids.shape[0], _NUM_HASHES, dtype=torch.int64)


class FadingLFU(EvictionPolicy):
    """LFU with counts that fade; a row is admitted only if it is worth more than its victim.

    A row's worth is its number of uses; it halves each time that `half_life · num_slots` rows have
    been used. Cached rows have an exact worth, which includes the estimate from before they were
    admitted. The worth of all other rows is estimated by a `CountMinSketch`, never too low.

    Empty slots go to the rows of highest worth, ties by lowest id. Further rows are paired with the
    cached rows of lowest worth, ties by lowest slot: the best with the worst, the second best with
    the second worst, and so on, as long as the new row is worth more by over `margin` uses. With a
    margin of 1, a row that was used once replaces nothing (as far as the sketch can tell): swapping
    it with a similar row would cost an eviction and gain nothing.

    The sketch takes 32 bytes per slot, the worth of cached rows 4.

    Args:
        num_slots: Number of rows the cache can hold.
        half_life: Uses per slot until a use counts half. A longer one separates rows of similar
            popularity better; a shorter one follows drift faster.
        margin: By how many uses a row must exceed its victim.
        seed: Seed of the sketch's hash functions.
    """

    elapsed: Tensor
    worth: Tensor

    def __init__(
        self, num_slots: int, half_life: float = 16.0, margin: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(num_slots)
        if not 0 < half_life < math.inf:
            raise ConfigError(f"half_life must be finite and > 0, but got {half_life}")
        if not margin >= 0:
            raise ConfigError(f"margin must be >= 0, but got {margin}")
        self.margin = margin
        self.uses_per_halving = max(1, round(half_life * num_slots))
        self.register_buffer("elapsed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("worth", torch.zeros(num_slots))
        self.sketch = CountMinSketch(_BUCKETS_PER_SLOT * num_slots, seed)

    def used(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self._fade(ids.shape[0])
        self.sketch.count_uses(ids, slots, self.worth, self._one_use())

    def choose(  # noqa: D102
        self, ids: Int64[Tensor, " m"], num_free: int, evictable: Bool[Tensor, " num_slots"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        worth, order = self.sketch.estimate(ids).sort(descending=True, stable=True)
        offers = worth[num_free:] - self.margin * self._one_use()
        # An offer below the lowest worth needs no victim, so few victims have to be found.
        num_offers = int((offers > self.worth.min()).sum())
        victims = lowest_slots(self.worth, evictable, num_offers).sort().values
        prices, cheapest_first = self.worth[victims].sort(stable=True)
        pays = offers[: victims.shape[0]] > prices
        victims = victims[cheapest_first][pays]
        admit = torch.zeros_like(ids, dtype=torch.bool)
        admit[order[: num_free + victims.shape[0]]] = True
        return admit, victims

    def choose_from(  # noqa: D102
        self,
        ids: Int64[Tensor, " m"],
        num_free: int,
        held: Int64[Tensor, " num_slots"],
        read: Int64[Tensor, " r"],
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"]]:
        if ids.shape[0] <= num_free:
            return torch.ones_like(ids, dtype=torch.bool), ids[:0]
        worth, order = self.sketch.estimate(ids).sort(descending=True, stable=True)
        offers = worth[num_free:] - self.margin * self._one_use()
        keys = self.worth.view(torch.int32)  # numbers >= 0 are in the order of their bits
        victims = self._queue.take_lowest(offers.shape[0], keys, keys, held, read, offers)
        if victims is None:
            return super().choose_from(ids, num_free, held, read)
        admit = torch.zeros_like(ids, dtype=torch.bool)
        admit[order[: num_free + victims.shape[0]]] = True
        return admit, victims

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.worth[slots] = self.sketch.estimate(ids)
        keys = self.worth.view(torch.int32)
        self._queue.admitted(slots, keys, keys)

    def removed(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Keep the worth of these rows in the sketch."""
        self.sketch.lift(ids, self.worth[slots])

    def _one_use(self) -> Float32[Tensor, ""]:
        """The weight of a use now; doubling it halves all earlier uses."""
        return torch.exp2(self.elapsed / self.uses_per_halving)

    def _fade(self, num_uses: int) -> None:
        self.elapsed += num_uses
        period = _HALVINGS_PER_SCALING * self.uses_per_halving
        num_periods = int(self.elapsed) // period
        if num_periods:
            self.elapsed %= period
            factor = 2.0 ** (-_HALVINGS_PER_SCALING * num_periods)  # a power of two: exact
            self.worth *= factor
            self._queue.forget()  # what is scaled to 0 makes new ties
            self.sketch.scale(factor)

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

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.stores.eviction.count_min_sketch import BUCKETS_PER_SLOT, CountMinSketch
from outsize.stores.eviction.policy import ChosenAhead, EvictionPolicy, lowest_slots

_HALVINGS_PER_SCALING = 32  # a use weighs at most 2³², far below the largest float32


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

    chooses_ahead = True
    elapsed: Tensor
    worth: Tensor
    _num_elapsed: int | None = 0  # `elapsed`, if it is known

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
        self.sketch = CountMinSketch(BUCKETS_PER_SLOT * num_slots, seed)

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
        n, num = ids.shape[0], ids.shape[0] - num_free
        worth = torch.where(missing, self.sketch.estimate(ids), -torch.inf)
        worth, order = worth.sort(descending=True, stable=True)
        keys = self.worth.view(torch.int32)  # numbers >= 0 are in the order of their bits
        victims, may_go, num_left = self.candidates.in_order(
            keys, held, slots, num, among_all=among_all
        )
        offers = worth[num_free:][: victims.shape[0]] - self.margin * self._one_use()
        pays = may_go & (offers > self.worth[victims])  # true for the first few
        num_victims = pays.sum()
        is_best = torch.arange(n, device=ids.device) < num_free + num_victims
        is_best &= worth >= 0
        admitted = torch.zeros_like(missing).index_copy_(0, order, is_best)
        is_short = None if num_left is None else (num_victims == num_left) & (num_left < num)
        return ChosenAhead(admitted, victims, pays, num_left, is_short)

    def admitted(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:  # noqa: D102
        self.worth[slots] = self.sketch.estimate(ids)
        keys = self.worth.view(torch.int32)
        self._queue.admitted(slots, keys, keys)

    def removed(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Keep the worth of these rows in the sketch."""
        self.sketch.lift(ids, self.worth[slots])

    def _one_use(self) -> Float32[Tensor, ""]:
        """The weight of a use now, on the CPU; doubling it halves all earlier uses."""
        halvings = np.float32(self._known_elapsed()) / np.float32(self.uses_per_halving)
        return torch.tensor(float(halvings)).exp2_()

    def _known_elapsed(self) -> int:
        if self._num_elapsed is None:
            self._num_elapsed = int(self.elapsed)
        return self._num_elapsed

    def _fade(self, num_uses: int) -> None:
        num_elapsed = self._known_elapsed() + num_uses
        self.elapsed.add_(num_uses)
        period = _HALVINGS_PER_SCALING * self.uses_per_halving
        num_periods, self._num_elapsed = divmod(num_elapsed, period)
        if num_periods:
            self.elapsed %= period
            factor = 2.0 ** (-_HALVINGS_PER_SCALING * num_periods)  # a power of two: exact
            self.worth *= factor
            self.candidates.forget()
            self._queue.forget()  # what is scaled to 0 makes new ties
            self.sketch.scale(factor)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._num_elapsed = None

"""The rows with the smallest stamps, a few at a time."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max  # the stamp of a row that must not be taken


class OldestFirst:
    """Finds rows in the order of their stamps, of equal ones the lower row first.

    A new stamp is never smaller than one that was there before, so rows that were sorted once stay
    in order, but for those stamped since, which are passed over: a whole round over n rows costs
    one sort, not one search for each few of them. On CUDA, where a sort costs less than waiting to
    hear how many were passed over, it sorts.

    Args:
        stamps: The stamp of each row, written by the owner; `NEVER` for rows not to be taken.
    """

    def __init__(self, stamps: Int64[Tensor, " rows"]) -> None:
        self._stamps = stamps
        self._queue = self._then = stamps.new_empty(0)  # rows in order, and their stamps then

    def take(self, num: int) -> Int64[Tensor, " taken"]:
        """The `num` oldest rows, or all that may be taken where there are fewer."""
        num = min(num, self._stamps.shape[0])
        found = None if self._stamps.is_cuda else self._next(num)
        if found is None:
            then, queue = torch.sort(self._stamps, stable=True)
            may_be_taken = then != NEVER
            then, queue = then[may_be_taken], queue[may_be_taken]
            found = queue[:num]
            # Lower rows may still get the newest stamp there is, and then belong before these.
            is_settled = then < then[-1:]
            self._then, self._queue = then[is_settled], queue[is_settled]
        return found

    def _next(self, num: int) -> Tensor | None:
        """The first rows of the queue that are still in order, if there are so many."""
        length, width = self._queue.shape[0], 2 * num
        while True:
            in_order = (self._stamps[self._queue[:width]] == self._then[:width]).nonzero().flatten()
            if in_order.shape[0] >= num:
                break
            if width >= length:
                return None
            width *= 2
        found = self._queue[in_order[:num]]
        if num:
            first = int(in_order[0])
            self._queue, self._then = self._queue[first:], self._then[first:]
        return found

"""Rows in the order of their stamps, the oldest first, a few per call."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max  # the stamp of a row that must not be taken


class OldestFirst:
    """Returns the rows with the smallest stamps; ties go to the lower row.

    New stamps are never smaller than existing ones. So a sorted order stays valid, apart from rows
    that were stamped since, which are skipped: one pass over n rows costs one sort. On CUDA it
    sorts at every call, which is cheaper than synchronizing to count the skipped rows.

    Args:
        stamps: The stamp of each row, written by the owner; `NEVER` for rows not to return.
    """

    def __init__(self, stamps: Int64[Tensor, " rows"]) -> None:
        self._stamps = stamps
        self._queue = self._queue_stamps = stamps.new_empty(0)  # sorted rows, their stamps then

    def take(self, num: int) -> Int64[Tensor, " taken"]:
        """The `num` oldest rows, or all rows that are not `NEVER` if there are fewer."""
        num = min(num, self._stamps.shape[0])
        found = None if self._stamps.is_cuda else self._next(num)
        if found is None:
            stamps, queue = torch.sort(self._stamps, stable=True)
            is_eligible = stamps != NEVER
            stamps, queue = stamps[is_eligible], queue[is_eligible]
            found = queue[:num]
            # A lower row may still get the newest stamp, and would then come before these.
            is_settled = stamps < stamps[-1:]
            self._queue_stamps, self._queue = stamps[is_settled], queue[is_settled]
        return found

    def _next(self, num: int) -> Tensor | None:
        """The first `num` queued rows whose stamps are unchanged; `None` if there are fewer."""
        length, width = self._queue.shape[0], 2 * num
        while True:
            is_valid = self._stamps[self._queue[:width]] == self._queue_stamps[:width]
            valid = is_valid.nonzero().flatten()
            if valid.shape[0] >= num:
                break
            if width >= length:
                return None
            width *= 2
        found = self._queue[valid[:num]]
        if num:
            first = int(valid[0])
            self._queue, self._queue_stamps = self._queue[first:], self._queue_stamps[first:]
        return found

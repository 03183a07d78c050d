"""How often each value of a column occurs, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LEAST_PENDING = 1 << 18


class KeyCounts:
    """Counts by 64-bit key, as two sorted arrays: 16 bytes a key.

    After `forget_rarest`, a count may be too low, by at most `max_error`, and a key that is absent
    occurred at most `max_error` times (lossy counting). Without it, counts are exact.

    Attributes:
        keys: Sorted, each once.
        counts: How often each occurred.
        max_error: By how much a count may be too low.
    """

    def __init__(self) -> None:
        self.keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self.max_error = 0
        self._pending: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._num_pending = 0

    def __len__(self) -> int:
        """Keys held, those not yet merged counted as new."""
        return len(self.keys) + self._num_pending

    def add(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Count keys, each given with its number of occurrences."""
        self._pending.append((keys, counts))
        self._num_pending += len(keys)
        # Merging costs a pass over what is held, so it waits for a part of that to come together.
        if self._num_pending > max(_LEAST_PENDING, len(self.keys) // 8):
            self.merge()

    def merge(self) -> None:
        """Bring `keys` and `counts` up to date."""
        if not self._pending:
            return
        keys = np.concatenate([keys for keys, _ in self._pending])
        counts = np.concatenate([counts for _, counts in self._pending])
        self._pending, self._num_pending = [], 0
        if not len(keys):
            return
        order = np.argsort(keys)
        keys, counts = keys[order], counts[order]
        firsts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        keys, counts = keys[firsts], np.add.reduceat(counts, firsts)
        places = np.searchsorted(self.keys, keys)
        found = np.zeros(len(keys), bool)
        inside = places < len(self.keys)
        found[inside] = self.keys[places[inside]] == keys[inside]
        self.counts[places[found]] += counts[found]
        new = ~found
        self.keys = np.insert(self.keys, places[new], keys[new])
        self.counts = np.insert(self.counts, places[new], counts[new])

    def forget_rarest(self, num_kept: int) -> None:
        """Forget the rarest keys, whole counts at a time, until at most `num_kept` are left."""
        self.merge()
        if len(self.keys) <= num_kept:
            return
        threshold = int(np.partition(self.counts, -num_kept - 1)[-num_kept - 1])
        kept = self.counts > threshold
        self.keys, self.counts = self.keys[kept], self.counts[kept]
        self.max_error += threshold


def limit_held(columns: list[KeyCounts], max_held: int) -> None:
    """Hold at most `max_held` keys over all columns, at the cost of the longest ones."""
    while sum(len(column) for column in columns) > max_held:
        for column in columns:
            column.merge()
        over = sum(len(column) for column in columns) - max_held
        if over > 0:
            longest = max(columns, key=len)
            # Half at a time, so that this pass over the column is rare.
            longest.forget_rarest(min(len(longest) // 2, len(longest) - over))

"""Counting the values of a column in bounded memory (lossy counting)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIN_PENDING = 1 << 18


class KeyCounts:
    """Counts by 64-bit key, in two sorted arrays: 16 bytes per key.

    After `forget_rarest`, a count may be too low by at most `max_error`, and a missing key has
    occurred at most `max_error` times (lossy counting). Otherwise, counts are exact.

    Attributes:
        keys: Sorted distinct keys.
        counts: How often each key occurred.
        max_error: The most by which a count may be too low.
    """

    def __init__(self) -> None:
        self.keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self.max_error = 0
        self._pending: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._num_pending = 0

    def __len__(self) -> int:
        """Number of keys; those not merged yet are counted as new."""
        return len(self.keys) + self._num_pending

    def add(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Add occurrences of keys."""
        self._pending.append((keys, counts))
        self._num_pending += len(keys)
        # Merging costs a pass over all keys, so it waits until many new ones have accumulated.
        if self._num_pending > max(_MIN_PENDING, len(self.keys) // 8):
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

    def forget_rarest(self, max_keys: int) -> None:
        """Forget the rarest keys until at most `max_keys` are left; equal counts go together."""
        self.merge()
        if len(self.keys) <= max_keys:
            return
        threshold = int(np.partition(self.counts, -max_keys - 1)[-max_keys - 1])
        frequent = self.counts > threshold
        self.keys, self.counts = self.keys[frequent], self.counts[frequent]
        self.max_error += threshold


def limit_held(columns: list[KeyCounts], max_held: int) -> None:
    """Limit the keys of all columns to `max_held`, forgetting keys of the largest columns."""
    while sum(len(column) for column in columns) > max_held:
        for column in columns:
            column.merge()
        over = sum(len(column) for column in columns) - max_held
        if over > 0:
            longest = max(columns, key=len)
            # Half of the keys at once, so that this pass over the column is rare.
            longest.forget_rarest(min(len(longest) // 2, len(longest) - over))

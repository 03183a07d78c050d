"""Ranks that are threads and compute in turn, so that the work of each can be timed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxtyping import Int64, UInt8
from torch import Tensor

from outsize.ranks.thread_ranks import ThreadRanks


class InTurn:
    """A rank that computes only while no other one does (a `RankGroup`).

    Threads that compute at once slow each other down, as the processes of a run do not: they share
    an interpreter, an allocator and the caches of few cores.

    Args:
        ranks: This rank among threads.
        lock: Held by the one rank that computes.
    """

    def __init__(self, ranks: ThreadRanks, lock: threading.Lock) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._lock = ranks, lock
        self._is_in_turn = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Compute in turn in the block; all ranks enter it together."""
        with self._lock:
            self._is_in_turn = True
            try:
                yield
            finally:
                self._is_in_turn = False

    def swap_counts(self, counts: Int64[Tensor, "size k"]) -> Int64[Tensor, "size k"]:  # noqa: D102
        with self._waiting():
            return self._ranks.swap_counts(counts)

    def swap_bytes(  # noqa: D102
        self, messages: Sequence[UInt8[Tensor, " _"]], sizes: Sequence[int]
    ) -> list[UInt8[Tensor, " _"]]:
        with self._waiting():
            return self._ranks.swap_bytes(messages, sizes)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let others compute while this rank waits for their messages."""
        if not self._is_in_turn:
            yield
            return
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

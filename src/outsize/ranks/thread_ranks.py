"""Ranks as threads of one process: the same code as over a network, without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

Result = TypeVar("Result")


class ThreadRanks:
    """One of several threads that swap messages in memory (a `RankGroup`).

    Args:
        rank: Which of them.
        mailbox: One list of messages for each rank, shared by all.
        barrier: For as many threads as there are ranks.
    """

    def __init__(self, rank: int, mailbox: list[list[Tensor]], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(mailbox)
        self._mailbox = mailbox
        self._barrier = barrier

    def swap_counts(self, counts: Int64[Tensor, "size k"]) -> Int64[Tensor, "size k"]:  # noqa: D102
        return torch.stack(self._swap(list(counts)))

    def swap_bytes(  # noqa: D102
        self, messages: Sequence[UInt8[Tensor, " _"]], sizes: Sequence[int]
    ) -> list[UInt8[Tensor, " _"]]:
        received = self._swap(list(messages))
        assert [message.shape[0] for message in received] == list(sizes), "sizes were agreed on"
        return received

    def _swap(self, messages: list[Tensor]) -> list[Tensor]:
        self._mailbox[self.rank] = messages
        self._barrier.wait()
        received = [sent[self.rank].clone() for sent in self._mailbox]
        self._barrier.wait()
        return received


def run_as_ranks(size: int, work: Callable[[ThreadRanks], Result]) -> list[Result]:
    """Do the same work on several threads that are ranks of one group.

    Args:
        size: How many ranks.
        work: Given its place in the group; an error on one rank ends them all.

    Returns:
        What each rank returned.
    """
    mailbox: list[list[Tensor]] = [[] for _ in range(size)]
    barrier = threading.Barrier(size)

    def guarded(rank: int) -> Result:
        try:
            return work(ThreadRanks(rank, mailbox, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
    # The first cause, not the ranks that were waiting for it.
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    for error in (*causes, *errors):
        if error is not None:
            raise error
    return [future.result() for future in futures]

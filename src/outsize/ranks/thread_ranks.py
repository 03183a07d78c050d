"""Ranks as threads of one process: the same code as over a network."""

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
        rank: The number of this rank.
        mailbox: One list of messages per rank, shared by all.
        barrier: A barrier for all ranks.
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
    """Run the same work on several threads, each as one rank of a group.

    Args:
        size: Number of ranks.
        work: Called on each rank with its group. If any rank raises, all end.

    Returns:
        The result of each rank, in the order of ranks.
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
    # Raise the cause, not the errors of the ranks that waited at the barrier.
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    for error in (*causes, *errors):
        if error is not None:
            raise error
    return [future.result() for future in futures]

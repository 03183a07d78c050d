"""Threads that run the parts of a kernel in parallel, as many as torch uses.

They are torch's own (`outsize.kernels.openmp`), if it has threads that can be used. Otherwise, and
in forked children, they are workers in Python, which all threads that call kernels share. The
thread that calls a kernel takes parts too, and takes all that no worker has begun: on a busy
machine, where a worker may not run for a while, nobody waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch

from outsize.kernels import openmp
from outsize.kernels.compiled import Kernel


class _Job:
    """The parts of one kernel, each of which some thread takes."""

    def __init__(self, function: Callable[..., Any], parts: int, arguments: tuple[Any, ...]):
        self._function = function
        self._parts = parts
        self._arguments = arguments
        self._next = self._num_done = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def work(self) -> None:
        """Take and run parts until all have been taken."""
        while True:
            with self._changed:
                part = self._next
                if part == self._parts:
                    return
                self._next += 1
            error = None
            try:
                self._function(part, self._parts, *self._arguments)
            except BaseException as raised:
                error = raised
            with self._changed:
                self._error = self._error or error
                self._num_done += 1
                if self._num_done == self._parts:
                    self._arguments = ()  # a waiting worker keeps no tensor alive
                    self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all parts have run; raises the first error."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_done == self._parts)
        if self._error is not None:
            raise self._error


class _Workers:
    """Daemon threads that wait for jobs."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.num_threads = 0
        self.lock = threading.Lock()

    def start(self, num_threads: int) -> None:
        """Have at least so many threads."""
        with self.lock:
            while self.num_threads < num_threads:
                self.num_threads += 1
                name = f"outsize-kernels-{self.num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            job.work()
            del job


_workers = _Workers()


def _forget_workers() -> None:
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def num_parts(work: int, least: int) -> int:
    """How many parts to split work into: one per thread of torch, each of at least `least`."""
    return max(1, min(torch.get_num_threads(), work // least))


def run_parts(function: Callable[..., Any], parts: int, *arguments: Any) -> None:
    """Call `function(part, parts, *arguments)` for every part, in parallel; return when all have.

    The parts must not write to the same memory. If a part raises, the others run nevertheless, and
    the first error is raised.
    """
    if parts == 1:
        function(0, 1, *arguments)
        return
    if isinstance(function, Kernel) and function.run_on_team is not None and openmp.is_usable():
        function.run_on_team(parts, *arguments)
        return
    workers = _workers
    if workers.num_threads < parts - 1:
        workers.start(parts - 1)
    job = _Job(function, parts, arguments)
    for _ in range(1, parts):
        workers.jobs.put(job)
    job.work()
    job.finish()


@contextmanager
def torch_threads(number: int | None = None) -> Iterator[None]:
    """Let torch use so many threads in the block, and as many as before after it.

    Args:
        number: The number; by default it stays, and the block may set it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

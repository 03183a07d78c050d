"""Threads that run the parts of a kernel in parallel, as many as torch uses.

Any number of threads may run kernels at once: they share the workers. A forked child starts workers
of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

_Job = tuple[Callable[..., Any], tuple[Any, ...], "SimpleQueue[BaseException | None]"]


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
            function, arguments, done = self.jobs.get()
            try:
                function(*arguments)
                done.put(None)
            except BaseException as error:
                done.put(error)
            del function, arguments, done  # a waiting thread keeps no tensor alive


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

    The parts must not write to the same memory.
    """
    if parts == 1:
        function(0, 1, *arguments)
        return
    workers = _workers
    if workers.num_threads < parts - 1:
        workers.start(parts - 1)
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    for part in range(1, parts):
        workers.jobs.put((function, (part, parts, *arguments), done))
    try:
        function(0, parts, *arguments)
    finally:
        errors = [done.get() for _ in range(1, parts)]
    for error in errors:
        if error is not None:
            raise error

"""One thread that runs calls in the order in which they were made."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class CallThread:
    """Runs calls on one thread, one after another, in the order in which they were made.

    So the result of the calls does not depend on how fast either thread is. The thread starts with
    the first call. Once stopped, calls run on the caller's thread.

    An error of a call that nobody waited for (`start`) is kept: the calls after it are not run, and
    raise the same error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any], bool] | None]
        self._calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._error: BaseException | None = None

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a call after all earlier ones, and do not wait for it."""
        return self._put(call, keeps_error=True)

    def run(self, call: Callable[[], Result]) -> Result:
        """Run a call after all earlier ones, and return its result."""
        return self._put(call, keeps_error=False).result()

    def stop(self, *, waits: bool) -> None:
        """End the thread.

        Args:
            waits: Whether all calls are run first. Otherwise the ones that have not begun are
                dropped, and the one that runs is left to itself.
        """
        self._is_stopped = True
        if self._thread is None:
            return
        if not waits:
            self._error = self._error or RuntimeError("the store was left before this was done")
        self._calls.put(None)
        if waits:
            self._thread.join()

    def _put(self, call: Callable[[], Result], *, keeps_error: bool) -> Future[Result]:
        done: Future[Result] = Future()
        if self._is_stopped:
            self._do(call, done, keeps_error)
            return done
        if self._thread is None:
            # A daemon: a process that fails ends without waiting for ranks that do not answer.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put((call, done, keeps_error))
        return done

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            self._do(*item)
            del item  # or the tensors of a call would live until the next one

    def _do(self, call: Callable[[], Any], done: Future[Any], keeps_error: bool) -> None:
        if self._error is not None:
            done.set_exception(self._error)
            return
        try:
            with torch.no_grad():
                result = call()
        except BaseException as error:
            if keeps_error:
                self._error = error
            done.set_exception(error)
        else:
            done.set_result(result)

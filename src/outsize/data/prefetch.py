"""Making the next batches while the device is busy with this one."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(source: Iterator[T], prepare: Callable[[T], U], depth: int = 2) -> Iterator[U]:
    """Yield `prepare(item)` for each item, made up to `depth` ahead by a thread.

    Order and values are those of the source, and an error in it is raised where its item would
    have come. When the caller stops early, the thread ends with the item it is making.

    Args:
        source: What to read ahead in.
        prepare: Applied in the thread, such as a move to the device.
        depth: How many finished items may wait.
    """
    waiting: queue.Queue[U | _End] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: U | _End) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return

    def work() -> None:
        try:
            for item in source:
                put(prepare(item))
                if stopped.is_set():
                    return
            put(_End(None))
        except Exception as error:
            put(_End(error))

    thread = threading.Thread(target=work, name="outsize-prefetch", daemon=True)

    def stop() -> None:
        stopped.set()
        thread.join()

    # A thread that still uses the device while the interpreter shuts down would abort it.
    atexit.register(stop)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        atexit.unregister(stop)
        stop()


class _End:
    """The source is exhausted, or has failed."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

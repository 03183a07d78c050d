"""Preparing the next batches in a thread while the device works on the current one."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(
    source: Iterator[T],
    prepare: Callable[[T], U],
    depth: int = 2,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[U]:
    """Yield `prepare(item)` for each item, prepared up to `depth` items ahead in a thread.

    Items come in the order of the source. An error in the source is raised at the position of its
    item. If the caller stops early, the thread ends after the item it is preparing.

    Args:
        source: The items.
        prepare: Applied in the thread, for example to move a batch to the device.
        depth: Maximum number of prepared items in the queue.
        within: The context in which the thread makes and prepares items.
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
            with within():
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

    # A thread that uses the device while the interpreter shuts down would abort the process.
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


def one_ahead(source: Iterator[T], announce: Callable[[T], None]) -> Iterator[T]:
    """Yield the items of a source; each is announced before the item before it is yielded."""
    for item in source:
        announce(item)
        break
    else:
        return
    for following in source:
        announce(following)
        yield item
        item = following
    yield item


class _End:
    """Marks the end of the source: it is exhausted, or has failed."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

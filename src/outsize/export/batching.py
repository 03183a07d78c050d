"""Requests that arrive together are scored as one batch, by one worker thread.

A batch has requests of the same columns and types of values only: how a value is read may depend on
the other values of its column, and must not depend on what others ask.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from outsize.errors import OutsizeError

Row = dict[str, Any]


class FullError(OutsizeError, RuntimeError):
    """Too many requests are waiting."""


@dataclass(frozen=True)
class _Waiting:
    rows: Sequence[Row]
    kinds: frozenset[tuple[str, str]]
    scores: Future[NDArray[Any]] = field(default_factory=Future)


class BatchingScorer:
    """Scores the rows of requests in one worker thread, those that wait together in one call.

    Args:
        score: Rows → one score per row.
        max_rows: Rows per call; a request of more is scored on its own.
        max_waiting: Requests that may wait; more are refused.
    """

    def __init__(
        self,
        score: Callable[[list[Row]], NDArray[Any]],
        max_rows: int = 10_000,
        max_waiting: int = 64,
    ) -> None:
        self._score = score
        self._max_rows = max_rows
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(max_waiting)
        self._is_closed = False
        self._worker = threading.Thread(target=self._work, name="outsize-scorer", daemon=True)
        self._worker.start()

    def submit(self, rows: Sequence[Row]) -> Future[NDArray[Any]]:
        """Ask for the scores of rows; raises a `FullError` if too many requests wait."""
        waiting = _Waiting(rows, _kinds(rows))
        try:
            if self._is_closed:
                raise queue.Full
            self._waiting.put_nowait(waiting)
        except queue.Full:
            raise FullError("too many requests are waiting: try again later") from None
        return waiting.scores

    def close(self) -> None:
        """Score what waits, and end the worker."""
        if not self._is_closed:
            self._is_closed = True
            self._waiting.put(None)
            self._worker.join()

    def _work(self) -> None:
        held: _Waiting | None = None
        while True:
            first = held or self._waiting.get()
            if first is None:
                return
            batch, held, is_last = self._gather(first)
            self._answer(batch)
            if is_last:
                return

    def _gather(self, first: _Waiting) -> tuple[list[_Waiting], _Waiting | None, bool]:
        """Requests that wait, up to `max_rows`; one that did not fit; whether they are the last."""
        batch, num_rows = [first], len(first.rows)
        while True:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                return batch, None, False
            if following is None:
                return batch, None, True
            num_rows += len(following.rows)
            if num_rows > self._max_rows or following.kinds != first.kinds:
                return batch, following, False
            batch.append(following)

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            scores = self._score([row for waiting in batch for row in waiting.rows])
        except Exception as error:
            if len(batch) == 1:
                batch[0].scores.set_exception(error)
            else:  # one request's mistake is not another's
                for waiting in batch:
                    self._answer([waiting])
            return
        first = 0
        for waiting in batch:
            waiting.scores.set_result(scores[first : first + len(waiting.rows)])
            first += len(waiting.rows)


def _kinds(rows: Sequence[Row]) -> frozenset[tuple[str, str]]:
    """The columns of rows and the types of their values."""
    return frozenset((name, _kind(value)) for row in rows for name, value in row.items())


def _kind(value: Any) -> str:
    is_long = type(value) is int and not -(1 << 63) <= value < 1 << 63
    return "long int" if is_long else type(value).__name__

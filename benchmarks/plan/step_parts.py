"""The parts of a step of a run: dense weights, rows, and messages between ranks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from outsize.contracts import RowStore

PARTS = ("dense", "rows", "exchange")
_COLLECTIVES = ("all_to_all_single", "all_reduce", "all_gather", "barrier")
_OF_ROWS = ("exchange", "submit", "reduce_pending")


class StepParts:
    """A clock that says for each moment which part it belongs to.

    Time in a collective call counts as exchange, other time in a read or an update of the store as
    rows, and all else as dense. Two ranks average gradients while the backward pass goes on, and
    outside of Python: that counts as dense.

    Attributes:
        steps: For each step that `end_step` ended, seconds and processor seconds by part.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._now = dict.fromkeys([*PARTS, *(f"{part}_processor" for part in PARTS)], 0.0)
        self._part, self._marks = PARTS[0], _clocks()

    @contextmanager
    def watching(self, store: RowStore | None) -> Iterator[None]:
        """Time a store and all collective calls of this process in the block."""
        watched: list[tuple[Any, str, str]] = [(dist, name, "exchange") for name in _COLLECTIVES]
        watched += [] if store is None else [(store, name, "rows") for name in _OF_ROWS]
        before = [vars(owner).get(name) for owner, name, _ in watched]
        for owner, name, part in watched:
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        try:
            yield
        finally:
            for (owner, name, _), call in zip(watched, before, strict=True):
                delattr(owner, name) if call is None else setattr(owner, name, call)

    def end_step(self) -> None:
        """Begin a new step."""
        self._switch(self._part)
        self.steps.append(dict(self._now))
        self._now = dict.fromkeys(self._now, 0.0)

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*words: Any, **named: Any) -> Any:
            before = self._part
            self._switch(part)
            try:
                return call(*words, **named)
            finally:
                self._switch(before)

        return timed

    def _switch(self, part: str) -> None:
        marks = _clocks()
        self._now[self._part] += marks[0] - self._marks[0]
        self._now[f"{self._part}_processor"] += marks[1] - self._marks[1]
        self._part, self._marks = part, marks


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()

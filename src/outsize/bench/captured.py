"""Work on a GPU as a CUDA graph, so that launches are not what is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch

_CALLS_BEFORE = 3  # torch asks for some before a capture


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """A function that does on the device what `run` does, launched as one.

    Args:
        run: The work; it is called a few times, then captured.
    """
    for _ in range(_CALLS_BEFORE):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return lambda: graph.replay()


def in_turn(steps: Sequence[Callable[[], object]], is_captured: bool) -> Callable[[], object]:
    """A function that takes one of the steps at each call, in turn; as CUDA graphs if asked to."""
    turn = cycle([captured(step) for step in steps] if is_captured else steps)
    return lambda: next(turn)()

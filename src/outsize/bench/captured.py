"""Work on a GPU as a CUDA graph, so that launches are not what is timed."""

from __future__ import annotations

from collections.abc import Callable

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

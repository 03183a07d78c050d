"""What a benchmark sets for a while: threads, and who computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kernels_of(engine: str) -> Iterator[None]:
    """Let `OUTSIZE_KERNELS` be an engine."""
    before = os.environ.get("OUTSIZE_KERNELS")
    os.environ["OUTSIZE_KERNELS"] = engine
    try:
        yield
    finally:
        del os.environ["OUTSIZE_KERNELS"]
        if before is not None:
            os.environ["OUTSIZE_KERNELS"] = before

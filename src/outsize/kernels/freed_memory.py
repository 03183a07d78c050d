"""Freed memory stays with the process, for the tensors of the next step.

A step allocates some tensors of megabytes and frees them at its end. The C library of Linux gives
memory at the end of its heap back to the system beyond a threshold, and the next step gets it back
page by page, each cleared first: thousands of page faults in a step of rows in stores.

glibc raises the threshold by itself, to twice the largest block that was freed, and at most to
64 MB. One block that is freed at the start makes that the threshold from then on. Thresholds that
are set by environment variables (`MALLOC_TRIM_THRESHOLD_`), and other allocators, are not affected.
"""

from __future__ import annotations

from functools import cache

import torch

_BLOCK_BYTES = (32 << 20) - (64 << 10)  # the largest that counts is 32 MB with its header


@cache
def keep_freed_memory() -> None:
    """Raise the amount of freed memory that this process keeps, once; up to 64 MB with glibc."""
    torch.empty(_BLOCK_BYTES, dtype=torch.uint8)  # not written, so it takes no memory

import ctypes
import os
import subprocess
import sys

import pytest

CODE = """
import ctypes, sys, torch
from outsize.kernels.freed_memory import keep_freed_memory

class Facts(ctypes.Structure):
    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd")
    _fields_ = [(name, ctypes.c_size_t) for name in names] + [("rest", 5 * ctypes.c_size_t)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Facts
if "keep" in sys.argv:
    keep_freed_memory()
before = libc.mallinfo2().hblkhd
block = torch.empty(20_000_000, dtype=torch.uint8)
print(libc.mallinfo2().hblkhd - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library")
def test_blocks_of_a_step_come_from_memory_that_the_process_keeps():
    settings = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    mapped = {}
    for how in ("keep", "return"):
        words = [sys.executable, "-c", CODE, how]
        done = subprocess.run(words, env=settings, capture_output=True, text=True, check=True)
        mapped[how] = int(done.stdout)
    assert mapped["return"] >= 20_000_000  # mapped for this block alone, and unmapped after it
    assert mapped["keep"] == 0

"""Which ranks share a machine."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def has_launcher() -> bool:
    """Whether a launcher such as torchrun says how many ranks are on this machine."""
    return "LOCAL_WORLD_SIZE" in os.environ


def are_on_one_machine() -> bool:
    """Whether a launcher started all ranks on this machine; the same on all of them."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "1")


def machine_number() -> int:
    """The same number in all processes of a machine, containers included, and in no others."""
    name = _BOOT_ID.read_text() if _BOOT_ID.exists() else socket.gethostname()
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")

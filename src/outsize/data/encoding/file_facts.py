"""Sizes and checksums of the files of a folder that was just written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from outsize.interrupts import check_stop

_BLOCK_BYTES = 1 << 24


def file_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """The size and SHA-256 of each file of a folder, after syncing it to disk."""
    return {path.name: facts_of_file(path) for path in sorted(folder.iterdir())}


def facts_of_file(path: Path) -> dict[str, Any]:
    """The size and SHA-256 of a file, after syncing it to disk."""
    digest = hashlib.sha256()
    with path.open("rb+", buffering=0) as file:
        os.fsync(file.fileno())
        while block := file.read(_BLOCK_BYTES):
            check_stop()
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}

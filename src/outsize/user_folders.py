"""Folders of the user who runs a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """The folder of this user for what can be made again, such as `~/.cache/outsize`.

    Raises:
        RuntimeError: The user has no home.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "outsize"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "outsize" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outsize"

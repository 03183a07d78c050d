"""Locks against other processes: one file, held while it is open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from outsize.errors import ConfigError, WriteError
from outsize.files import reason_of

LOCK = ".lock"


@contextlib.contextmanager
def file_lock(path: Path, while_held: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file, which stays when the lock is released.

    Args:
        path: The file; made if it is missing.
        while_held: Called, again and again, while another process holds it: waits, or raises.
    """
    import fcntl

    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_held()
        yield


@contextlib.contextmanager
def folder_lock(folder: Path, busy: str, needs: str) -> Iterator[None]:
    """Lock a folder against other processes that write to it.

    Args:
        folder: The folder.
        busy: What to say if another process holds the lock.
        needs: What to say besides if the folder cannot be locked, such as one that may not be
            written to.
    """

    def refuse() -> None:
        raise ConfigError(busy)

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / LOCK, refuse))
        except OSError as error:
            raise WriteError(
                f"could not lock {folder / LOCK}: {reason_of(error)}; {needs}"
            ) from error
        yield

"""A disk of a given size that only this process and its children see: tmpfs in a namespace."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from benchmarks.torture.trial import TrialSkipped

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # of unshare(2)
_REMOUNT, _RECURSIVE, _PRIVATE = 0x20, 0x4000, 0x40000  # of mount(2)
_PAGE = 4096


class SmallDisk:
    """A disk that can be made full, and larger again.

    Raises `TrialSkipped` where this user may not mount anything.

    Args:
        path: An empty folder, which the disk takes the place of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        _enter_namespace(self._libc)
        self._mount(None, "/", None, _RECURSIVE | _PRIVATE, None)
        self._mount("tmpfs", str(path), "tmpfs", 0, "size=1g")

    def leave_bytes(self, free: int) -> None:
        """Let so many bytes be free, in whole pages."""
        used = os.statvfs(self.path)
        held = (used.f_blocks - used.f_bfree) * used.f_frsize
        self._set(f"size={held + max(_PAGE, free)}")

    def leave_files(self, free: int) -> None:
        """Let there be room for so many files and folders."""
        used = os.statvfs(self.path)
        self._set(f"nr_inodes={used.f_files - used.f_ffree + max(1, free)}")

    def make_large(self) -> None:
        """Let there be room for everything."""
        self._set("size=1g,nr_inodes=1000000")

    def _set(self, options: str) -> None:
        self._mount(None, str(self.path), None, _REMOUNT, options)

    def _mount(
        self, source: str | None, target: str, kind: str | None, flags: int, options: str | None
    ) -> None:
        words = [None if word is None else word.encode() for word in (source, target, kind)]
        data = None if options is None else options.encode()
        if self._libc.mount(*words, ctypes.c_ulong(flags), data):
            raise TrialSkipped(f"this user may not mount: {os.strerror(ctypes.get_errno())}")


def _enter_namespace(libc: ctypes.CDLL) -> None:
    """Give this process mounts of its own; an ordinary user needs a user namespace for that."""
    user, group = os.getuid(), os.getgid()
    is_root = user == 0 and not libc.unshare(_NEW_MOUNTS)
    if is_root:
        return
    if libc.unshare(_NEW_MOUNTS | _NEW_USER):
        raise TrialSkipped(f"no namespaces: {os.strerror(ctypes.get_errno())}")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise TrialSkipped(f"no user namespaces: {error.strerror}") from None

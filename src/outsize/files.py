"""Atomic writes of files and folders, with sizes and SHA-256 checksums.

Tensors are written to safetensors files in chunks; everything else is JSON or text.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from outsize.errors import WriteError

SAFETENSORS_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK_BYTES = 1 << 24
_MARKER = ".outsize-partial"


@contextlib.contextmanager
def whole_folder(final: Path, partial: Path) -> Iterator[Path]:
    """A folder to write into that is renamed to `final` on success, and removed on an error.

    Args:
        final: Must not exist, or be an empty folder.
        partial: Its name while it is written, in the same parent folder. What a crash has left
            there is removed.
    """
    make_partial(partial)
    try:
        yield partial
        finish_partial(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def require_readable_name(folder: Path) -> None:
    """Raise a `WriteError` for a folder in which files of tensors could not be read again."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise WriteError(
            f"the name of {folder} is no UTF-8, as safetensors files need it: choose another folder"
        ) from None


def make_partial(partial: Path) -> None:
    """Make a folder to write into, replacing one that a crash has left behind.

    A marker file inside identifies folders made here. A folder that has other content but no marker
    is not removed; it raises a `WriteError`.
    """
    require_readable_name(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    if partial.is_symlink() or partial.exists():
        is_ours = partial.is_dir() and not partial.is_symlink()
        if not is_ours or (any(partial.iterdir()) and not (partial / _MARKER).exists()):
            raise WriteError(f"{partial} is in the way: remove it, or choose another folder")
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        (partial / _MARKER).touch()
    except OSError:
        partial.rmdir()
        raise


def finish_partial(partial: Path, final: Path) -> None:
    """Rename a finished folder to its final name, and sync the rename to disk."""
    sync_folder(partial)
    partial.rename(final)
    (final / _MARKER).unlink()
    sync_folder(final.parent)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees either the old or the new content, never a part.

    What is no text, as in the name of a folder that is no UTF-8, is written as escapes.
    """
    with whole_file(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name at the end; an error leaves the old one."""
    if path.is_dir():
        raise WriteError(f"could not write {path}: it is a folder; name a file")
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise WriteError(f"could not write {path}: {reason_of(error)}") from error
        raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and sync it; a crash can truncate at most this line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise WriteError(f"could not write to {path}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """The reason of an `OSError` as text, without the file name."""
    return "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write a safetensors file and return its size and SHA-256.

    Tensors are written one by one, without a second copy of the state in memory.

    Args:
        path: File to write.
        tensors: Tensors by name.
        metadata: Text for the file's header.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": SAFETENSORS_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        return _write_hashed(file, [len(text).to_bytes(8, "little"), text], tensors)


def _write_hashed(
    file: BinaryIO, head: list[bytes], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    digest = hashlib.sha256()
    size = 0

    def put(data: bytes | memoryview) -> None:
        nonlocal size
        file.write(data)
        digest.update(data)
        size += len(data)

    for piece in head:
        put(piece)
    for tensor in tensors.values():
        for data in _bytes_of(tensor):
            put(data)
    file.flush()
    os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    if not tensor.numel():  # which may have a stride of 0, and no other view
        return
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    for piece in flat.split(_CHUNK_BYTES):
        yield memoryview(piece.cpu().numpy())


def write_json(path: Path, content: Any) -> dict[str, Any]:
    """Write a JSON file and return its size and SHA-256."""
    with path.open("wb") as file:
        return _write_hashed(file, [json.dumps(content, indent=1).encode()], {})


def flaw_of(path: Path, facts: Mapping[str, Any]) -> str | None:
    """How a file differs from the size and SHA-256 it was written with; `None` if it does not.

    Raises:
        PermissionError: The file may not be read, so its content is unknown.
    """
    try:
        size = path.stat().st_size
        if size != facts["bytes"]:
            return f"it has {size:,} bytes where {facts['bytes']:,} were written"
        digest = sha256_of(path)
    except FileNotFoundError:
        return "it is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"it cannot be read ({reason_of(error)})"
    return None if digest == facts["sha256"] else "its checksum is not the one written"


def sha256_of(path: Path) -> str:
    """The SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Sync a folder's directory entries to disk, so that a rename survives a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

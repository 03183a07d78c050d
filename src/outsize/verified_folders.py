"""Folders that are complete or absent, with the size and SHA-256 of each file in a manifest.

All ranks write to a temporary folder, which is synced and renamed, so a crash at any moment leaves
either the complete folder or none. Checkpoints, saved rows and saved caches are such folders.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outsize.errors import CheckpointError
from outsize.files import finish_partial, flaw_of, make_partial, reason_of, write_json
from outsize.json_files import FILE_FACTS, Each, OneOf, SchemaError, check, read_json
from outsize.ranks.collectives import gather_values, rank
from outsize.ranks.failures import failing_together

FORMAT = 2
STEP_FOLDER = re.compile(r"step-([0-9]{10})(?:-([0-9]+))?")  # of a run; see `outsize.checkpoint`
WriteFiles = Callable[[Path], Mapping[str, Mapping[str, Any]]]


def write_together(final: Path, write: WriteFiles, way_out: str) -> None:
    """Write a folder and its manifest atomically; call it on all ranks.

    If any rank cannot write, all raise a `CheckpointError`.

    Args:
        final: Must not exist, or be an empty folder, and be the same folder for all ranks.
        write: Writes this rank's files into the given folder, and returns the size and SHA-256 of
            each by name.
        way_out: The last part of the error message: what to do if the disk is full.
    """
    partial = final.with_name(f"{final.name}.partial")
    with _writing(final, way_out):
        if rank() == 0:
            make_partial(partial)
    try:
        with _writing(final, way_out):
            if not partial.is_dir():
                raise OSError("rank 0 has made it, and this rank does not see it: share a disk")
            mine = write(partial)
        files = {name: facts for part in gather_values(mine) for name, facts in part.items()}
        with _writing(final, way_out):
            if rank() == 0:
                write_json(partial / "manifest.json", {"format": FORMAT, "files": files})
                finish_partial(partial, final)
    except BaseException:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _writing(final: Path, way_out: str) -> Iterator[None]:
    with failing_together(CheckpointError):
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"could not write checkpoint {final}: {reason_of(error)}; {way_out}"
            ) from error


def read_manifest(folder: Path, *needed: str) -> dict[str, dict[str, Any]]:
    """The files of a checkpoint with their size and SHA-256; raises if a needed one is missing."""
    path = folder / "manifest.json"
    try:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a checkpoint: there is no such folder")
    except OSError as error:
        raise unreadable(folder, error) from error
    manifest = read_verified(path, {"format": OneOf(int, str)})
    found = manifest["format"]
    if found != FORMAT:
        raise CheckpointError(
            f"checkpoint {folder} has format {found}, but this version reads format {FORMAT}: "
            "resume with the version that wrote it, or start a new run"
        )
    try:
        check(manifest, {"files": Each(FILE_FACTS)})
    except SchemaError as error:
        raise damaged(path, str(error)) from None
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name in needed:
        if name not in files:
            raise damaged(path, f"it does not list {name}")
    return files


def require_whole(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise a `CheckpointError` if a file's size or checksum is not the one written."""
    try:
        flaw = flaw_of(path, facts)
    except OSError as error:
        raise unreadable(path.parent, error) from error
    if flaw:
        raise damaged(path, flaw)


def read_verified(path: Path, schema: Any) -> Any:
    """Read a JSON file of a checkpoint and check it against a schema."""
    try:
        return read_json(path, schema)
    except SchemaError as error:
        raise damaged(path, str(error)) from None
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except PermissionError as error:
        raise unreadable(path.parent, error) from error
    except OSError as error:
        raise damaged(path, f"it cannot be read ({reason_of(error)})") from None


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file of a checkpoint with `safetensors.safe_open`, on the CPU."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            yield tensors
    except SafetensorError as error:
        raise damaged(path, f"it is not a safetensors file ({error})") from None


def damaged(path: Path, fact: str) -> CheckpointError:
    """The error for a file of a checkpoint that is not as it was written."""
    is_of_run = STEP_FOLDER.fullmatch(path.parent.name)
    previous = "remove this folder to resume from the one before it"
    way_out = previous if is_of_run else "save it again"
    return CheckpointError(f"checkpoint {path.parent} is damaged: {path.name}: {fact}; {way_out}")


def unreadable(folder: Path, error: OSError) -> CheckpointError:
    """The error for a folder, or a file in it, that this user may not read."""
    name = "" if error.filename is None else f"{Path(error.filename).name}: "
    return CheckpointError(
        f"checkpoint {folder} cannot be read: {name}{reason_of(error)}; let this user read it"
    )

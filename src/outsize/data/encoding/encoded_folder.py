"""The cache of encoded data on disk, rebuilt when its source or recipe changes.

A folder is written under a temporary name, synced and renamed, so a process that is killed never
leaves an incomplete folder under the final name. The next process continues after the last pass
that was finished. The folder's name contains a hash of the recipe; its manifest lists the sizes and
times of the source files, and the size and SHA-256 of each encoded file. Damaged data is encoded
again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outsize.data.encoding import learned
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encode import encode
from outsize.data.encoding.encoding_progress import encoding_progress, say
from outsize.data.encoding.manifest import MANIFEST, read_manifest
from outsize.data.encoding.recipe import Recipe
from outsize.data.encoding.sources import find_files, source_facts
from outsize.data.encoding.verification import EncodedFolder, VerifiedFolder
from outsize.errors import DataError, WriteError
from outsize.file_locks import file_lock
from outsize.files import reason_of, sync_folder, write_text_atomically
from outsize.interrupts import StopRequested, check_stop
from outsize.json_files import sealed

CACHE_FOLDER = ".outsize-cache"
_POLL_S = 0.1


def open_encoded(recipe: Recipe, cache: str = "", verify: bool = False) -> Path:
    """The folder of a recipe's encoded data; encodes the data first if needed.

    Files that have changed since they were last verified are verified by one process at a time,
    which records the result for the others. Damaged data is encoded again.

    Args:
        recipe: What to read, and how to encode it.
        cache: Folder for encoded data; by default `.outsize-cache` next to the first source file.
        verify: Verify the checksums of all files, whether or not they have changed.
    """
    files = find_files(recipe.paths)
    root = Path(cache) if cache else files[0].parent / CACHE_FOLDER
    final = root / f"{files[0].name.split('.')[0]}-{recipe.digest()[:16]}"
    facts = source_facts(files)
    encoded = EncodedFolder(final, facts, recipe)
    ensure_folder(encoded, lambda: _make(files, facts, recipe, final), verify)
    _report_bad(final)
    return final


def ensure_folder(
    folder: VerifiedFolder, make: Callable[[], Mapping[str, Any]], verify: bool
) -> None:
    """Verify a folder, and make it if it is missing, outdated or damaged.

    One process at a time does either; the others wait, and find the result.

    Args:
        folder: The folder.
        make: Writes it, and returns its manifest.
        verify: Verify the checksums of all files, whether or not they have changed.
    """
    # With `verify`, every process verifies on its own, without waiting for another.
    if _is_whole(folder) if verify else folder.is_verified():
        return
    try:
        _verify_or_make(folder, make, verify)
    except OSError as error:
        raise WriteError(
            f"could not write encoded data to {folder.path}: {reason_of(error)}; "
            "name another folder, such as --set data.cache=cache"
        ) from error


def _is_whole(folder: VerifiedFolder) -> bool:
    return not folder.is_outdated() and folder.flaw(everything=True) is None


def _verify_or_make(
    encoded: VerifiedFolder, make: Callable[[], Mapping[str, Any]], verify: bool
) -> None:
    final = encoded.path
    with contextlib.ExitStack() as stack:
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(final.with_name(f"{final.name}.lock"), _wait))
        except OSError as error:  # the folder is not writable: no lock, and no stamp
            if encoded.is_outdated():
                raise
            if flaw := encoded.flaw(everything=verify):
                raise WriteError(
                    f"encoded data in {final} is damaged ({flaw}) and cannot be written again: "
                    f"{reason_of(error)}; name another folder, such as --set data.cache=cache"
                ) from error
            return
        if not encoded.is_outdated():
            flaw = encoded.flaw(everything=verify)
            if flaw is None:
                encoded.stamp()
                return
            say(f"encoded data in {final} is damaged ({flaw}): encoding it again")
        encoded.stamp_as_written(make()["files"])


def _make(
    files: list[Path], facts: list[dict[str, Any]], recipe: Recipe, final: Path
) -> dict[str, Any]:
    partial = final.with_name(f"{final.name}.partial")
    _clear(partial, learned.FILES)
    try:
        with encoding_progress(2 * sum(fact["bytes"] for fact in facts)) as advance:
            manifest = encode(files, recipe, partial, advance, facts)
        if source_facts(files) != facts:
            raise DataError(
                f"{recipe.paths[0]} changed while it was read: wait until it is complete"
            )
        _clear(partial, tuple(manifest["files"]))
        manifest = {"recipe": recipe.digest(), "sources": facts, **manifest}
        write_text_atomically(partial / MANIFEST, sealed(manifest))
        sync_folder(partial)
    except (StopRequested, KeyboardInterrupt):
        _clear(partial, learned.FILES)  # the next process continues from these
        with contextlib.suppress(OSError):
            partial.rmdir()
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replace_folder(partial, final)
    return manifest


def replace_folder(partial: Path, final: Path) -> None:
    """Rename a finished folder to its final name, in place of an older one."""
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync_folder(final.parent)


def _clear(folder: Path, except_for: tuple[str, ...]) -> None:
    """Make the folder if it is missing, and remove all files except the given ones."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in except_for:
            path.unlink()


def _report_bad(folder: Path) -> None:
    bad = BadRows(**read_manifest(folder)["bad_rows"])
    if bad.total:
        say(f"skipped malformed rows: {bad.describe()}")


def _wait() -> None:
    """Wait for another process that verifies or encodes the same data."""
    check_stop()
    time.sleep(_POLL_S)

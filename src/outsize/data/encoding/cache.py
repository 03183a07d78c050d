"""Encoded data on disk: complete or absent, and made anew when its source or recipe changes.

A folder is written under another name, synced and renamed, so that a process that is killed leaves
no folder that could be taken for a complete one; the next goes on after the last pass that was
finished. Its name holds a hash of the
recipe, its manifest the sizes and times of the source files and the size and SHA-256 of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outsize.data.encoding import learned
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encode import encode
from outsize.data.encoding.progress import encoding_progress, say
from outsize.data.encoding.recipe import Recipe
from outsize.data.encoding.sources import find_files, source_facts
from outsize.errors import DataError, WriteError
from outsize.files import reason_of, sync_folder, write_text_atomically

_FOLDER = ".outsize-cache"


def open_encoded(recipe: Recipe, cache: str = "", verify: bool = False) -> Path:
    """The folder of a recipe's encoded data, made first where there is none that fits.

    Args:
        recipe: What to read, and how to encode it.
        cache: Folder for encoded data; by default `.outsize-cache` beside the first source file.
        verify: Compare every byte with its checksum, not only every file with its size.
    """
    files = find_files(recipe.paths)
    root = Path(cache) if cache else files[0].parent / _FOLDER
    final = root / f"{files[0].name.split('.')[0]}-{recipe.digest()[:16]}"
    facts = source_facts(files)
    if _fits(final, facts, verify):
        _report_bad(final)
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f"{final.name}.lock"):
            if not _fits(final, facts, verify):  # else another process made it meanwhile
                _make(files, facts, recipe, final)
    except OSError as error:
        raise WriteError(
            f"could not write encoded data to {final}: {reason_of(error)}; "
            "name another folder as cache"
        ) from error
    _report_bad(final)
    return final


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder of encoded data says about itself."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert isinstance(manifest, dict)
    return manifest


def _make(files: list[Path], facts: list[dict[str, Any]], recipe: Recipe, final: Path) -> None:
    partial = final.with_name(f"{final.name}.partial")
    _clear(partial, learned.FILES)
    try:
        with encoding_progress(2 * sum(fact["bytes"] for fact in facts)) as advance:
            manifest = encode(files, recipe, partial, advance, facts)
        if source_facts(files) != facts:
            raise DataError(f"{recipe.paths[0]} changed while it was read: wait until it is whole")
        _clear(partial, tuple(manifest["files"]))
        manifest = {"recipe": recipe.digest(), "sources": facts, **manifest}
        write_text_atomically(partial / "manifest.json", json.dumps(manifest, indent=1))
        sync_folder(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync_folder(final.parent)


def _clear(folder: Path, kept: tuple[str, ...]) -> None:
    """An existing folder with nothing in it but these files."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()


def _fits(folder: Path, facts: list[dict[str, Any]], verify: bool) -> bool:
    """Whether a folder is whole and was made from these very files."""
    try:
        manifest = read_manifest(folder)
        if manifest["sources"] != facts:
            return False
        return all(_is_whole(folder / n, f, verify) for n, f in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        return False


def _is_whole(path: Path, facts: dict[str, Any], verify: bool) -> bool:
    if path.stat().st_size != facts["bytes"]:
        return False
    if not verify:
        return True
    with path.open("rb") as file:
        return bool(hashlib.file_digest(file, "sha256").hexdigest() == facts["sha256"])


def _report_bad(folder: Path) -> None:
    bad = BadRows(**read_manifest(folder)["bad_rows"])
    if bad.total:
        say(f"skipped malformed rows: {bad.describe()}")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait until no other process makes the same data."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

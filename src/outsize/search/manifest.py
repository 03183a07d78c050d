"""`manifest.json` of an item index: which files make up its current state.

Data files are written and synced first, under names that no earlier state uses; then the manifest
is replaced by a rename. A crash at any moment therefore leaves the old state or the new one. The
manifest has the size and SHA-256 of every file, and a checksum of itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outsize.errors import ItemIndexError, WriteError
from outsize.files import flaw_of, reason_of, sync_folder, write_text_atomically
from outsize.json_files import (
    FILE_FACTS,
    Each,
    SchemaError,
    Whole,
    Word,
    check,
    checksum_of,
    read_json,
)
from outsize.negatives.cache.precision import PRECISIONS

MANIFEST = "manifest.json"
FORMAT = 1
_CONTENT = {
    "dim": Whole(1),
    "precision": Word(*PRECISIONS),
    "generation": Whole(),
    "versions": [str],
    "segments": [str],
    "state": str,
    "files": Each(FILE_FACTS),
}


@dataclass(frozen=True)
class Manifest:
    """The files of one state of an index.

    Attributes:
        dim: Numbers per vector.
        precision: How vectors are stored, as in `PRECISIONS`.
        generation: Counts the states that were written.
        versions: Model versions in the order of their first use; rows refer to them by place.
        segments: The files of rows, in the order in which they were written.
        state: The file of what changes about rows.
        files: Size and SHA-256 of each file.
    """

    dim: int
    precision: str
    generation: int = 0
    versions: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    state: str = ""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Make this the current state of the index in a folder."""
        content = asdict(self)
        text = json.dumps({"format": FORMAT, "sha256": checksum_of(content), "content": content})
        write_text_atomically(folder / MANIFEST, f"{text}\n")
        try:
            sync_folder(folder)
        except OSError as error:
            raise WriteError(f"could not write {folder}: {reason_of(error)}") from error

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The current state of the index in a folder."""
        path = folder / MANIFEST
        try:
            found = read_json(path, {"format": Whole(), "sha256": str, "content": Each(object)})
            if found["format"] != FORMAT:
                raise ItemIndexError(
                    f"{folder} has index format {found['format']}, but this version reads format "
                    f"{FORMAT}: make the index again, or use a later version"
                )
            content: dict[str, Any] = found["content"]
            check(content, _CONTENT)
        except (FileNotFoundError, NotADirectoryError):
            raise ItemIndexError(
                f"{folder} holds no item index: there is no {MANIFEST}; make one with "
                "ItemIndex.create"
            ) from None
        except OSError as error:
            raise ItemIndexError(f"{path} cannot be read: {reason_of(error)}") from None
        except SchemaError as error:
            raise damaged(path, str(error)) from None
        if checksum_of(content) != found["sha256"]:
            raise damaged(path, "its checksum is not the one written")
        for name in content["files"]:
            if Path(name).name != name:
                raise damaged(path, f"it names a file {name!r:.60} outside of the folder")
        content["versions"] = tuple(content["versions"])
        content["segments"] = tuple(content["segments"])
        return cls(**content)

    def require_whole(self, folder: Path, verified: Manifest | None = None) -> None:
        """Compare the size and checksum of each file with those written.

        Args:
            folder: The folder of the index.
            verified: An earlier state whose files are not read again: files never change.
        """
        before = {} if verified is None else verified.files
        for name, facts in self.files.items():
            if before.get(name) == facts:
                continue
            try:
                flaw = flaw_of(folder / name, facts)
            except PermissionError as error:
                raise ItemIndexError(
                    f"{folder / name} cannot be read: {reason_of(error)}; let this user read it"
                ) from error
            if flaw:
                raise damaged(folder / name, flaw)

    def remove_others(self, folder: Path) -> None:
        """Remove files of earlier states, and what a crash has left; processes keep those open."""
        for path in folder.iterdir():
            if path.suffix in (".safetensors", ".partial") and path.name not in self.files:
                path.unlink(missing_ok=True)


def damaged(path: Path, fact: str) -> ItemIndexError:
    """The error for a file of an index that is not as it was written."""
    return ItemIndexError(f"{path} is damaged: {fact}; restore it, or make the index again")

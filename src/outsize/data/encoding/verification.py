"""Verifying the checksums of encoded files, once per change of a file.

A stamp file next to the folder records the size, times and inode of each file when its checksum was
last verified. A file with the same values is not read again. Bytes that change without changing
these, as on a failing disk, are only found with `verify`, which reads all files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from outsize.data.encoding.encoding_progress import Advance, encoding_progress
from outsize.data.encoding.manifest import (
    MANIFEST,
    load_manifest,
    require_made_by,
    require_named,
    values_file,
)
from outsize.data.encoding.recipe import Recipe
from outsize.errors import WriteError
from outsize.files import reason_of, write_text_atomically
from outsize.interrupts import check_stop
from outsize.json_files import Each, SchemaError, read_json, read_sealed

_BLOCK_BYTES = 1 << 20
_SCHEMA = Each({"sha256": str, "stat": [int]})


class VerifiedFolder(ABC):
    """A folder made from source files, which may be missing, outdated, damaged or valid.

    Args:
        path: The folder.
        sources: The `source_facts` of the files it must have been made from.
    """

    def __init__(self, path: Path, sources: list[dict[str, Any]]) -> None:
        self.path = path
        self._sources = sources
        self._stamp_file = path.with_name(f"{path.name}.verified.json")
        self._stamps: dict[str, Any] = {}

    @abstractmethod
    def _manifest(self) -> dict[str, Any]:
        """Its manifest, with `sources` and `files`; raises a `SchemaError` or an `OSError`."""

    def _require_consistent(self, name: str, manifest: Mapping[str, Any]) -> None:  # noqa: B027
        """Raise a `SchemaError` if a file whose checksum is right contradicts the manifest."""

    def is_verified(self) -> bool:
        """Whether it is complete, and no file has changed since it was verified."""
        try:
            manifest = self._manifest()
            return manifest["sources"] == self._sources and not self._unverified(manifest)
        except (OSError, SchemaError):
            return False

    def is_outdated(self) -> bool:
        """Whether it is missing, or its source files have changed since."""
        try:
            return not self.path.is_dir() or self._manifest()["sources"] != self._sources
        except (OSError, SchemaError):
            return False

    def flaw(self, *, everything: bool) -> str | None:
        """Verify files that have changed since the last time, or everything.

        Returns which file is damaged and how; `None` if none is.
        """
        name = MANIFEST
        try:
            manifest = self._manifest()
            files = manifest["files"]
            names = list(files) if everything else self._unverified(manifest)
            with encoding_progress(sum(files[name]["bytes"] for name in names)) as advance:
                for name in names:
                    self._compare(name, files[name], advance)
            for name in names:
                self._require_consistent(name, manifest)
        except SchemaError as error:
            return f"{name}: {error}"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name}: {reason_of(error)}"
        return None

    def stamp(self) -> None:
        """Write the stamp file, if it can be written."""
        with contextlib.suppress(WriteError):
            write_text_atomically(self._stamp_file, json.dumps(self._stamps))

    def stamp_as_written(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the stamp file for files that this process has just written and hashed."""
        self._stamps = {
            name: {"sha256": facts["sha256"], "stat": _stat(self.path / name)}
            for name, facts in files.items()
        }
        self.stamp()

    def _unverified(self, manifest: Mapping[str, Any]) -> list[str]:
        """The files that have changed since they were verified, or never were."""
        with contextlib.suppress(OSError, SchemaError):
            self._stamps = read_json(self._stamp_file, _SCHEMA)
        return [
            name
            for name, facts in manifest["files"].items()
            if not (self.path / name).exists()
            or self._stamps.get(name)
            != {"sha256": facts["sha256"], "stat": _stat(self.path / name)}
        ]

    def _compare(self, name: str, facts: Mapping[str, Any], advance: Advance) -> None:
        path = self.path / name
        self._stamps.pop(name, None)
        before = _stat(path)
        if before[0] != facts["bytes"]:
            raise SchemaError(f"it has {before[0]:,} bytes where {facts['bytes']:,} were written")
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                check_stop()
                digest.update(block)
                advance("verify", len(block))
        if digest.hexdigest() != facts["sha256"]:
            raise SchemaError("its checksum is not the one written")
        # Taken before reading the file: a change in the meantime has a later time.
        self._stamps[name] = {"sha256": facts["sha256"], "stat": before}


class SealedFolder(VerifiedFolder):
    """A folder whose manifest is sealed, and has the digest of the settings it was made with.

    Args:
        path: The folder.
        sources: Facts that change with the files it must have been made from.
        recipe: The digest of the settings it must have been made with.
    """

    schema: ClassVar[Mapping[str, Any]]

    def __init__(self, path: Path, sources: list[dict[str, Any]], recipe: str) -> None:
        super().__init__(path, sources)
        self._recipe = recipe

    def _manifest(self) -> dict[str, Any]:
        manifest = read_sealed(self.path / MANIFEST, self.schema)
        if manifest["recipe"] != self._recipe:
            raise SchemaError("it was made with other settings")
        return manifest


class EncodedFolder(VerifiedFolder):
    """A folder of encoded click data.

    Args:
        path: The folder.
        sources: The `source_facts` of the files it must have been encoded from.
        recipe: The recipe it must have been encoded with.
    """

    def __init__(self, path: Path, sources: list[dict[str, Any]], recipe: Recipe) -> None:
        super().__init__(path, sources)
        self._recipe = recipe

    def _manifest(self) -> dict[str, Any]:
        manifest = load_manifest(self.path)
        require_made_by(manifest, self._recipe)
        return manifest

    def _require_consistent(self, name: str, manifest: Mapping[str, Any]) -> None:
        for feature, num_ids in manifest["num_ids"].items():
            if name == values_file(feature):
                require_named(self.path / name, num_ids)


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]

"""The Python files of packages, on this machine or below given folders."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.data.texts.python_functions import module_name
from outsize.errors import DataError
from outsize.suggestions import closest

STANDARD_LIBRARY = "stdlib"
_SKIPPED = frozenset(("test", "tests", "testing", "idle_test", "site-packages", "__pycache__"))
_MAX_FILE_BYTES = 1 << 20  # larger files are generated


@dataclass(frozen=True)
class PackageFiles:
    """The Python files of some packages, without their tests.

    Attributes:
        packages: Top-level packages and modules; "stdlib" is the whole standard library. Empty for
            all.
        folders: Folders that hold packages; empty for those of this Python.
    """

    packages: tuple[str, ...]
    folders: tuple[str, ...]

    def roots(self) -> list[Path]:
        """The folders that hold packages, each once."""
        if self.folders:
            roots = [Path(folder).resolve() for folder in self.folders]
            for root in roots:
                if not root.is_dir():
                    raise DataError(f"{root}: no such folder; name folders that hold packages")
            return roots
        standard = Path(sysconfig.get_path("stdlib")).resolve()
        found = dict.fromkeys(Path(entry).resolve() for entry in sys.path if entry)
        installed = [path for path in found if path.name in ("site-packages", "dist-packages")]
        names = {STANDARD_LIBRARY, *sys.stdlib_module_names}
        wants_standard = not self.packages or not names.isdisjoint(self.packages)
        return [*installed, *([standard] if wants_standard else [])]

    def find(self) -> list[tuple[str, Path]]:
        """The module and the path of each file, in the order of modules."""
        roots = self.roots()
        files = sorted((module_name(path, root), path) for root in roots for path in self._in(root))
        self._require_found({name.partition(".")[0] for name, _ in files})
        return files

    def _in(self, root: Path) -> Iterator[Path]:
        """The Python files below a folder that are read."""
        is_standard = root == Path(sysconfig.get_path("stdlib")).resolve()
        wanted = set(self.packages)
        takes_all = not wanted or (is_standard and STANDARD_LIBRARY in wanted)
        for entry in sorted(root.iterdir()):
            name = entry.stem if entry.suffix == ".py" else entry.name
            if not takes_all and name not in wanted:
                continue
            if entry.is_dir() and name.isidentifier() and name not in _SKIPPED:
                yield from (path for path in entry.rglob("*.py") if _is_read(path, entry))
            elif entry.suffix == ".py" and _is_read(entry, root):
                yield entry

    def _require_found(self, packages: set[str]) -> None:
        for name in self.packages:
            if name != STANDARD_LIBRARY and name not in packages:
                there = sorted({entry.stem for root in self.roots() for entry in root.iterdir()})
                raise DataError(
                    f"packages names {name!r}, but no Python file of such a package is there."
                    f"{closest(name, there)}"
                )


def facts_of(files: list[tuple[str, Path]]) -> list[dict[str, Any]]:
    """Facts that change with any of many files: their paths, sizes and times."""
    digest, total, newest = hashlib.sha256(), 0, 0
    for module, path in files:
        try:
            stat = path.stat()
        except OSError:
            continue  # gone since
        digest.update(
            f"{module} {path} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="replace")
        )
        total, newest = total + stat.st_size, max(newest, stat.st_mtime_ns)
    head = digest.hexdigest()
    return [{"name": f"{len(files)} files", "bytes": total, "mtime_ns": newest, "head": head}]


def _is_read(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    if _SKIPPED.intersection(parts[:-1]) or parts[-1].startswith("test_"):
        return False
    try:
        return path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES
    except OSError:
        return False

"""Docstrings and functions of the Python packages that are installed on this machine."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_text
from outsize.data.encoding.encoding_progress import encoding_progress, say
from outsize.data.encoding.splits.base import cut, require_shares
from outsize.data.encoding.text_keys import text_keys
from outsize.data.texts.assembling import Judgements, assemble
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.function_folder import FunctionFolder, Table
from outsize.data.texts.python_files import STANDARD_LIBRARY, PackageFiles, facts_of
from outsize.data.texts.python_functions import PythonFunction, functions_of
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.errors import ConfigError, DataError, WriteError
from outsize.hashing import derive_seed, mix_bits, uniform_at
from outsize.interrupts import check_stop
from outsize.suggestions import few
from outsize.user_folders import user_cache

_COLUMNS = ("name", "summary", "source", "file", "line")
_FORMAT = 1  # of the folder of functions; part of its name
_MIN_WORDS = 3


@dataclass(frozen=True)
class PydocsConfig(TextDataConfig):
    """Pairs of a docstring and its function, of the Python packages installed on this machine.

    Files are parsed, never imported or run, and nothing is downloaded. The query is the first
    paragraph of a docstring, the item the function without its docstring, under its dotted name.
    Of functions with the same docstring or the same body, the first counts. Tests are left out.

    Attributes:
        packages: Top-level packages and modules to read, such as "numpy" or "heapq"; "stdlib" is
            the whole standard library. Empty for all that are installed, and the standard library.
        folders: Folders that hold packages; empty for those of this Python.
        max_functions: Functions to read at most, in the order of their names; 0 for no limit.
        max_chars: Characters per function at most; longer ones are cut.
        validation: Share of the functions in the validation set, by a hash of their names.
        test: Share in the test set.
        cache: Folder that keeps the parsed functions, so that they are parsed once; by default the
            user's cache folder, `~/.cache/outsize`.
        verify: Verify the checksum of the kept functions whenever they are opened, not only if
            their file has changed since it was last verified.
    """

    packages: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    max_functions: int = 0
    max_chars: int = 4000
    validation: float = 0.05
    test: float = 0.05
    cache: str = ""
    verify: bool = False

    def __post_init__(self) -> None:
        require_text(self, "packages", "folders")
        if "\0" in self.cache:
            raise ConfigError(f"cache must be the name of a folder, but got {self.cache!r}")
        require_at_least(self, 0, "max_functions")
        require_at_least(self, 1, "max_chars")
        require_shares(self.validation, self.test)
        if self.folders and STANDARD_LIBRARY in self.packages:
            raise ConfigError(
                f"packages names {STANDARD_LIBRARY!r}, which is not in the folders: leave it out, "
                "or name its folder"
            )

    def read(self) -> TextPairs:  # noqa: D102
        functions = self._functions()
        ids, summaries, sources, file, line = (column.combine_chunks() for column in functions)
        queries = Texts(ids, summaries)
        items = Texts(ids, sources, {"file": file, "line": line})
        rows = np.arange(len(ids))
        judged = Judgements(rows, rows, np.ones_like(rows), self._splits(ids))
        return assemble(queries, items, judged, "pydocs", self.validation, self.seed)

    def _functions(self) -> Table:
        """The functions, from the folder that keeps them; parsed first if need be."""
        found = PackageFiles(self.packages, self.folders)
        files = found.find()
        facts, recipe = facts_of(files), self._digest(found.roots())
        root = self._cache_folder()
        if root is None:
            return self._parse(files)
        folder = FunctionFolder(root / f"pydocs-{recipe[:16]}", facts, recipe)
        try:
            folder.ensure(lambda: self._parse(files), lambda: facts_of(found.find()), self.verify)
        except WriteError as error:
            if self.cache:
                raise
            say(f"parsed functions are not kept: {error}")
            return self._parse(files)
        return folder.load()

    def _cache_folder(self) -> Path | None:
        try:
            return Path(self.cache) if self.cache else user_cache()
        except RuntimeError:  # a user without a home
            return None

    def _digest(self, roots: list[Path]) -> str:
        """A digest of what the functions depend on, beside the files: settings and the grammar."""
        wanted = (self.packages, self.max_functions, self.max_chars, [str(root) for root in roots])
        content = f"{_FORMAT} {sys.version_info[:2]} {wanted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def _parse(self, files: list[tuple[str, Path]]) -> Table:
        """Parse files: one row per function, of which each name, docstring and body is new."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        seen: set[str] = set()
        for path, function in _functions_of(files):
            own = {function.name, f"summary {function.summary}", f"source {function.source}"}
            if own & seen:
                continue
            seen |= own
            source = function.source[: self.max_chars]
            row = (function.name, function.summary, source, str(path), function.line)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            if len(columns["name"]) == self.max_functions:
                break
        if not columns["name"]:
            roots = PackageFiles(self.packages, self.folders).roots()
            raise DataError(
                f"no function with a docstring was found in {few(map(str, roots))}: name other "
                "packages or folders"
            )
        kinds = {name: pa.large_string() for name in _COLUMNS} | {"line": pa.int64()}
        return pa.table({name: pa.array(columns[name], kinds[name]) for name in _COLUMNS})

    def _splits(self, ids: object) -> NDArray[np.int8]:
        keys = torch.from_numpy(text_keys(ids).view(np.int64)) + derive_seed(self.seed, "split")
        drawn = uniform_at(mix_bits(keys), torch.float64).numpy()
        return cut(drawn, (1 - self.validation - self.test, 1 - self.test))


def _functions_of(files: list[tuple[str, Path]]) -> Iterator[tuple[Path, PythonFunction]]:
    """The functions of files, each with its file."""
    sizes = [facts_of([file])[0]["bytes"] for file in files]
    with encoding_progress(sum(sizes), "parse") as advance:
        for (module, path), size in zip(files, sizes, strict=True):
            check_stop()
            advance("parse", size)
            try:
                content = path.read_bytes()
            except OSError:
                continue  # of another user, or gone since
            for function in functions_of(content, module):
                if len(function.summary.split()) >= _MIN_WORDS:
                    yield path, function

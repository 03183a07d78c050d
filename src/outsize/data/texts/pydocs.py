"""Docstrings and functions of the Python packages that are installed on this machine."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_text
from outsize.data.encoding.encoding_progress import encoding_progress
from outsize.data.encoding.splits.base import cut, require_shares
from outsize.data.encoding.text_keys import text_keys
from outsize.data.texts.assembling import Judgements, assemble
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.python_functions import PythonFunction, functions_of, module_name
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.errors import ConfigError, DataError
from outsize.hashing import derive_seed, mix_bits, uniform_at
from outsize.interrupts import check_stop
from outsize.suggestions import closest, few

STANDARD_LIBRARY = "stdlib"
_SKIPPED = frozenset(("test", "tests", "testing", "idle_test", "site-packages", "__pycache__"))
_MAX_FILE_BYTES = 1 << 20  # larger files are generated
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
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the shuffling, and of the split.
    """

    packages: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    max_functions: int = 0
    max_chars: int = 4000
    validation: float = 0.05
    test: float = 0.05
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_text(self, "packages", "folders")
        require_at_least(self, 0, "max_functions")
        require_at_least(self, 1, "max_chars")
        require_shares(self.validation, self.test)
        if self.folders and STANDARD_LIBRARY in self.packages:
            raise ConfigError(
                f"packages names {STANDARD_LIBRARY!r}, which is not in the folders: leave it out, "
                "or name its folder"
            )

    def read(self) -> TextPairs:  # noqa: D102
        import pyarrow as pa

        names, summaries, sources, files, lines = [], [], [], [], []
        seen: set[str] = set()
        for path, function in self._functions():
            own = {function.name, f"summary {function.summary}", f"source {function.source}"}
            if own & seen:
                continue
            seen |= own
            names.append(function.name)
            summaries.append(function.summary)
            sources.append(function.source[: self.max_chars])
            files.append(str(path))
            lines.append(function.line)
            if len(names) == self.max_functions:
                break
        if not names:
            raise DataError(
                f"no function with a docstring was found in {few(map(str, self._roots()))}: name "
                "other packages or folders"
            )
        ids, kind = pa.array(names, pa.large_string()), pa.large_string()
        facts = {"file": pa.array(files, kind), "line": pa.array(lines, pa.int64())}
        queries = Texts(ids, pa.array(summaries, kind))
        items = Texts(ids, pa.array(sources, kind), facts)
        rows = np.arange(len(names))
        judged = Judgements(rows, rows, np.ones_like(rows), self._splits(ids))
        return assemble(queries, items, judged, "pydocs", self.validation, self.seed)

    def _splits(self, ids: object) -> NDArray[np.int8]:
        keys = torch.from_numpy(text_keys(ids).view(np.int64)) + derive_seed(self.seed, "split")
        drawn = uniform_at(mix_bits(keys), torch.float64).numpy()
        return cut(drawn, (1 - self.validation - self.test, 1 - self.test))

    def _functions(self) -> Iterator[tuple[Path, PythonFunction]]:
        """The functions of all files, in the order of their modules, with their files."""
        files = sorted(
            (module_name(path, root), path) for root in self._roots() for path in self._files(root)
        )
        self._require_found({name.partition(".")[0] for name, _ in files})
        with encoding_progress(sum(path.stat().st_size for _, path in files), "parse") as advance:
            for module, path in files:
                check_stop()
                advance("parse", path.stat().st_size)
                try:
                    content = path.read_bytes()
                except OSError:
                    continue  # of another user, or gone since
                for function in functions_of(content, module):
                    if len(function.summary.split()) >= _MIN_WORDS:
                        yield path, function

    def _roots(self) -> list[Path]:
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

    def _files(self, root: Path) -> Iterator[Path]:
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
                there = sorted({entry.stem for root in self._roots() for entry in root.iterdir()})
                raise DataError(
                    f"packages names {name!r}, but no Python file of such a package is there."
                    f"{closest(name, there)}"
                )


def _is_read(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    if _SKIPPED.intersection(parts[:-1]) or parts[-1].startswith("test_"):
        return False
    try:
        return path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES
    except OSError:
        return False

"""Parsed functions in a folder on disk, so that files are parsed once.

The folder is made as that of click data is: under a temporary name, renamed when complete, verified
by checksums, made again when a Python file changes, and by one process while others wait.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from outsize.data.encoding.encoded_folder import ensure_folder
from outsize.data.encoding.file_facts import file_facts
from outsize.data.encoding.manifest import MANIFEST
from outsize.data.encoding.verification import SealedFolder
from outsize.errors import DataError
from outsize.files import whole_folder, write_text_atomically
from outsize.json_files import FILE_FACTS, SchemaError, Whole, sealed

_FUNCTIONS = "functions.arrow"
_SCHEMA = {
    "recipe": str,
    "sources": [{"name": str, "bytes": Whole(), "mtime_ns": int, "head": str}],
    "files": {_FUNCTIONS: FILE_FACTS},
}

Table = Any  # a pyarrow table; pyarrow is imported where it is used
Facts = list[dict[str, Any]]


class FunctionFolder(SealedFolder):
    """A folder that holds the functions of Python files as one Arrow table."""

    schema = _SCHEMA

    def ensure(self, parse: Callable[[], Table], facts: Callable[[], Facts], verify: bool) -> None:
        """Make the folder if it is missing, outdated or damaged.

        Args:
            parse: Parses the files.
            facts: The facts of the files as they are now.
            verify: Verify all checksums, whether or not a file has changed.
        """
        ensure_folder(self, lambda: self._make(parse, facts), verify)

    def load(self) -> Table:
        """The functions, memory-mapped."""
        import pyarrow as pa

        try:
            self._manifest()
            return pa.ipc.open_file(pa.memory_map(str(self.path / _FUNCTIONS))).read_all()
        except (OSError, SchemaError, pa.ArrowException) as error:
            raise DataError(
                f"{self.path} is damaged: {error}; remove the folder to make it again"
            ) from None

    def _make(self, parse: Callable[[], Table], facts: Callable[[], Facts]) -> dict[str, Any]:
        import pyarrow as pa

        table = parse()
        if facts() != self._sources:
            raise DataError("a Python file changed while it was read: wait until it is complete")
        with whole_folder(self.path, self.path.with_name(f"{self.path.name}.partial")) as partial:
            path = partial / _FUNCTIONS
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            manifest = {
                "recipe": self._recipe,
                "sources": self._sources,
                "files": {_FUNCTIONS: file_facts(partial)[_FUNCTIONS]},
            }
            write_text_atomically(partial / MANIFEST, sealed(manifest))
            shutil.rmtree(self.path, ignore_errors=True)  # an older one
        return manifest

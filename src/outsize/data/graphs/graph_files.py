"""Graphs that are read from files once, and then from a folder of arrays.

The folder is made as that of click data is: under a temporary name, renamed when complete, verified
by checksums, made again when its source changes, and by one process while others wait. If nothing
can be written next to the source files and no other folder is named, the graph is built in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outsize.data.encoding.encoded_folder import CACHE_FOLDER, ensure_folder, replace_folder
from outsize.data.encoding.encoding_progress import say
from outsize.data.encoding.file_facts import file_facts
from outsize.data.encoding.manifest import MANIFEST
from outsize.data.encoding.sources import source_facts
from outsize.data.encoding.verification import SealedFolder
from outsize.data.graphs import stored
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph, assemble, with_bags
from outsize.data.graphs.csr import Duplicates, EdgeRules, SelfLoops
from outsize.data.graphs.graph import GraphData, GraphDataConfig
from outsize.data.graphs.links import LinkSplit
from outsize.errors import ConfigError, DataError
from outsize.files import make_partial, sync_folder, write_text_atomically
from outsize.json_files import FILE_FACTS, Each, SchemaError, Whole, sealed

_FORMAT = 1  # of the folder; part of its name
_SCHEMA = {
    **stored.SCHEMA,
    "recipe": str,
    "sources": [{"name": str, "bytes": Whole(), "mtime_ns": int, "head": str}],
    "fingerprint": str,
    "files": Each(FILE_FACTS),
}


@dataclass(frozen=True, kw_only=True)
class GraphFilesConfig(GraphDataConfig):
    """The settings shared by all graphs that are read from files.

    Attributes:
        directed: Whether edges lead from their source to their target only. By default they lead
            in both directions; between two node types, the way back is a relation of its own,
            `rev_…`.
        duplicates: "merge" keeps one of several edges with the same source and target; "keep"
            keeps all.
        self_loops: "drop" leaves out edges from a node to itself; "keep" keeps them.
        bags: Relations between two node types that become an attribute of the labelled nodes, or
            else of their sources: a node's bag holds its neighbours, which have rows of a table
            but no neighbours of their own.
        links: Edges to hold out for link prediction; by default none.
        cache: Folder for encoded data; by default `.outsize-cache` next to the first file.
        verify: Verify the checksums of all encoded files whenever they are opened, not only of
            files that have changed since they were last verified.
    """

    directed: bool = False
    duplicates: Duplicates = "merge"
    self_loops: SelfLoops = "drop"
    bags: tuple[str, ...] = ()
    links: LinkSplit | None = None
    cache: str = ""
    verify: bool = False

    def __post_init__(self) -> None:
        if "\0" in self.cache:
            raise ConfigError(f"cache must be the name of a folder, but got {self.cache!r}")

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that the graph is read from, which all exist."""

    @abstractmethod
    def read(self, arrays: ArrayFiles) -> RawGraph:
        """Read the files.

        Args:
            arrays: Where to keep edges while the graph is built.
        """

    def build(self) -> GraphData:  # noqa: D102
        files = self.files()
        facts = source_facts(files)
        root = Path(self.cache) if self.cache else files[0].parent / CACHE_FOLDER
        final = root / f"graph-{files[0].name.split('.')[0]}-{self._digest()[:16]}"
        folder = _GraphFolder(final, facts, self._digest())
        if not self.cache and not _is_writable(root) and folder.is_outdated():
            say(f"{root} cannot be written: the graph is built in memory; name a folder as cache")
            data = self._assemble(ArrayFiles(None))
            return replace(data, fingerprint=stored.fingerprint_in_memory(data))
        ensure_folder(folder, lambda: self._make(files, facts, final), self.verify)
        return folder.load()

    def memory_needs(self) -> dict[str, int]:  # noqa: D102
        return {}  # large arrays are memory-mapped files

    def _assemble(self, arrays: ArrayFiles) -> GraphData:
        rules = EdgeRules(not self.directed, self.duplicates, self.self_loops)
        raw = with_bags(self.read(arrays), self.bags) if self.bags else self.read(arrays)
        return assemble(raw, rules, self.links, arrays)

    def _make(
        self, files: list[Path], facts: list[dict[str, Any]], final: Path
    ) -> Mapping[str, Any]:
        partial = final.with_name(f"{final.name}.partial")
        make_partial(partial)
        try:
            arrays = ArrayFiles(partial)
            description = stored.write_arrays(self._assemble(arrays), arrays, partial)
            if source_facts(files) != facts:
                raise DataError(f"{files[0]} changed while it was read: wait until it is complete")
            written = file_facts(partial)
            manifest = {
                "recipe": self._digest(),
                "sources": facts,
                "fingerprint": stored.fingerprint_of_files(description, written),
                **description,
                "files": written,
            }
            write_text_atomically(partial / MANIFEST, sealed(manifest))
            sync_folder(partial)
            replace_folder(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return manifest

    def _digest(self) -> str:
        settings = repr(replace(self, cache="", verify=False))
        return hashlib.sha256(f"{_FORMAT} {settings}".encode()).hexdigest()


class _GraphFolder(SealedFolder):
    """A folder that holds a graph."""

    schema = _SCHEMA

    def load(self) -> GraphData:
        """The graph, memory-mapped."""
        try:
            manifest = self._manifest()
            return stored.load_graph(self.path, manifest, manifest["fingerprint"])
        except (OSError, SchemaError, ValueError) as error:
            raise DataError(
                f"{self.path} is damaged: {error}; remove the folder to make it again"
            ) from None

    def _manifest(self) -> dict[str, Any]:
        manifest = super()._manifest()
        stored.require_consistent(manifest)
        return manifest


def _is_writable(folder: Path) -> bool:
    """Whether files can be written to a folder, which may not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)

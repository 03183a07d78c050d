"""One state of an item index: its rows, by number and by key.

Rows are numbered over all segments, in the order in which they were written. States do not change,
but for the counts of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.search.manifest import Manifest
from outsize.search.merging import merged
from outsize.search.segments import Rows, Segment


@dataclass(frozen=True)
class RowFacts:
    """Facts about live rows.

    Attributes:
        rows: Their numbers, ascending.
        versions: The version of each, as a place in `IndexState.versions`.
        spaces: The version whose vectors it is comparable with.
        asked: How often each was among the answers.
    """

    rows: Int64[Tensor, " n"]
    versions: Int32[Tensor, " n"]
    spaces: Int32[Tensor, " n"]
    asked: Int64[Tensor, " n"]


@dataclass(frozen=True)
class IndexState:
    """The rows of an index.

    Attributes:
        manifest: The files they come from.
        segments: The rows.
    """

    manifest: Manifest
    segments: Sequence[Segment]

    def __len__(self) -> int:
        return sum(segment.num_live for segment in self.segments)

    @property
    def versions(self) -> tuple[str, ...]:
        """Model versions in the order of their first use."""
        return self.manifest.versions

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The live row of each key."""
        found: dict[str, int] = {}
        for segment, first in zip(self.segments, self._firsts, strict=True):
            keys = segment.rows.keys
            found.update((keys[row], first + row) for row in segment.live_rows().tolist())
        return found

    def find(self, keys: Sequence[str]) -> Int64[Tensor, " n"]:
        """The rows of keys, all of which must be known."""
        try:
            return torch.tensor([self.row_of[key] for key in keys], dtype=torch.int64)
        except KeyError as error:
            raise DataError(f"the index has no item {error.args[0]!r:.80}") from None

    def keys_of(self, rows: Int64[Tensor, " n"]) -> list[str]:
        """The keys of rows."""
        which = np.searchsorted(self._firsts, rows.numpy(), side="right") - 1
        return [
            self.segments[s].rows.keys[row - self._firsts[s]]
            for s, row in zip(which.tolist(), rows.tolist(), strict=True)
        ]

    def facts(self) -> RowFacts:
        """Facts about all live rows."""
        parts = [
            (live + first, s.rows.versions[live], s.rows.spaces[live], s.asked[live])
            for s, first in zip(self.segments, self._firsts, strict=True)
            for live in [s.live_rows()]
        ]
        if not parts:
            none, no_place = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
            return RowFacts(none, no_place, no_place, none)
        return RowFacts(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def facts_of(self, rows: Int64[Tensor, " n"]) -> RowFacts:
        """Facts about some rows, in their order."""
        versions, spaces = (torch.zeros(len(rows), dtype=torch.int32) for _ in range(2))
        asked = torch.zeros(len(rows), dtype=torch.int64)
        for segment, lines, inside in self._by_segment(rows):
            versions[lines] = segment.rows.versions[inside]
            spaces[lines] = segment.rows.spaces[inside]
            asked[lines] = segment.asked[inside]
        return RowFacts(rows, versions, spaces, asked)

    def embeddings(self, rows: Int64[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
        """The vectors of rows."""
        found = torch.zeros(len(rows), self.manifest.dim)
        for segment, lines, inside in self._by_segment(rows):
            found[lines] = segment.rows.embeddings(inside)
        return found

    def count(self, rows: Int64[Tensor, " n"]) -> None:
        """Count rows as asked for, once per occurrence."""
        for segment, _, inside in self._by_segment(rows):
            segment.asked.index_add_(0, inside, torch.ones_like(inside))

    def without(self, rows: Int64[Tensor, " n"]) -> list[Segment]:
        """The segments with some rows dead; not merged."""
        dead = {id(segment): inside for segment, _, inside in self._by_segment(rows)}
        return [
            segment.without(dead[id(segment)]) if id(segment) in dead else segment
            for segment in self.segments
        ]

    def written(
        self,
        keys: Sequence[str],
        vectors: Float32[Tensor, "n dim"],
        versions: Int32[Tensor, " n"],
        spaces: Int32[Tensor, " n"],
    ) -> list[Segment]:
        """The segments after rows were added or replaced, merged."""
        known = [line for line, key in enumerate(keys) if key in self.row_of]
        old = self.find([keys[line] for line in known])
        asked = torch.zeros(len(keys), dtype=torch.int64)
        asked[known] = self.facts_of(old).asked
        rows = Rows.of(keys, vectors, self.manifest.precision, versions, spaces)
        new = Segment("", rows, torch.ones(len(keys), dtype=torch.bool), asked)
        return merged([*self.without(old), new])

    @cached_property
    def _firsts(self) -> list[int]:
        """The number of the first row of each segment."""
        sizes = [len(segment.rows) for segment in self.segments]
        return np.cumsum([0, *sizes[:-1]]).tolist() if sizes else []

    def _by_segment(self, rows: Int64[Tensor, " n"]) -> list[tuple[Segment, Tensor, Tensor]]:
        """Segments, the lines of `rows` that are in each, and their rows within it."""
        which = torch.searchsorted(torch.tensor(self._firsts), rows, right=True) - 1
        found = []
        for number in which.unique().tolist():
            lines = (which == number).nonzero().flatten()
            found.append((self.segments[number], lines, rows[lines] - self._firsts[number]))
        return found


def place_of(versions: tuple[str, ...], version: str) -> tuple[tuple[str, ...], int]:
    """The list of versions with one in it, and its place."""
    if not isinstance(version, str):  # the manifest could not be read again
        raise DataError(f"a version must be text, but got {version!r:.80}: write it in quotes")
    if version not in versions:
        versions = (*versions, version)
    return versions, versions.index(version)

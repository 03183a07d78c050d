"""Rows of an item index: immutable segments on disk, and what changes about them.

A segment is a safetensors file of rows in the order in which they were written. It never changes: a
row that is rewritten or deleted is marked as dead, and its key may have a row in a later segment.
Which rows are live, and how often each was among the answers, is in one small file per state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int32, Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outsize.files import write_tensors
from outsize.kernels.softmax.draws import ScoredItems
from outsize.negatives.cache.precision import PRECISIONS, from_stored, has_scales, to_stored
from outsize.search.manifest import Manifest, damaged


@dataclass(frozen=True)
class Rows:
    """Rows of a segment, or to become one.

    Attributes:
        vectors: As they are stored.
        scales: For int8 vectors, one number per row.
        versions: The model that encoded each row, as a place in the manifest's list.
        spaces: The model whose vectors each row is comparable with: its version, or a later one if
            the vector was mapped.
        key_bytes: The UTF-8 bytes of all keys.
        key_ends: The end of each key.
    """

    vectors: Tensor
    scales: Float32[Tensor, " n"] | None
    versions: Int32[Tensor, " n"]
    spaces: Int32[Tensor, " n"]
    key_bytes: Tensor
    key_ends: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.versions)

    @classmethod
    def of(
        cls,
        keys: Sequence[str],
        vectors: Float32[Tensor, "n dim"],
        precision: str,
        versions: Int32[Tensor, " n"],
        spaces: Int32[Tensor, " n"],
    ) -> Rows:
        """Rows of keys and vectors, rounded to a precision."""
        stored, scales = to_stored(vectors, PRECISIONS[precision])
        encoded = [key.encode() for key in keys]
        ends = np.cumsum([len(key) for key in encoded], dtype=np.int64)
        data = np.frombuffer(b"".join(encoded), np.uint8).copy()
        return cls(stored, scales, versions, spaces, torch.from_numpy(data), torch.from_numpy(ends))

    @cached_property
    def keys(self) -> list[str]:
        """The keys as text."""
        text, places = self.key_bytes.numpy().tobytes(), [0, *self.key_ends.tolist()]
        return [text[a:b].decode() for a, b in pairwise(places)]

    def embeddings(self, rows: Int64[Tensor, " m"]) -> Float32[Tensor, "m dim"]:
        """The vectors of some rows as float32."""
        return from_stored(self.vectors[rows], None if self.scales is None else self.scales[rows])

    def take(self, rows: Int64[Tensor, " m"]) -> Rows:
        """Some rows, in the given order."""
        ends = self.key_ends
        starts = torch.cat((ends.new_zeros(1), ends[:-1]))
        sizes = (ends - starts)[rows]
        new_ends = sizes.cumsum(0)
        inside = torch.arange(int(sizes.sum()))
        places = inside + torch.repeat_interleave(starts[rows] - (new_ends - sizes), sizes)
        return Rows(
            self.vectors[rows],
            None if self.scales is None else self.scales[rows],
            self.versions[rows],
            self.spaces[rows],
            self.key_bytes[places],
            new_ends,
        )

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """The rows of several parts, one after the other."""
        shifts = np.cumsum([0, *(len(part.key_bytes) for part in parts[:-1])]).tolist()
        scales = [part.scales for part in parts if part.scales is not None]
        return Rows(
            torch.cat([part.vectors for part in parts]),
            torch.cat(scales) if scales else None,
            torch.cat([part.versions for part in parts]),
            torch.cat([part.spaces for part in parts]),
            torch.cat([part.key_bytes for part in parts]),
            torch.cat([part.key_ends + shift for part, shift in zip(parts, shifts, strict=True)]),
        )

    def write(self, path: Path) -> dict[str, Any]:
        """Write the rows to a file, and return its size and SHA-256."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        # Larger numbers first: then each tensor starts at a multiple of the size of its numbers.
        names = sorted(tensors, key=lambda name: -tensors[name].element_size())
        return write_tensors(path, {name: tensors[name] for name in names})

    @classmethod
    def open(cls, path: Path, dim: int, precision: str) -> Rows:
        """The rows of a file; vectors stay memory-mapped until they are read."""
        dtype = PRECISIONS[precision]
        wanted = {"vectors", "versions", "spaces", "key_bytes", "key_ends"}
        wanted |= {"scales"} if has_scales(dtype) else set()
        try:
            with safe_open(str(path), framework="pt") as file:
                if set(file.keys()) != wanted:
                    raise damaged(path, f"it does not hold {', '.join(sorted(wanted))}")
                tensors = {name: file.get_tensor(name) for name in sorted(wanted)}
        except (SafetensorError, OSError) as error:
            raise damaged(path, " ".join(str(error).split())[:200]) from None
        rows = cls(**{"scales": None, **tensors})
        sizes = {len(tensors[name]) for name in wanted - {"key_bytes"}}
        if rows.vectors.dtype != dtype or rows.vectors.shape[1:] != (dim,) or len(sizes) != 1:
            shape = "×".join(map(str, rows.vectors.shape))
            raise damaged(path, f"{shape} numbers of {rows.vectors.dtype} in an index of dim {dim}")
        return rows


@dataclass(frozen=True)
class Segment:
    """A file of rows, and what changes about them.

    Attributes:
        name: The file.
        rows: Its rows.
        is_live: Whether each row is still the one of its key.
        asked: How often each row was among the answers.
    """

    name: str
    rows: Rows
    is_live: Bool[Tensor, " n"]
    asked: Int64[Tensor, " n"]

    @cached_property
    def num_live(self) -> int:
        """Rows that are live."""
        return int(self.is_live.sum())

    @cached_property
    def scored(self) -> ScoredItems:
        """The live rows as items to search."""
        weights = torch.where(self.is_live, 0.0, -torch.inf)
        return ScoredItems(self.rows.vectors, self.rows.scales, weights)

    def live_rows(self) -> Int64[Tensor, " m"]:
        """The rows that are live, in order."""
        return self.is_live.nonzero().flatten()

    def without(self, rows: Int64[Tensor, " m"]) -> Segment:
        """The segment with some more rows dead."""
        is_live = self.is_live.clone()
        is_live[rows] = False
        return Segment(self.name, self.rows, is_live, self.asked)


def write_state(path: Path, segments: Sequence[Segment]) -> dict[str, Any]:
    """Write what changes about the rows of segments, and return the file's size and SHA-256."""
    asked = {f"{segment.name}.asked": segment.asked for segment in segments}
    is_live = {f"{segment.name}.is_live": segment.is_live for segment in segments}
    return write_tensors(path, {**asked, **is_live})


def open_segments(folder: Path, manifest: Manifest) -> list[Segment]:
    """The segments of a state, with what changes about their rows."""
    if not manifest.segments:
        return []
    path, found = folder / manifest.state, []
    try:
        with safe_open(str(path), framework="pt") as file:
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged(path, " ".join(str(error).split())[:200]) from None
    for name in manifest.segments:
        rows = Rows.open(folder / name, manifest.dim, manifest.precision)
        is_live, asked = state.get(f"{name}.is_live"), state.get(f"{name}.asked")
        if is_live is None or asked is None or {len(is_live), len(asked)} != {len(rows)}:
            raise damaged(path, f"it does not fit {name}")
        found.append(Segment(name, rows, is_live, asked))
    return found

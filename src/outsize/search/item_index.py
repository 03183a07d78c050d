"""An item index on disk whose rows know which model encoded them.

A model that keeps learning makes the vectors it has written stale. Continuous learning cannot pay
for encoding a whole corpus again with each version of a model, so rows of several versions stay in
one index: a search compares them with queries of the current model, which is approximate, and
`refresh` encodes again what is most asked for (`docs/search.md` says what that costs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int32
from numpy.typing import NDArray
from torch import Tensor

from outsize.errors import ConfigError, DataError, ItemIndexError, WriteError
from outsize.files import reason_of
from outsize.negatives.cache.precision import PRECISIONS
from outsize.search.index_folder import IndexFolder
from outsize.search.index_state import IndexState, place_of
from outsize.search.manifest import MANIFEST, Manifest
from outsize.search.merging import merged
from outsize.search.ranking import best_rows
from outsize.search.refreshing import RefreshReport, refresh_index
from outsize.search.repairing import Encode, Repair, repaired
from outsize.search.segments import Segment
from outsize.text_bytes import is_text


@dataclass(frozen=True)
class FoundRows:
    """The best items of each query, best first.

    Attributes:
        keys: Fewer than asked for where there are no more items.
        scores: Their scores, `(num_queries, k)`; −inf where there are no more items.
        versions: The version of the model that encoded each item.
        num_repaired: Items that were encoded again for this answer.
    """

    keys: list[list[str]]
    scores: NDArray[np.float32]
    versions: list[list[str]]
    num_repaired: int = 0


class ItemIndex:
    """Vectors of items by key, on disk, each with the version of the model that encoded it.

    Made by `create` and `open`. Each call that writes is one transaction: after a crash, the index
    has all of it or nothing. One process writes at a time. Any number read, and keep the state that
    they opened until they `reload`.
    """

    def __init__(self, folder: IndexFolder, state: IndexState) -> None:
        self._folder = folder
        self._state = state
        self._lock: contextlib.ExitStack | None = None
        self._has_counted = False

    @classmethod
    def create(cls, path: str | Path, dim: int, precision: str = "float32") -> ItemIndex:
        """Make an empty index in a new or empty folder, opened for writing.

        Args:
            path: The folder.
            dim: Numbers per vector.
            precision: How vectors are stored: "float32", "bfloat16", or "int8" with a scale per
                item.
        """
        folder = Path(path)
        if not isinstance(dim, int) or dim < 1:
            raise ConfigError(f"dim must be an int >= 1, but got {dim!r}")
        if precision not in PRECISIONS:
            raise ConfigError(
                f"precision must be one of {', '.join(PRECISIONS)}, but got {precision!r}"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [entry.name for entry in folder.iterdir()]
        except OSError as error:
            raise WriteError(f"cannot make {folder}: {reason_of(error)}") from None
        # A crash in the middle of `create` leaves a lock and a part of a manifest.
        if set(others) - {".lock", f"{MANIFEST}.partial"}:
            what = "already holds an index" if MANIFEST in others else "is not empty"
            raise ConfigError(f"{folder} {what}: open it, or choose another folder")
        with IndexFolder(folder).lock():
            if (folder / MANIFEST).exists():  # made by another process since
                raise ConfigError(f"{folder} already holds an index: open it")
            Manifest(dim, precision).write(folder)
        return cls.open(folder, writable=True)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        writable: bool = False,
        dim: int | None = None,
        verify: bool = True,
    ) -> ItemIndex:
        """Open an index; its vectors are memory-mapped.

        Args:
            path: The folder.
            writable: Lock it for writing.
            dim: Refuse an index of another dim.
            verify: Compare the checksums of all files, which reads them once; otherwise only their
                form is checked.
        """
        folder = IndexFolder(Path(path))
        with contextlib.ExitStack() as stack:
            if writable:
                stack.enter_context(folder.lock())
            manifest, segments = folder.read(verify)
            if dim is not None and manifest.dim != dim:
                raise ItemIndexError(
                    f"{path} is an index of dim {manifest.dim}, but vectors have dim {dim}: make "
                    "another index for this model"
                )
            index = cls(folder, IndexState(manifest, segments))
            index._lock = stack.pop_all() if writable else None
        return index

    def close(self) -> None:
        """Save what was counted and give up the lock; a reader has nothing to close."""
        if self._lock is not None:
            try:
                with self._lock:
                    self.save_counts()
            finally:
                self._lock = None

    def __enter__(self) -> ItemIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def dim(self) -> int:
        """Numbers per vector."""
        return self._state.manifest.dim

    @property
    def precision(self) -> str:
        """How vectors are stored."""
        return self._state.manifest.precision

    @property
    def is_writable(self) -> bool:
        """Whether this process may write."""
        return self._lock is not None

    @property
    def state(self) -> IndexState:
        """The rows as they are now."""
        return self._state

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: object) -> bool:
        return key in self._state.row_of

    def keys(self) -> list[str]:
        """The keys of all items, in the order in which their rows were written."""
        return self._state.keys_of(self._state.facts().rows)

    def versions(self) -> dict[str, int]:
        """The number of items of each version, the oldest version first."""
        found, counts = self._state.facts().versions.unique(return_counts=True)
        names = self._state.versions
        return {names[v]: n for v, n in zip(found.tolist(), counts.tolist(), strict=True)}

    def asked(self, keys: Sequence[str]) -> list[int]:
        """How often each item was among the answers of searches that counted."""
        counts: list[int] = self._state.facts_of(self._state.find(keys)).asked.tolist()
        return counts

    def versions_of(self, keys: Sequence[str]) -> list[str]:
        """The version that encoded each item."""
        places = self._state.facts_of(self._state.find(keys)).versions
        return [self._state.versions[place] for place in places.tolist()]

    def read(self, keys: Sequence[str]) -> Float32[Tensor, "n dim"]:
        """The vectors of items."""
        return self._state.embeddings(self._state.find(keys))

    def write(self, keys: Sequence[str], vectors: Float32[Tensor, "n dim"], version: str) -> None:
        """Add items, or replace those whose keys are known, in one transaction.

        Counts of replaced items are kept.

        Args:
            keys: Distinct keys of items.
            vectors: Their vectors.
            version: The model that encoded them.
        """
        versions, place = place_of(self._state.versions, version)
        places = torch.full((len(keys),), place, dtype=torch.int32)
        self._write(keys, vectors, versions, places, places)

    def move(self, keys: Sequence[str], vectors: Float32[Tensor, "n dim"], space: str) -> None:
        """Replace vectors by ones that are comparable with those of another version.

        The items remain of the version that encoded them, and so are still refreshed later.

        Args:
            keys: Distinct keys of items of the index.
            vectors: Their vectors.
            space: The version that the vectors are comparable with.
        """
        versions, place = place_of(self._state.versions, space)
        own = self._state.facts_of(self._state.find(keys)).versions
        self._write(keys, vectors, versions, own, torch.full_like(own, place))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete items, in one transaction."""
        self._require_writable()
        _require_distinct(keys)
        rows = self._state.find(keys)
        if len(rows):
            self._commit(merged(self._state.without(rows)), self._state.versions)

    def search(
        self,
        queries: Float32[Tensor, "q dim"],
        k: int = 10,
        *,
        repair: Repair | None = None,
        count: bool = True,
    ) -> FoundRows:
        """The items with the highest inner products, exactly.

        Of equal scores, the item that was written first comes first.

        Args:
            queries: Vectors of queries, encoded by the current model.
            k: Items per query.
            repair: Encode candidates of older versions again, and rank candidates by the new
                vectors. A writable index keeps these.
            count: Count the answers, for `refresh`. A writer saves counts with its next write.
        """
        if k < 1:
            raise ConfigError(f"k must be >= 1, but got {k}")
        self._require_dim(queries)
        queries = queries.detach().float().cpu()
        num = k if repair is None else k * repair.factor
        rows, scores = best_rows(self._state.segments, queries, num)
        if repair is None:
            return self._found(rows, scores, count)
        found = repaired(self._state, queries, (rows, scores), k, repair)
        answer = self._found(found.rows, found.scores, count)
        new = set(found.keys)
        if new and self.is_writable:
            self.write(found.keys, found.vectors, repair.version)
        versions = [
            [repair.version if key in new else old for key, old in zip(*line, strict=True)]
            for line in zip(answer.keys, answer.versions, strict=True)
        ]
        return replace(answer, versions=versions, num_repaired=len(new))

    def refresh(
        self,
        encode: Encode,
        version: str,
        budget: int,
        *,
        order: str = "asked",
        batch_size: int = 4096,
        correct: bool = False,
        seed: int = 0,
    ) -> RefreshReport:
        """Encode items again that other versions wrote, a batch per transaction.

        Args:
            encode: Keys of items → their vectors by the current model.
            version: Its version.
            budget: The most items to encode.
            order: "asked" takes the most asked first and then the oldest, "oldest" the oldest, and
                "random" any.
            batch_size: Items per call of `encode` and per transaction.
            correct: Fit a linear map from old to new vectors of the refreshed items, and apply it
                to the others where that brings held-out vectors closer (see `fit_map`). Their rows
                are rewritten, but not encoded.
            seed: For the order "random".
        """
        self._require_writable()
        return refresh_index(self, encode, version, budget, order, batch_size, correct, seed)

    def save_counts(self) -> None:
        """Write how often items were asked for; other writes do this too."""
        self._require_writable()
        if self._has_counted:
            self._commit(self._state.segments, self._state.versions)

    def reload(self) -> None:
        """Read the newest state that another process has written; a writer has it already."""
        before = self._state.manifest
        if self.is_writable or Manifest.read(self._folder.path) == before:
            return
        manifest, segments = self._folder.read(verify=True, verified=before)
        if (manifest.dim, manifest.precision) != (before.dim, before.precision):
            raise ItemIndexError(
                f"the index in {self.path} was replaced by one of dim {manifest.dim} in "
                f"{manifest.precision}: open it again"
            )
        self._state = IndexState(manifest, segments)

    def _found(self, rows: Tensor, scores: Tensor, count: bool) -> FoundRows:
        is_found = rows >= 0
        flat = rows[is_found]
        if count and len(flat):
            self._state.count(flat)
            self._has_counted = True
        names, places = self._state.versions, self._state.facts_of(flat).versions
        keys, versions = iter(self._state.keys_of(flat)), iter([names[p] for p in places.tolist()])
        sizes = is_found.sum(dim=1).tolist()
        return FoundRows(
            [list(islice(keys, size)) for size in sizes],
            scores.numpy(),
            [list(islice(versions, size)) for size in sizes],
        )

    def _write(
        self,
        keys: Sequence[str],
        vectors: Tensor,
        versions: tuple[str, ...],
        own: Int32[Tensor, " n"],
        spaces: Int32[Tensor, " n"],
    ) -> None:
        self._require_writable()
        _require_distinct(keys)
        _require_text(keys)
        self._require_dim(vectors)
        vectors = vectors.detach().float().cpu()
        if len(vectors) != len(keys):
            raise DataError(f"{len(vectors):,} vectors for {len(keys):,} keys: give one per key")
        if not bool(vectors.isfinite().all()):
            bad = int((~vectors.isfinite()).any(dim=1).nonzero()[0])
            raise DataError(f"the vector of {keys[bad]!r:.80} is not finite")
        if keys:
            self._commit(self._state.written(keys, vectors, own, spaces), versions)

    def _commit(self, segments: Sequence[Segment], versions: tuple[str, ...]) -> None:
        written = self._folder.write(self._state.manifest, segments, versions)
        self._state = IndexState(*written)
        self._has_counted = False

    def _require_writable(self) -> None:
        if not self.is_writable:
            raise ConfigError(
                f"the index in {self._folder.path} is open for reading: open it with writable=True"
            )

    def _require_dim(self, vectors: object) -> None:
        if not isinstance(vectors, Tensor):
            kind = type(vectors).__name__
            raise DataError(f"vectors must be a tensor, but got {kind}: use torch.as_tensor")
        if vectors.dim() != 2 or vectors.shape[1] != self.dim:
            raise DataError(
                f"vectors of shape {tuple(vectors.shape)} do not fit an index of dim {self.dim}"
            )


def _require_text(keys: Sequence[str]) -> None:
    for key in keys:
        if not isinstance(key, str) or not is_text(key):
            raise DataError(f"a key must be text in UTF-8, but got {key!r:.80}")


def _require_distinct(keys: Sequence[str]) -> None:
    if len(set(keys)) != len(keys):
        seen: set[str] = set()
        repeated = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DataError(f"the key {repeated!r:.80} occurs more than once: write each item once")

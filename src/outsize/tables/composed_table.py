"""Tables whose vectors are put together from codes that pointers name, and a helper.

    T[i] = [M₁[h₁(i)] + M'₁[h'₁(i)] | … | M_c[h_c(i)] + M'_c[h'_c(i)]]

The codes M and the helper M' are rows of one parameter. A subclass says how the pointers h are
stored; the hashes h' of the helper are computed. The columns may share one pool of codes, so that
each chooses among c·k codes instead of k. Without a helper, its rows are codes as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.errors import ConfigError
from outsize.hashing import derive_seed, draw_hashes, hash_ids
from outsize.kernels.compositional.pointers import Pointers, StoredPointers
from outsize.spec import TableSpec
from outsize.tables.columns import columns_of, composed_columns, gather_columns, gather_pieces
from outsize.tables.pointer_table import PointerTable
from outsize.tables.pointers import pack, unpack
from outsize.tables.weights import fresh_weight

ALL_CODES = 2  # in the flags of `meaning`, beside 1 for shared codes


class ComposedTable(PointerTable):
    """Maps ids to sums of codes and helper rows, column by column; see the module docstring.

    Args:
        spec: The table.
        num_buckets: Rows of codes and helper together, half each; 2k in the paper.
        columns: Columns per vector, c in the paper; 4 by default.
        shared: Whether all columns choose from one pool of codes; by default if they are equally
            wide.
        papers_init: Draw codes and helper uniformly from ± dim^-½ as in the paper, instead of
            scaling them so that their sums have the scale of the spec.
        seed: Seed of the hashes and of the initial codes.
    """

    pointer_buffers: ClassVar[tuple[str, ...]] = ("pointers", "helper_hashes")

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        columns: int | None = None,
        shared: bool | None = None,
        papers_init: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        if num_buckets < 2:
            raise ConfigError(
                f"table {spec.name!r}: a cce table needs 2 rows or more, one of codes and one of "
                f"the helper, but got {num_buckets}"
            )
        self.shared = is_shared(spec, columns, shared)
        self.columns = columns
        self.seed = seed
        self.num_main, self.num_helper = halves = halves_of(num_buckets)
        self._halves = halves
        std = (3 * spec.dim) ** -0.5 if papers_init else spec.init.std_for(spec.dim) / 2**0.5
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        self._register_pointers()
        self.register_buffer("helper_hashes", self._draw_helper(0))
        self.register_buffer("num_clusterings", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("meaning", torch.tensor([columns, int(self.shared)]))
        self.pointers: Tensor
        self.helper_hashes: Tensor
        self.num_clusterings: Tensor
        self.meaning: Tensor
        self.renew_version()

    @abstractmethod
    def _register_pointers(self) -> None:
        """Register the buffer `pointers`, with the first pointers of ids: random hashes."""

    @abstractmethod
    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to, h in the paper."""

    @abstractmethod
    def num_main_after(self, helper: bool) -> int:
        """Rows of codes after a clustering with a helper, or without one."""

    @property
    def num_codes(self) -> int:
        """Number of codes that a pointer chooses from."""
        return self.num_main * self._pool

    @property
    def _pool(self) -> int:
        """Number of columns that share a pool of codes."""
        return self.columns if self.shared else 1

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {
            "num_buckets": sum(self._halves),
            "columns": self.columns,
            "shared": self.shared,
            "seed": self.seed,
        }

    @property
    def num_pointers(self) -> int:
        """Pointers per id, into the codes and into the helper, if there is one."""
        return (2 if self.num_helper else 1) * self.columns

    def copy_pointers(self, ids: Int64[Tensor, " n"]) -> Integer[Tensor, "n pointers"]:  # noqa: D102
        return pack(self._all_pointers_of(ids), self._code_type)

    def _all_pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n pointers"]:
        """Pointers into the codes, and into the helper, if there is one."""
        found = self.pointers_of(ids)
        return torch.cat([found, self._helper_of(ids)], dim=1) if self.num_helper else found

    @property
    @abstractmethod
    def _code_type(self) -> torch.dtype:
        """The type of pointers that stand for an id."""

    def vectors_of(self, packed: Integer[Tensor, "n pointers"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        firsts = range(0, self.num_pointers, self.columns)
        sources = [StoredPointers(packed, first, self.columns) for first in firsts]
        lines = torch.arange(packed.shape[0], device=packed.device)
        vectors = self._composed(lines, sources)
        if vectors is not None:
            return vectors
        main, *helper = unpack(packed).split(self.columns, dim=1)
        return self._vectors(main, helper[0] if helper else None)

    def _composed(
        self, ids: Tensor, sources: Sequence[Pointers], lines: Tensor | None = None
    ) -> Tensor | None:
        first_rows = (0, self.num_codes)[: len(sources)]
        return composed_columns(
            self.weight, ids, sources, first_rows, lines=lines, pooled=self.shared
        )

    def renew_version(self) -> None:
        """Compute the version of the current pointers, and which rows are codes."""
        if not self.meaning.is_meta:
            all_codes = bool(int(self.meaning[1]) & ALL_CODES)
            self.num_main = self.num_main_after(helper=not all_codes)
            self.num_helper = sum(self._halves) - self.num_main
        super().renew_version()

    def _vectors(
        self, main: Int64[Tensor, "n columns"], helper: Int64[Tensor, "n columns"] | None
    ) -> Float[Tensor, "n dim"]:
        vectors = self._gather(self.weight, main)
        if helper is None:
            return vectors
        return vectors + self._gather(self.weight, helper + self.num_codes)

    def _gather(
        self, weight: Float[Tensor, "rows dim"], pointers: Int64[Tensor, "n columns"]
    ) -> Float[Tensor, "n dim"]:
        return (gather_pieces if self.shared else gather_columns)(weight, pointers)

    def _helper_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The helper's rows for ids, h' in the paper; computed, not stored."""
        return hash_ids(ids, self.helper_hashes, self.num_helper * self._pool)

    def _draw_helper(self, number: int) -> Int64[Tensor, "columns 9"]:
        return draw_hashes(self.columns, derive_seed(self.seed, "helper", number))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Refuse pointers of other columns or `shared`, which torch would load silently."""
        saved = state_dict.get(f"{prefix}meaning")
        own = (self.columns, self.shared)
        if saved is not None and not saved.is_meta and _columns_and_shared(saved) != own:
            columns, shared = _columns_and_shared(saved)
            raise ConfigError(
                f"table {self.spec.name!r}: its saved pointers are of {columns} columns with "
                f"shared={shared}, but the table was built with {self.columns} and "
                f"shared={self.shared}: build it as it was saved"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def _columns_and_shared(meaning: Int64[Tensor, "2"]) -> tuple[int, bool]:
    columns, flags = meaning.tolist()
    return columns, bool(flags & 1)


def is_shared(spec: TableSpec, columns: int, wanted: bool | None) -> bool:
    """Whether columns share codes: as wanted, by default if they are equally wide."""
    even = spec.dim % columns == 0
    if wanted and not even:
        raise ConfigError(
            f"table {spec.name!r}: columns share codes where they are equally wide, but a dim of "
            f"{spec.dim} has no {columns} equal columns: set shared=False, or other columns"
        )
    return even if wanted is None else wanted


def halves_of(num_buckets: int) -> tuple[int, int]:
    """The number of rows of the codes and of the helper."""
    return num_buckets - num_buckets // 2, num_buckets // 2

"""Clustered compositional embeddings (Tsang and Ahle, "Clustering the Sketch", Algorithm 3).

    T[i] = [M₁[h₁(i)] + M'₁[h'₁(i)] | … | M_c[h_c(i)] + M'_c[h'_c(i)]]

The pointers h start as random hashes. `recluster` runs k-means on the columns of T: the centroids
become the codes M, the assignments become the pointers h, and the helper table M' gets new random
hashes h' and zeros. From then on, similar ids share codes, and the helper learns how they differ.
A last clustering may do without the helper: its rows become codes, and ids share those alone.

As an extension of the paper, the columns may share one pool of codes (`shared`), like ROBE's array:
each column then chooses among c·k codes instead of k. Columns rarely have a meaning of their own,
so this gives a finer clustering for the same number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.errors import ConfigError
from outsize.hashing import derive_seed, draw_hashes
from outsize.kernels.compositional.pointers import HashedPointers, Pointers, StoredPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.clustered_table import ClusteredTable
from outsize.tables.columns import columns_of
from outsize.tables.composed_table import halves_of, is_shared
from outsize.tables.packed_cce import PackedCCETable
from outsize.tables.pointers import (
    hashed_pointers,
    num_addressable,
    pointer_type,
    unpack,
)
from outsize.tables.shared_lines import SharedLines
from outsize.tables.sizing import Cost, hash_bytes, largest_size

POINTERS = ("plain", "packed")


class CCETable(ClusteredTable):
    """Ids share codes that clustering finds; see the module docstring.

    Args:
        spec: The table.
        num_buckets: Rows of codes and helper together, half each; 2k in the paper.
        columns: Columns per vector, c in the paper; 4 by default.
        shared: Whether all columns choose from one pool of codes; by default if they are equally
            wide. `False` is the paper's algorithm.
        papers_init: Draw codes and helper uniformly from ± dim^-½ as in the paper, instead of
            scaling them so that their sums have the scale of the spec.
        pointers_on: "device", or "cpu" to keep the pointers in main memory when the table moves to
            a GPU; a look-up then waits for them to be copied.
        seed: Seed of the hashes, the initial codes and the clusterings.
    """

    within_options = ("pointers",)

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        columns: int | None = None,
        shared: bool | None = None,
        papers_init: bool = False,
        pointers_on: Literal["device", "cpu"] = "device",
        seed: int = 0,
    ) -> None:
        self.pointers_on = pointers_on
        super().__init__(
            spec,
            num_buckets=num_buckets,
            columns=columns,
            shared=shared,
            papers_init=papers_init,
            seed=seed,
        )

    def _register_pointers(self) -> None:
        first = draw_hashes(self.columns, derive_seed(self.seed, "first pointers"))
        pointers = hashed_pointers(self.spec.num_rows, first, self.num_codes)
        self.register_buffer("pointers", pointers)

    @classmethod
    def within(
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> ClusteredTable:
        """The largest table within a budget; pointers are packed if it is in bytes.

        Args:
            spec: The table.
            budget: Its limit.
            seed: Seed of everything random in it.
            **options: Settings of the constructor, and `pointers`: "plain" or "packed" (see
                `PackedCCETable`). By default they are packed if the budget is in bytes, which then
                decides how many ids have pointers, of how many columns and bits.
        """
        on_device = options.get("pointers_on", "device") == "device"
        default = "plain" if budget.max_bytes is None or not on_device else "packed"
        asked = options.pop("pointers", None) or default
        if asked not in POINTERS:
            raise ConfigError(
                f"table {spec.name!r}: pointers must be {' or '.join(POINTERS)}, but got {asked!r}"
            )
        if asked == "packed":
            if not on_device:
                raise ConfigError(
                    f"table {spec.name!r}: pointers_on='cpu' is for plain pointers: leave it out, "
                    "or set pointers='plain'"
                )
            options.pop("pointers_on", None)
            return PackedCCETable.within(spec, budget, seed=seed, **options)
        columns = columns_of(spec, options.get("columns"))
        pool = columns if is_shared(spec, columns, options.get("shared")) else 1

        def cost(num_buckets: int) -> Cost:
            pointer = pointer_type(halves_of(num_buckets)[0] * pool)
            index = spec.num_rows * columns * pointer.itemsize + hash_bytes(columns) + 24
            return Cost(num_buckets * spec.dim, index)

        size = largest_size("cce", spec, budget, cost, least=2)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        sources: list[Pointers] = [StoredPointers(self.pointers)]
        if self.num_helper:
            sources.append(HashedPointers(self.helper_hashes, self.num_helper * self._pool))
        vectors = self._composed(ids, sources)
        if vectors is not None:
            return vectors
        helper = self._helper_of(ids) if self.num_helper else None
        return self._vectors(self.pointers_of(ids), helper)

    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to, h in the paper."""
        return self._pointers_in({"pointers": self.pointers}, ids)

    @property
    def _code_type(self) -> torch.dtype:
        return self.pointers.dtype

    @property
    def pointer_bits(self) -> int:  # noqa: D102
        return 8 * self.pointers.element_size()

    def _blank_pointers(self) -> Integer[Tensor, "num_rows columns"]:
        return self.pointers

    def _stored(
        self, pointers: Integer[Tensor, "num_rows columns"], lines: SharedLines | None
    ) -> dict[str, Tensor]:
        return {"pointers": pointers}

    def _pointers_in(
        self, buffers: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Int64[Tensor, "n columns"]:
        pointers = buffers["pointers"]
        return unpack(pointers[ids.to(pointers.device)]).to(ids.device)

    def _distinct_pointers(self, buffers: Mapping[str, Tensor]) -> Integer[Tensor, "lines columns"]:
        return buffers["pointers"]

    def num_main_after(self, helper: bool) -> int:
        """Rows of codes after a clustering with a helper, or without one."""
        if helper:
            return self._halves[0]
        return min(sum(self._halves), num_addressable(self.pointers.dtype) // self._pool)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if self.pointers_on == "cpu" and not self.pointers.is_meta:
            self.pointers = self.pointers.cpu()  # with `assign=True` they may be on a GPU

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CCETable:
        def moved(tensor: Tensor) -> Tensor:
            if tensor is not self.pointers or self.pointers_on == "device":
                return fn(tensor)
            if not tensor.is_meta:
                return tensor
            filled = fn(tensor)  # `to_empty`
            return filled if filled.is_meta else torch.empty_like(filled, device="cpu")

        super()._apply(moved, recurse)
        return self

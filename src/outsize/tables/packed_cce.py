"""CCE by total bytes: pointers of as few bits as they need, and only for ids that earn them.

A plain CCE table has a byte or two of pointers per id and column, which outweigh its codes. Here
pointers are packed to ⌈log₂ k⌉ bits, and stored in slots. With fewer slots than ids, a clustering
gives the most frequent ids slots of their own; the others, and ids that never occurred, share the
last slots by a hash, and count in the clustering as the mean of those that share a slot. Until the
first clustering, ids without a slot hash into the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor

from outsize.errors import ConfigError
from outsize.hashing import derive_seed, draw_hashes, hash_ids
from outsize.kernels.compositional.pointers import HashedPointers, PackedPointers, Pointers
from outsize.kernels.compositional.slots import SlotMap, found_slots
from outsize.spec import Budget, TableSpec
from outsize.tables.bit_packing import bits_for, pack_bits, packed_bytes, read_bits
from outsize.tables.byte_rule import Shape, largest_shape, num_shared_slots
from outsize.tables.clustered_table import ClusteredTable
from outsize.tables.id_slots import empty_map, find_slots, slot_map
from outsize.tables.pointers import hashed_pointers, pack, pointer_type, unpack
from outsize.tables.shared_lines import SharedLines


class PackedCCETable(ClusteredTable):
    """CCE with packed pointers in a limited number of slots; see the module docstring.

    Args:
        spec: The table.
        num_buckets: Rows of codes and helper together, half each.
        num_slots: Slots for pointers; with `spec.num_rows` or more, each id has its own. One of 16
            is shared by the ids that have none.
        columns: Columns per vector; 4 by default.
        shared: Whether all columns choose from one pool of codes; by default if they are equally
            wide.
        papers_init: Draw codes and helper uniformly from ± dim^-½.
        seed: Seed of the hashes, the initial codes and the clusterings.
    """

    pointer_buffers = ("pointers", "id_starts", "id_lows", "helper_hashes", "num_clusterings")

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        num_slots: int,
        columns: int | None = None,
        shared: bool | None = None,
        papers_init: bool = False,
        seed: int = 0,
    ) -> None:
        if num_slots < min(2, spec.num_rows):
            raise ConfigError(
                f"table {spec.name!r}: packed pointers need 2 slots or more, one of them for the "
                f"ids that have none, but got {num_slots}"
            )
        self.num_slots = min(num_slots, spec.num_rows)
        self.num_own = self.num_slots - num_shared_slots(self.num_slots, spec.num_rows)
        self._is_clustered = False
        super().__init__(
            spec,
            num_buckets=num_buckets,
            columns=columns,
            shared=shared,
            papers_init=papers_init,
            seed=seed,
        )

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> PackedCCETable:
        found: Shape = largest_shape(spec, budget, options.get("columns"), options.get("shared"))
        own = {"columns": found.columns, "shared": found.pool > 1}
        return cls(
            spec,
            num_buckets=found.num_buckets,
            num_slots=found.num_slots,
            seed=seed,
            **{**options, **own},
        )

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {**super().settings(), "num_slots": self.num_slots}

    @property
    def has_slots_for_all(self) -> bool:
        """Whether every id has a slot of its own."""
        return self.num_slots == self.spec.num_rows

    @property
    def pointer_bits(self) -> int:  # noqa: D102
        return bits_for(sum(self._halves) * self._pool)

    def _register_pointers(self) -> None:
        num_rows = self.spec.num_rows
        starts, lows = None, None
        if self.has_slots_for_all:
            first = draw_hashes(self.columns, derive_seed(self.seed, "first pointers"))
            hashed = hashed_pointers(num_rows, first, self.num_codes)
            pointers = pack_bits(unpack(hashed).flatten(), self.pointer_bits)
        else:
            starts, lows = empty_map(self.num_own, num_rows)
            size = packed_bytes(self.num_slots * self.columns, self.pointer_bits)
            pointers = torch.zeros(size, dtype=torch.uint8)
        self.register_buffer("pointers", pointers)
        self.register_buffer("id_starts", starts)
        self.register_buffer("id_lows", lows)
        self.id_starts: Tensor | None
        self.id_lows: Tensor | None

    def renew_version(self) -> None:
        """Compute the version of the current pointers, and whether ids were clustered."""
        if not self.num_clusterings.is_meta:
            self._is_clustered = bool(self.num_clusterings)
        super().renew_version()

    @property
    def _uses_slots(self) -> bool:
        """Whether pointers are read from slots; otherwise ids hash into the codes."""
        return self._is_clustered or self.has_slots_for_all

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        sources: list[Pointers] = []
        if self._uses_slots:
            slots = self._slots_in(self._own_buffers(), ids)
            sources.append(PackedPointers(self.pointers, self.pointer_bits, self.columns))
        else:
            slots = ids
            hashed = HashedPointers(self.helper_hashes, self.num_codes, self.spec.num_rows)
            sources.append(hashed)
        if self.num_helper:
            sources.append(HashedPointers(self.helper_hashes, self.num_helper * self._pool))
        vectors = self._composed(ids, sources, lines=slots)
        if vectors is not None:
            return vectors
        main = self._read(self.pointers, slots) if self._uses_slots else self._hashed(ids)
        return self._vectors(main, self._helper_of(ids) if self.num_helper else None)

    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to."""
        return (
            self._pointers_in(self._own_buffers(), ids) if self._uses_slots else self._hashed(ids)
        )

    def _hashed(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes of ids before the first clustering, if there are fewer slots than ids."""
        return hash_ids(ids + self.spec.num_rows, self.helper_hashes, self.num_codes)

    @property
    def _code_type(self) -> torch.dtype:
        return pointer_type(sum(self._halves) * self._pool)

    def num_main_after(self, helper: bool) -> int:
        """Rows of codes after a clustering with a helper, or without one."""
        return self._halves[0] if helper else sum(self._halves)

    def _blank_pointers(self) -> Integer[Tensor, "num_slots columns"]:
        shape = (self.num_slots, self.columns)
        return torch.empty(shape, dtype=self._code_type, device=self.weight.device)

    def _lines_after(self, counts: Int64[Tensor, " num_rows"] | None) -> SharedLines | None:
        if self.has_slots_for_all:
            return None
        hashes, num_shared = self._next_hashes(), self.num_slots - self.num_own
        own = _most_frequent(counts, self.num_own).to(self.weight.device)

        def shared_by(ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
            return self._shared_slots(ids, hashes)

        return SharedLines(own, self.spec.num_rows, num_shared, shared_by)

    def _stored(
        self, pointers: Integer[Tensor, "num_slots columns"], lines: SharedLines | None
    ) -> dict[str, Tensor]:
        stored = {"pointers": pack_bits(unpack(pointers).flatten(), self.pointer_bits)}
        if lines is not None:
            starts, lows = slot_map(lines.own, self.spec.num_rows)
            stored |= {"id_starts": starts, "id_lows": lows}
        return stored

    def _shared_slots(
        self, ids: Int64[Tensor, " n"], hashes: Int64[Tensor, "columns 9"]
    ) -> Int64[Tensor, " n"]:
        """Which of the shared slots ids without one of their own use."""
        num_shared = self.num_slots - self.num_own
        return hash_ids(ids + 2 * self.spec.num_rows, hashes[:1], num_shared).squeeze(1)

    def _own_buffers(self) -> dict[str, Tensor]:
        """The buffers that `_pointers_in` reads."""
        found = {"pointers": self.pointers, "helper_hashes": self.helper_hashes}
        if self.id_starts is not None and self.id_lows is not None:
            found |= {"id_starts": self.id_starts, "id_lows": self.id_lows}
        return found

    def _pointers_in(
        self, buffers: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Int64[Tensor, "n columns"]:
        return self._read(buffers["pointers"], self._slots_in(buffers, ids))

    def _slots_in(
        self, buffers: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Int64[Tensor, " n"]:
        """The slot of each id."""
        if self.has_slots_for_all:
            return ids
        starts, lows, hashes = (buffers[k] for k in ("id_starts", "id_lows", "helper_hashes"))
        num_shared, offset = self.num_slots - self.num_own, 2 * self.spec.num_rows
        slots = found_slots(ids, SlotMap(starts, lows, hashes, num_shared, offset))
        if slots is not None:
            return slots
        found, is_own = find_slots(ids, starts, lows)
        return torch.where(is_own, found, self.num_own + self._shared_slots(ids, hashes))

    def _read(
        self, packed: UInt8[Tensor, " bytes"], slots: Int64[Tensor, " n"]
    ) -> Int64[Tensor, "n columns"]:
        """The pointers in some slots."""
        places = slots.unsqueeze(1) * self.columns + torch.arange(self.columns, device=slots.device)
        return read_bits(packed, places, self.pointer_bits)

    def _distinct_pointers(self, buffers: Mapping[str, Tensor]) -> Integer[Tensor, "lines columns"]:
        places = torch.arange(self.num_slots * self.columns, device=buffers["pointers"].device)
        found = read_bits(buffers["pointers"], places, self.pointer_bits)
        return pack(found, self._code_type).view(-1, self.columns)


def _most_frequent(counts: Int64[Tensor, " num_rows"] | None, num: int) -> Int64[Tensor, " num"]:
    """The most frequent ids, ascending; without counts, or at equal ones, the lowest."""
    if counts is None:
        return torch.arange(num)
    return counts.cpu().argsort(descending=True, stable=True)[:num].sort().values

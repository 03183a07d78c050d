"""Tables whose pointers can stand for ids, and the version of those pointers.

Codes are copies of pointers. They decode to the right vectors only as long as the table has the
pointers they were copied from, so both carry a version: a fingerprint of the pointers, taken when
these change by a reclustering or a loaded state. It is a plain number, so comparing it waits for no
device, and equal pointers have equal versions on every rank and after a resume.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.contracts import Codes, EmbeddingTable
from outsize.errors import DataError
from outsize.hashing import derive_seed, mix_bits
from outsize.spec import TableSpec

_CHUNK_WORDS = 1 << 18


class PointerTable(EmbeddingTable):
    """A table that encodes ids into pointers.

    A method implements `copy_pointers` and `vectors_of`, and calls `renew_version` whenever it has
    written other pointers.

    Args:
        spec: The table.

    Attributes:
        pointer_buffers: Names of the buffers that decide which pointers an id has.
    """

    can_encode = True
    pointer_buffers: ClassVar[tuple[str, ...]] = ("pointers",)

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._codes_version = 0

    @property
    @abstractmethod
    def num_pointers(self) -> int:
        """Pointers of an id."""

    @abstractmethod
    def copy_pointers(self, ids: Int64[Tensor, " n"]) -> Integer[Tensor, "n pointers"]:
        """All pointers of ids that are known to be in range, packed."""

    @abstractmethod
    def vectors_of(self, packed: Integer[Tensor, "n pointers"]) -> Float[Tensor, "n dim"]:
        """The vectors that packed pointers stand for."""

    @property
    def codes_version(self) -> int:  # noqa: D102
        return self._codes_version

    def renew_version(self) -> None:
        """Take the version of the pointers as they are now."""
        self._codes_version = fingerprint([getattr(self, name) for name in self.pointer_buffers])

    def encode(self, ids: Int64[Tensor, "*shape"]) -> Codes:
        """What can stand in data in the place of ids: their pointers, as small integers.

        Good until the pointers change, by a reclustering or a loaded state; refused from then on.
        """
        safe = self._guard(ids.reshape(-1, 1)).flatten()
        packed = self.copy_pointers(safe)
        return Codes(packed.view(*ids.shape, self.num_pointers), version=self._codes_version)

    def decode(self, codes: Codes) -> Float[Tensor, "*shape dim"]:
        """The vectors of ids that this table encoded; needs no pointers of its own."""
        self._require_decodable(codes)
        values = codes.values
        vectors = self.vectors_of(values.reshape(-1, self.num_pointers))
        return vectors.view(*values.shape[:-1], self.spec.dim)

    def _require_decodable(self, codes: Codes) -> None:
        name = f"table {self.spec.name!r}"
        if codes.version is None:
            raise DataError(
                f"{name}: codes without a version may be of other pointers: encode the ids again, "
                "or give the codes_version that the table had when it encoded them"
            )
        if codes.version != self._codes_version:
            raise DataError(
                f"{name}: these codes were made before its pointers changed (by a reclustering, or "
                "a loaded state) and would decode to vectors of other ids: encode the ids again"
            )
        if codes.values.dim() < 1 or codes.values.shape[-1] != self.num_pointers:
            raise DataError(
                f"{name}: codes have {self.num_pointers} pointers for each id, but got the shape "
                f"{tuple(codes.values.shape)}"
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if any(prefix + name in state_dict for name in self.pointer_buffers):
            self.renew_version()


def fingerprint(tensors: Sequence[Integer[Tensor, "..."]]) -> int:
    """A number below 2⁶³ that differs wherever the integers of tensors do; 0 on a meta device."""
    if any(tensor.is_meta for tensor in tensors):
        return 0
    result = 0
    for tensor in tensors:
        flat = tensor.flatten()
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for first in range(0, flat.numel(), _CHUNK_WORDS):
            words = flat[first : first + _CHUNK_WORDS].long()
            places = torch.arange(first, first + words.numel(), device=flat.device)
            total += mix_bits(words + mix_bits(places + 1)).sum()  # the order of sums is no matter
        result = derive_seed(result, flat.numel(), int(total))
    return result

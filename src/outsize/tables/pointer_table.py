"""The base class of tables that encode ids into pointers, and the version of those pointers.

Codes are copies of pointers. They decode to the right vectors only while the table has the same
pointers, so both have a version: a fingerprint of the pointers, computed whenever they change by a
reclustering or a loaded state. It is a plain number, so comparing versions does not synchronize the
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

    A subclass implements `copy_pointers` and `vectors_of`, and calls `renew_version` whenever it
    has changed the pointers.

    Args:
        spec: The table.

    Attributes:
        pointer_buffers: Names of the buffers that determine the pointers of an id; any may be None.
    """

    can_encode = True
    pointer_buffers: ClassVar[tuple[str, ...]] = ("pointers",)

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._codes_version = 0

    @property
    @abstractmethod
    def num_pointers(self) -> int:
        """Pointers per id."""

    @abstractmethod
    def copy_pointers(self, ids: Int64[Tensor, " n"]) -> Integer[Tensor, "n pointers"]:
        """The packed pointers of ids that are in range."""

    @abstractmethod
    def vectors_of(self, packed: Integer[Tensor, "n pointers"]) -> Float[Tensor, "n dim"]:
        """The vectors of packed pointers."""

    @property
    def codes_version(self) -> int:  # noqa: D102
        return self._codes_version

    def renew_version(self) -> None:
        """Compute the version of the current pointers."""
        found = [getattr(self, name) for name in self.pointer_buffers]
        self._codes_version = fingerprint([tensor for tensor in found if tensor is not None])

    def encode(self, ids: Int64[Tensor, "*shape"]) -> Codes:
        """Encode ids as their pointers: small integers that can replace ids in the data.

        The codes are valid until the pointers change by a reclustering or a loaded state; `decode`
        refuses them afterwards.
        """
        safe = self._guard(ids.reshape(-1, 1)).flatten()
        packed = self.copy_pointers(safe)
        return Codes(packed.view(*ids.shape, self.num_pointers), version=self._codes_version)

    def decode(self, codes: Codes) -> Float[Tensor, "*shape dim"]:
        """The vectors of encoded ids; does not read the table's own pointers."""
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
                f"{name}: codes have {self.num_pointers} pointers per id, but got the shape "
                f"{tuple(codes.values.shape)}"
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if any(prefix + name in state_dict for name in self.pointer_buffers):
            self.renew_version()


def fingerprint(tensors: Sequence[Integer[Tensor, "..."]]) -> int:
    """A hash below 2⁶³ of the integers in tensors; 0 on the meta device."""
    if any(tensor.is_meta for tensor in tensors):
        return 0
    result = 0
    for tensor in tensors:
        flat = tensor.flatten()
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for first in range(0, flat.numel(), _CHUNK_WORDS):
            words = flat[first : first + _CHUNK_WORDS].long()
            places = torch.arange(first, first + words.numel(), device=flat.device)
            total += mix_bits(words + mix_bits(places + 1)).sum()  # in any order
        result = derive_seed(result, flat.numel(), int(total))
    return result

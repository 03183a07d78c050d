"""How rows travel in a compiled round, and whether kernels know that format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from outsize.kernels.arrays import is_plain_float
from outsize.kernels.compiled import compiled
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.local import LocalStore
from outsize.stores.wire import Wire, wire_for

_MOST_INT32 = (1 << 31) - 1
_MOST_STATES = 3


@dataclass(frozen=True)
class Format:
    """How rows travel between owners.

    Attributes:
        rank: This rank.
        num_owners: Number of ranks that own rows.
        id_bytes: Bytes per id.
        coarse: Bytes per number on the wire.
        fine: Bytes per number on the finer one.
    """

    rank: int
    num_owners: int
    id_bytes: int
    coarse: int
    fine: int

    def line_bytes(self, dim: int, *, fine: bool = False) -> int:
        """Bytes per row."""
        width = self.fine if fine else self.coarse
        return 4 * dim if width == 4 else 4 + width * dim


def round_format(
    owned: LocalStore,
    rule: UpdateRule | None,
    wire: Wire,
    rank: int,
    num_owners: int,
    num_ranks: int,
) -> Format | None:
    """How rows travel, if kernels can do all parts of a round; otherwise `None`."""
    groups = owned.layout.groups
    if rule is None or len(groups) > 1 or num_ranks == 1 or rule.kernel_square() is None:
        return None
    form = _format(owned.layout.num_rows, groups[0].dim, wire, rank, num_owners)
    if form is None:
        return None
    state = owned.state(0)
    if not is_plain_float(owned.rows(0), *state.values()) or len(state) > _MOST_STATES:
        return None
    if compiled("exchange.requests_numba") is None or compiled("exchange.replies_numba") is None:
        return None
    return form


@cache
def _format(num_rows: int, dim: int, wire: Wire, rank: int, num_owners: int) -> Format | None:
    wire = wire_for(dim, wire)
    coarse, fine = wire.number_bytes, wire.finer.number_bytes
    if coarse is None or fine is None:
        return None
    id_bytes = 4 if num_rows // num_owners <= _MOST_INT32 else 8
    return Format(rank, num_owners, id_bytes, coarse, fine)

"""Refreshing an item index: encoding again what older versions of the model wrote.

`REFRESH_ORDERS` holds the orders by name; an order is a function from facts about stale rows to
their order. Items are encoded and written in batches, each in one transaction, so a refresh that is
stopped has done its first batches, and another one goes on with what is stale then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.search.correction import LinearMap, fit_map
from outsize.search.index_state import RowFacts
from outsize.search.repairing import Encode, encoded
from outsize.suggestions import suggestion

if TYPE_CHECKING:
    from outsize.search.item_index import ItemIndex

_MAPPED_PER_WRITE = 1 << 16


@dataclass(frozen=True)
class RefreshReport:
    """What a refresh has done.

    Attributes:
        num_encoded: Items that were encoded again.
        num_stale: Items that older versions wrote and that are left.
        num_moved: Of these, items whose vectors were mapped to the current model.
        maps: The map from each older version that was fitted, by version.
    """

    num_encoded: int
    num_stale: int
    num_moved: int
    maps: dict[str, LinearMap]


def _most_asked_first(facts: RowFacts, seed: int) -> Int64[Tensor, " n"]:
    order = _oldest_first(facts, seed)
    return order[facts.asked[order].argsort(descending=True, stable=True)]


def _oldest_first(facts: RowFacts, seed: int) -> Int64[Tensor, " n"]:
    return facts.versions.argsort(stable=True)


def _at_random(facts: RowFacts, seed: int) -> Int64[Tensor, " n"]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(facts.rows), generator=generator)


REFRESH_ORDERS: dict[str, Callable[[RowFacts, int], Tensor]] = {
    "asked": _most_asked_first,
    "oldest": _oldest_first,
    "random": _at_random,
}
"""By name: most asked first and then the oldest; the oldest first; at random."""


def refresh_index(
    index: ItemIndex,
    encode: Encode,
    version: str,
    budget: int,
    order: str,
    batch_size: int,
    correct: bool,
    seed: int,
) -> RefreshReport:
    """Refresh an index; see `ItemIndex.refresh`."""
    if order not in REFRESH_ORDERS:
        raise ConfigError(
            f"order must be one of {', '.join(REFRESH_ORDERS)}, but got {order!r}."
            f"{suggestion(order, REFRESH_ORDERS)}"
        )
    if budget < 0 or batch_size < 1:
        raise ConfigError(
            f"budget must be >= 0 and batch_size >= 1, but got {budget} and {batch_size}"
        )
    facts = stale_rows(index, version)
    chosen = facts.rows[REFRESH_ORDERS[order](facts, seed)[:budget]]
    keys = index.state.keys_of(chosen)
    spaces = index.state.facts_of(chosen).spaces
    old, new = [], []
    for first in range(0, len(keys), batch_size):
        part = keys[first : first + batch_size]
        vectors = encoded(encode, part, index.dim)
        if correct:
            old.append(index.read(part))
            new.append(vectors)
        index.write(part, vectors, version)
    maps: dict[str, LinearMap] = {}
    num_moved = 0
    if old:
        maps, num_moved = _move_others(index, version, spaces, torch.cat(old), torch.cat(new))
    return RefreshReport(len(keys), len(stale_rows(index, version).rows), num_moved, maps)


def stale_rows(index: ItemIndex, version: str) -> RowFacts:
    """Facts about the rows that other versions encoded."""
    facts, names = index.state.facts(), index.state.versions
    is_stale = facts.versions != (names.index(version) if version in names else -1)
    return RowFacts(
        facts.rows[is_stale],
        facts.versions[is_stale],
        facts.spaces[is_stale],
        facts.asked[is_stale],
    )


def _move_others(
    index: ItemIndex, version: str, spaces: Tensor, old: Tensor, new: Tensor
) -> tuple[dict[str, LinearMap], int]:
    """Map the vectors of stale rows to the current model, where that helps."""
    maps: dict[str, LinearMap] = {}
    num_moved = 0
    for space in spaces.unique().tolist():
        name = index.state.versions[space]
        lines = (spaces == space).nonzero().flatten()
        found = None if name == version else fit_map(old[lines], new[lines])
        if found is None:
            continue
        maps[name] = found
        if found.helps:
            facts = stale_rows(index, version)
            keys = index.state.keys_of(facts.rows[facts.spaces == space])
            for first in range(0, len(keys), _MAPPED_PER_WRITE):
                part = keys[first : first + _MAPPED_PER_WRITE]
                index.move(part, found(index.read(part)), version)
            num_moved += len(keys)
    return maps, num_moved

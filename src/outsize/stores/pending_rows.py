"""Updates of copies that their owners do not have yet, and how they become one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import RowLayout, RowUpdate
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.merging import merge_updates


@dataclass(frozen=True)
class PendingRows:
    """Pending updates of some copies of one group; ids are relative to its first row."""

    slots: Int64[Tensor, " n"]
    ids: Int64[Tensor, " n"]
    gradients: Float[Tensor, "n dim"]
    ticks: Int64[Tensor, " n"]
    squares: Float[Tensor, "n _"] | None


class HeldUpdate(NamedTuple):
    """An update of which some rows are held.

    Attributes:
        update: The update.
        places: Where these rows are in it; `None` for all.
    """

    update: RowUpdate
    places: Int64[Tensor, " n"] | None

    def rows(self) -> RowUpdate:
        """The update of these rows."""
        return self.update if self.places is None else self.update.take(self.places)


class Outbox:
    """Updates of rows without a copy, which leave with those of copies in the next round."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._updates: list[HeldUpdate] = []

    def __len__(self) -> int:
        """How many updates it holds."""
        return len(self._updates)

    def put(self, update: RowUpdate, places: Int64[Tensor, " n"] | None = None) -> None:
        """Hold an update, or its rows at some places, for the next round."""
        self._updates.append(HeldUpdate(update, places))

    def take_all(self) -> list[RowUpdate]:
        """The updates it holds, as they were put; empties it."""
        return [held.rows() for held in self.take_held()]

    def take_held(self) -> list[HeldUpdate]:
        """`take_all`, with rows where they are."""
        updates, self._updates = self._updates, []
        return updates

    def held(self) -> list[HeldUpdate]:
        """The updates it holds."""
        return self._updates

    def take(
        self,
        pushed: Sequence[PendingRows],
        final: Sequence[PendingRows],
        rule: UpdateRule | None,
        *,
        exact: bool,
    ) -> RowUpdate:
        """The update to push, as `merged` makes it; empties the outbox."""
        update = self.merged(pushed, final, rule, exact=exact)
        self._updates.clear()
        return update

    def merged(
        self,
        pushed: Sequence[PendingRows],
        final: Sequence[PendingRows],
        rule: UpdateRule | None,
        *,
        exact: bool,
    ) -> RowUpdate:
        """All updates merged into one; the outbox is not changed.

        Args:
            pushed: Updates of copies that stay, one entry per group; may be empty.
            final: Updates of copies that are evicted or flushed; they travel by the finer wire.
                May be empty, but not with `pushed` and the outbox.
            rule: Defines the squares that are summed with the gradients.
            exact: Whether the outbox travels by the finer wire, too.
        """
        updates = [
            self._as_update(groups, is_final)
            for groups, is_final in ((pushed, False), (final, True))
            if any(rows.ids.shape[0] for rows in groups)
        ]
        updates += [_marked(held.rows(), exact) for held in self._updates]
        if not updates:
            updates = [self._as_update(pushed or final, exact=False)]
        return merge_updates(updates, self._layout, rule)

    def _as_update(self, groups: Sequence[PendingRows], exact: bool) -> RowUpdate:
        if len(groups) == 1:  # the first row of a single group is 0
            (rows,) = groups
            lines = None if rows.squares is None else (rows.squares,)
            return _marked(RowUpdate(rows.ids, (rows.gradients,), rows.ticks, lines), exact)
        starts = [group.start for group in self._layout.groups]
        squares = tuple(rows.squares for rows in groups if rows.squares is not None)
        update = RowUpdate(
            torch.cat([rows.ids + start for rows, start in zip(groups, starts, strict=True)]),
            tuple(rows.gradients for rows in groups),
            torch.cat([rows.ticks for rows in groups]),
            squares if len(squares) == len(groups) else None,
        )
        return _marked(update, exact)


def _marked(update: RowUpdate, exact: bool) -> RowUpdate:
    """An update of which all rows, or none, travel by the finer wire."""
    if not exact:
        return update if update.exact is None else replace(update, exact=None)
    return replace(update, exact=torch.ones_like(update.ids, dtype=torch.bool))

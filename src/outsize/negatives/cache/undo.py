"""Undo for a cache: if a step raises, every write of it is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.rows.lines import put_lines

if TYPE_CHECKING:
    from outsize.negatives.cache.cache_state import CacheState


class Undo:
    """Old values of rows, saved before they are overwritten.

    The owner calls `save` before each write. Inside `all_or_nothing` that copies the rows; outside
    it does nothing.
    """

    def __init__(self) -> None:
        self._owner: CacheState | None = None
        self._saved: list[tuple[Tensor, dict[str, Tensor]]] = []

    def save(
        self,
        rows: Int64[Tensor, " n"],
        skip: tuple[str, ...] = (),
        only: str = "",
        zero: str = "",
    ) -> None:
        """Save rows before they are written. Tensors are selected by prefixes of their names.

        Args:
            rows: The rows, each at most once.
            skip: Tensors that will not be written.
            only: The only tensors that will be written.
            zero: Tensors that hold only zeros in these rows, so that no copy is needed.
        """
        if self._owner is not None:
            old = {
                name: values.new_zeros(()) if zero and name.startswith(zero) else values[rows]
                for name, values in self._owner.tensors_here().items()
                if name.startswith(only) and not name.startswith(skip)
            }
            self._saved.append((rows, old))

    @contextmanager
    def all_or_nothing(self, owner: CacheState) -> Iterator[None]:
        """If anything raises inside, restore the owner to its state on entry; contexts may nest."""
        outer, self._owner = self._owner, owner
        counters, first = owner.get_extra_state(), len(self._saved)
        try:
            yield
        except BaseException:
            tensors = owner.tensors_here()
            for rows, old in reversed(self._saved[first:]):
                for name, values in old.items():
                    put_lines(tensors[name], rows, values)
            del self._saved[first:]
            owner.set_extra_state(counters)
            raise
        finally:
            self._owner = outer
            if outer is None:
                self._saved.clear()

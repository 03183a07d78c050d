"""Taking back what was written to a cache, so that a step is kept whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.rows.lines import put_lines


@runtime_checkable
class Undoable(Protocol):
    """What can be taken back: tensors with a line for each row, and what counts."""

    def tensors_here(self) -> dict[str, Tensor]:
        """The tensors by name."""

    def get_extra_state(self) -> Tensor:
        """The counters."""

    def set_extra_state(self, state: Tensor) -> None:
        """Put counters back, and derive from the tensors what follows from them."""


class Undo:
    """Rows as they were before they were written, while someone may want them back.

    The owner notes rows here before it writes them; that costs a copy inside `all_or_nothing`, and
    nothing elsewhere.
    """

    def __init__(self) -> None:
        self._owner: Undoable | None = None
        self._notes: list[tuple[Tensor, dict[str, Tensor]]] = []

    def note(
        self, rows: Int64[Tensor, " n"], but: str = "", only: str = "", zero: str = ""
    ) -> None:
        """Remember some rows, each named once; tensors are given by how their names begin.

        Args:
            rows: Which.
            but: Tensors that will not be written.
            only: The only ones that will be.
            zero: Tensors that hold nothing but zeros there, of which no copy is made.
        """
        if self._owner is not None:
            kept = {
                name: lines.new_zeros(()) if zero and name.startswith(zero) else lines[rows]
                for name, lines in self._owner.tensors_here().items()
                if name.startswith(only) and not (but and name.startswith(but))
            }
            self._notes.append((rows, kept))

    @contextmanager
    def all_or_nothing(self, owner: Undoable) -> Iterator[None]:
        """If anything raises inside, the owner is again as it was before; contexts may nest."""
        outer, self._owner = self._owner, owner
        counters, first = owner.get_extra_state(), len(self._notes)
        try:
            yield
        except BaseException:
            lines = owner.tensors_here()
            for rows, kept in reversed(self._notes[first:]):
                for name, values in kept.items():
                    put_lines(lines[name], rows, values)
            del self._notes[first:]
            owner.set_extra_state(counters)
            raise
        finally:
            self._owner = outer
            if outer is None:
                self._notes.clear()

"""A list of integers for each query, of any length: values one after the other, and offsets.

One query may have 10⁵ known items where most have ten. A matrix that is as wide as the longest list
would be as large as that list times all queries; here memory and time follow the items there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.errors import ConfigError


@dataclass(frozen=True)
class Ragged:
    """Lists of rows or keys, in any order and number of times; −1 stands for nothing.

    Attributes:
        values: The lists of all lines, one line after the other.
        offsets: Where the list of each line begins, and the end of the last.
        width: How many values each line has, where all have as many and that is known.
        ascending: Whether every list is known to be in order, which saves sorting it.
    """

    values: Int64[Tensor, " n"]
    offsets: Int64[Tensor, " edges"]
    width: int | None = None
    ascending: bool = False

    @classmethod
    def of(cls, lists: Ragged | Tensor) -> Ragged:
        """Lists as they are, or of a matrix `(lines, width)`, or of one value `(lines,)` each."""
        if isinstance(lists, Ragged):
            return lists
        if lists.dtype != torch.int64 or lists.dim() < 1:
            raise ConfigError(
                f"lists must be int64, a line for each query, but got {lists.dtype} of shape "
                f"{tuple(lists.shape)}"
            )
        width = lists.shape[1:].numel()
        edges = _numbers(0, len(lists) + 1, width, lists.device)
        return cls(lists.reshape(-1), edges, width, ascending=width <= 1)

    @classmethod
    def from_sizes(cls, values: Int64[Tensor, " n"], sizes: Int64[Tensor, " lines"]) -> Ragged:
        """Values one line after the other, given how many each line has."""
        return cls(values, torch.cat((sizes.new_zeros(1), sizes.cumsum(0))))

    @classmethod
    def stacked(cls, parts: Sequence[Ragged]) -> Ragged:
        """The lines of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        values = torch.cat([part.values for part in parts])
        return cls.from_sizes(values, torch.cat([part.sizes() for part in parts]))

    @property
    def num_lines(self) -> int:
        """How many lists, those without values included."""
        return self.offsets.shape[0] - 1

    def sizes(self) -> Int64[Tensor, " lines"]:
        """How many values each line has."""
        return self.offsets.diff()

    def lines(self) -> Int64[Tensor, " n"]:
        """The line of each value."""
        return self._for_each(_numbers(0, self.num_lines, 1, self.values.device))

    def part(self, start: int, stop: int) -> Ragged:
        """Some lines."""
        first, last = self.offsets[[start, min(stop, self.num_lines)]].tolist()
        edges = self.offsets[start : stop + 1] - first
        return Ragged(self.values[first:last], edges, self.width, self.ascending)

    def with_values(self, values: Int64[Tensor, " n"]) -> Ragged:
        """Other values in the same lines."""
        return Ragged(values, self.offsets, self.width, self.width == 1)

    def where(self, stays: Bool[Tensor, " n"]) -> Ragged:
        """Some of the values."""
        before = torch.cat((self.offsets.new_zeros(1), stays.cumsum(0)))
        return Ragged(self.values[stays], before[self.offsets], ascending=self.ascending)

    def first(self, num: int) -> Ragged:
        """At most so many values of each line, those that stand first."""
        place = torch.arange(len(self.values), device=self.values.device)
        return self.where(place - self.offsets[self.lines()] < num)

    def beside(self, other: Ragged) -> Ragged:
        """The lists of both, line by line."""
        both = torch.empty(
            len(self.values) + len(other.values), dtype=torch.int64, device=self.values.device
        )
        starts = self.offsets + other.offsets
        for lists, begin in ((self, starts[:-1]), (other, starts[:-1] + self.sizes())):
            lines = lists.lines()
            place = torch.arange(len(lists.values), device=lines.device)
            both[begin[lines] + place - lists.offsets[lines]] = lists.values
        return Ragged(both, starts)

    def pairs(self, bound: int) -> Int64[Tensor, " n"]:
        """Line and value as one number, line · (bound + 2) + value + 1, in ascending order.

        Values below 0 take part as −1, and those past the bound as the bound.
        """
        starts = _numbers(1, self.num_lines, bound + 2, self.values.device)
        pairs = self._for_each(starts) + self.values.clamp(-1, bound)
        return pairs if self.ascending else pairs.sort().values

    def contains(self, values: Int64[Tensor, "lines k"], bound: int) -> Bool[Tensor, "lines k"]:
        """Which values from 0 to below a bound are in the list of their line."""
        if not len(self.values):
            return torch.zeros_like(values, dtype=torch.bool)
        line = torch.arange(len(values), device=values.device).unsqueeze(1)
        pairs, wanted = self.pairs(bound), line * (bound + 2) + values + 1
        place = torch.searchsorted(pairs, wanted).clamp_max_(len(pairs) - 1)
        return (pairs[place] == wanted) & (values >= 0)

    def _for_each(self, numbers: Int64[Tensor, " lines"]) -> Int64[Tensor, " n"]:
        """The number of a line for each of its values."""
        if self.width is None:
            return numbers.repeat_interleave(self.sizes(), output_size=len(self.values))
        return numbers.unsqueeze(1).expand(-1, self.width).reshape(-1)


@lru_cache(maxsize=16)
def _numbers(first: int, count: int, step: int, device: torch.device) -> Int64[Tensor, " count"]:
    """Numbers at equal distances, made once: a GPU takes longer to launch that than to do it."""
    with torch.inference_mode(False):  # it may be used in training later
        return torch.arange(count, device=device) * step + first

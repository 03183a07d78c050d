"""Ragged lists: a list of integers of any length per query, as flat values and offsets.

One query may have 10⁵ known items where most have ten. A padded matrix would take the longest list
times the number of queries; here memory and time are proportional to the total number of values.
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
    """Lists of rows or keys, one per line, unsorted and possibly with repeats; −1 is padding.

    Attributes:
        values: The values of all lines, concatenated.
        offsets: The start of each line, and the end of the last.
        width: Number of values per line, if it is known to be the same for all lines.
        ascending: Whether every line is known to be sorted, which saves a sort.
    """

    values: Int64[Tensor, " n"]
    offsets: Int64[Tensor, " edges"]
    width: int | None = None
    ascending: bool = False

    @classmethod
    def of(cls, lists: Ragged | Tensor) -> Ragged:
        """Convert a matrix `(lines, width)` or a vector `(lines,)`; returns a `Ragged` as it is.

        The lines of a matrix become lists, and each element of a vector a list of one value.
        """
        if isinstance(lists, Ragged):
            return lists
        if lists.dtype != torch.int64 or lists.dim() < 1:
            raise ConfigError(
                f"lists must be int64, a line for each query, but got {lists.dtype} of shape "
                f"{tuple(lists.shape)}"
            )
        width = lists.shape[1:].numel()
        edges = _sequence(0, len(lists) + 1, width, lists.device)
        return cls(lists.reshape(-1), edges, width, ascending=width <= 1)

    @classmethod
    def from_sizes(cls, values: Int64[Tensor, " n"], sizes: Int64[Tensor, " lines"]) -> Ragged:
        """Lists from concatenated values and the number of values per line."""
        return cls(values, torch.cat((sizes.new_zeros(1), sizes.cumsum(0))))

    @classmethod
    def stacked(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate along lines: the lines of the first, then those of the second, and so on."""
        if len(parts) == 1:
            return parts[0]
        values = torch.cat([part.values for part in parts])
        return cls.from_sizes(values, torch.cat([part.sizes() for part in parts]))

    @property
    def num_lines(self) -> int:
        """Number of lines, including empty ones."""
        return self.offsets.shape[0] - 1

    def sizes(self) -> Int64[Tensor, " lines"]:
        """The number of values of each line."""
        return self.offsets.diff()

    def lines(self) -> Int64[Tensor, " n"]:
        """The line of each value."""
        return self._repeat_per_value(_sequence(0, self.num_lines, 1, self.values.device))

    def part(self, start: int, stop: int) -> Ragged:
        """Lines `start … stop − 1`."""
        first, last = self.offsets[[start, min(stop, self.num_lines)]].tolist()
        edges = self.offsets[start : stop + 1] - first
        return Ragged(self.values[first:last], edges, self.width, self.ascending)

    def with_values(self, values: Int64[Tensor, " n"]) -> Ragged:
        """The same lines with other values."""
        return Ragged(values, self.offsets, self.width, self.width == 1)

    def where(self, mask: Bool[Tensor, " n"]) -> Ragged:
        """Only the values selected by a mask."""
        before = torch.cat((self.offsets.new_zeros(1), mask.cumsum(0)))
        return Ragged(self.values[mask], before[self.offsets], ascending=self.ascending)

    def first(self, num: int) -> Ragged:
        """The first `num` values of each line, or all of a shorter one."""
        place = torch.arange(len(self.values), device=self.values.device)
        return self.where(place - self.offsets[self.lines()] < num)

    def concatenate_lists(self, other: Ragged) -> Ragged:
        """Concatenate line by line: each list of this one, followed by that of `other`."""
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

        Values are clamped to −1 … bound.
        """
        starts = _sequence(1, self.num_lines, bound + 2, self.values.device)
        pairs = self._repeat_per_value(starts) + self.values.clamp(-1, bound)
        return pairs if self.ascending else pairs.sort().values

    def contains(self, values: Int64[Tensor, "lines k"], bound: int) -> Bool[Tensor, "lines k"]:
        """A mask of the values in `0 … bound − 1` that are in the list of their line."""
        if not len(self.values):
            return torch.zeros_like(values, dtype=torch.bool)
        line = torch.arange(len(values), device=values.device).unsqueeze(1)
        pairs, wanted = self.pairs(bound), line * (bound + 2) + values + 1
        place = torch.searchsorted(pairs, wanted).clamp_max_(len(pairs) - 1)
        return (pairs[place] == wanted) & (values >= 0)

    def _repeat_per_value(self, numbers: Int64[Tensor, " lines"]) -> Int64[Tensor, " n"]:
        """Repeat the number of each line for each of its values."""
        if self.width is None:
            return numbers.repeat_interleave(self.sizes(), output_size=len(self.values))
        return numbers.unsqueeze(1).expand(-1, self.width).reshape(-1)


@lru_cache(maxsize=16)
def _sequence(first: int, count: int, step: int, device: torch.device) -> Int64[Tensor, " count"]:
    """`first + step · arange(count)`, cached: on a GPU the launch takes longer than the work."""
    with torch.inference_mode(False):  # the cached tensor may be used in training later
        return torch.arange(count, device=device) * step + first

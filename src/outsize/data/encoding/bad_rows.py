"""Counting malformed rows by kind, and raising an error if there are too many."""

from __future__ import annotations

from dataclasses import dataclass, field

from outsize.errors import DataError

_SHOWN = 2


@dataclass
class BadRows:
    """The malformed rows of a pass over the files.

    Attributes:
        counts: Kind → number of rows.
        first: Kind → a description of the first such row.
        num_rows: Number of all rows, good and bad.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, kind: str, count: int, where: str) -> None:
        """Count rows of a kind; `where` is stored if they are the first."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.first.setdefault(kind, where)

    @property
    def total(self) -> int:
        """Number of bad rows; a row counts once, for the first error found in it."""
        return sum(self.counts.values())

    def describe(self) -> str:
        """A one-line summary: the most frequent kinds, and the number of other bad rows."""
        ordered = sorted(self.counts.items(), key=lambda item: -item[1])
        kinds = "; ".join(
            f"{count:,} with {kind} (first: {self.first[kind]})" for kind, count in ordered[:_SHOWN]
        )
        if others := ordered[_SHOWN:]:
            rows = sum(count for _, count in others)
            kinds += f"; {rows:,} of {len(others)} other kinds"
        share = self.total / max(1, self.num_rows)
        return f"{self.total:,} of {self.num_rows:,} rows are malformed ({share:.2%}): {kinds}"

    def require_share(self, most: float) -> None:
        """Raise a `DataError` if the share of bad rows exceeds `most`."""
        if self.total > most * self.num_rows:
            raise DataError(
                f"{self.describe()}; fix the file, or raise max_bad_rows above {most:g} to skip "
                "such rows"
            )

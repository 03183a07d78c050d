"""Malformed rows: counted by kind, shown once, refused beyond a share."""

from __future__ import annotations

from dataclasses import dataclass, field

from outsize.errors import DataError

_SHOWN = 2


@dataclass
class BadRows:
    """What was wrong with the rows of a pass.

    Attributes:
        counts: Kind → rows.
        first: Kind → where it was first met, in words.
        num_rows: All rows looked at, good and bad.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, kind: str, count: int, where: str) -> None:
        """Count rows of a kind; `where` is kept if they are the first."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.first.setdefault(kind, where)

    @property
    def total(self) -> int:
        """Bad rows of every kind; a row counts once, under the first thing wrong with it."""
        return sum(self.counts.values())

    def describe(self) -> str:
        """All of it in one line: the most frequent kinds, and how many other rows there are."""
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
        """Refuse more than a share of bad rows."""
        if self.total > most * self.num_rows:
            raise DataError(
                f"{self.describe()}; mend the file, or raise max_bad_rows above {most:g} to skip "
                "such rows"
            )

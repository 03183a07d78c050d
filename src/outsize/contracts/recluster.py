"""What a reclustering is before it changes a table, and what it reports of itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ReclusterReport:
    """One reclustering of a table.

    Attributes:
        mse: Mean squared distance between the vectors of ids before and after it.
        variance: The same distance to the mean vector: what one cluster would have left.
        num_clusters: Clusters of each column, or of the pool that all columns share.
        num_empty: Clusters that no id was nearest to, over all columns.
        entropies: H₁ … H_c of the new pointers (see `pointer_entropies`), in nats.
        warning: What is wrong with them, in plain words; empty if nothing is.
        seconds: How long it took.
    """

    mse: float
    variance: float
    num_clusters: int
    num_empty: int
    entropies: tuple[float, ...]
    warning: str
    seconds: float

    def as_metrics(self) -> dict[str, Any]:
        """Plain values for a line of metrics."""
        return {**asdict(self), "entropies": list(self.entropies)}

    @classmethod
    def from_metrics(cls, values: Mapping[str, Any]) -> ReclusterReport:
        """Read back what `as_metrics` gave."""
        return cls(**{**values, "entropies": tuple(values["entropies"])})


@dataclass(frozen=True)
class PlannedRecluster:
    """A reclustering that is ready, of a table that it has not changed yet.

    Attributes:
        table: Name of the table.
        report: What it comes to.
        write: Changes the table and the moments of its optimizer; entered by all ranks.
    """

    table: str
    report: ReclusterReport
    write: Callable[[], None]

    def apply(self) -> ReclusterReport:
        """Change the table on all ranks, and warn of what is wrong with its pointers."""
        self.write()
        if self.report.warning:
            warnings.warn(f"table {self.table!r}: {self.report.warning}", stacklevel=3)
        return self.report

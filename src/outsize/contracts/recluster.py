"""A planned reclustering of a table, and its report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ReclusterReport:
    """Report of one reclustering of a table.

    Attributes:
        mse: Mean squared distance between the vectors of ids before and after.
        variance: Mean squared distance to the mean vector: the error of a single cluster.
        num_clusters: Clusters per column, or of the pool that all columns share.
        num_empty: Empty clusters, over all columns.
        entropies: H₁ … H_c of the new pointers (see `pointer_entropies`), in nats.
        warning: A problem with the new pointers; empty if there is none.
        seconds: Elapsed time.
        pointer_bits: Bits that the pointers of an id are stored in.
        entropy_bits: Bits that they would take on average if each column were entropy coded.
    """

    mse: float
    variance: float
    num_clusters: int
    num_empty: int
    entropies: tuple[float, ...]
    warning: str
    seconds: float
    pointer_bits: int = 0
    entropy_bits: float = 0.0

    def as_metrics(self) -> dict[str, Any]:
        """The report as JSON values, for a line of metrics."""
        return {**asdict(self), "entropies": list(self.entropies)}

    @classmethod
    def from_metrics(cls, values: Mapping[str, Any]) -> ReclusterReport:
        """The report from what `as_metrics` returned."""
        return cls(**{**values, "entropies": tuple(values["entropies"])})


@dataclass(frozen=True)
class PlannedRecluster:
    """A reclustering that is computed but not applied yet.

    Attributes:
        table: Name of the table.
        report: Its report.
        write: Changes the table and the moments of its optimizer; all ranks call it.
    """

    table: str
    report: ReclusterReport
    write: Callable[[], None]

    def apply(self) -> ReclusterReport:
        """Change the table on all ranks; warn if there is a problem with its pointers."""
        self.write()
        if self.report.warning:
            warnings.warn(f"table {self.table!r}: {self.report.warning}", stacklevel=3)
        return self.report

"""What a reclustering reports of itself."""

from __future__ import annotations

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

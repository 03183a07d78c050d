"""How retrieval is evaluated, and what its queries are not trained against."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.bounds import require_at_least
from outsize.errors import ConfigError
from outsize.metrics import RankingMetrics
from outsize.suggestions import suggestion

CUTS = ("recall_at", "ndcg_at", "mrr_at", "hit_at", "map_at")


@dataclass(frozen=True)
class RetrievalConfig:
    """What is measured, and what is masked.

    Attributes:
        max_known: How many of a query's other training items are masked as negatives, those with
            the lowest rows; `None` for all of them, 0 for none. Evaluation always masks all.
        recall_at: Cut-offs of recall.
        ndcg_at: Cut-offs of NDCG.
        mrr_at: Cut-offs of MRR.
        hit_at: Cut-offs of the hit rate.
        map_at: Cut-offs of mean average precision.
        judge: The metric that chooses the best validation and decides early stopping.
    """

    max_known: int | None = None
    recall_at: tuple[int, ...] = (20,)
    ndcg_at: tuple[int, ...] = (10,)
    mrr_at: tuple[int, ...] = (10,)
    hit_at: tuple[int, ...] = ()
    map_at: tuple[int, ...] = ()
    judge: str = "ndcg@10"

    def __post_init__(self) -> None:
        require_at_least(self, 0, "max_known")
        names = ("loss", *self.metrics().names)
        if self.judge not in names:
            known = list(dict.fromkeys(names))
            raise ConfigError(
                f"judge must be one of {', '.join(known)}, but got {self.judge!r}."
                f"{suggestion(self.judge, known)}"
            )

    def cuts(self) -> dict[str, list[int]]:
        """The cut-offs of each ranking metric, as plain values."""
        return {name: list(getattr(self, name)) for name in CUTS}

    def metrics(self, device: str = "cpu", min_grade: int = 1) -> RankingMetrics:
        """Metrics that have seen nothing yet."""
        return RankingMetrics(
            self.recall_at,
            self.ndcg_at,
            self.mrr_at,
            self.hit_at,
            device,
            map_at=self.map_at,
            min_grade=min_grade,
        )

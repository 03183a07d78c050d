"""Hard negatives from an index that is re-encoded periodically (ANCE, Xiong et al. 2021).

As in the paper, each negative has weight 1, so that the loss is over a few items, not the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least
from outsize.interrupts import StopRequested
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.best_items import top_items
from outsize.negatives.cache.key_index import as_lists
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.precision import PRECISIONS
from outsize.negatives.cache.stored_items import StoredItems
from outsize.negatives.contract import ItemSource, LossReport, NegativesConfig
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.sampled_loss import SampledLoss
from outsize.registries import require_known


class TopItemsLoss(SampledLoss):
    """Cross-entropy against hard negatives, drawn from the top-scored items of a periodic index.

    Args:
        index: All items, a cache without features.
        source: The corpus.
        temperature: The inverse temperature β.
        config: The number of negatives and candidates, and the period of the index.
        seed: Seed of the choice.
    """

    def __init__(
        self,
        index: NegativeCache,
        source: ItemSource,
        temperature: Temperature,
        config: TopItemsConfig,
        seed: int,
    ) -> None:
        super().__init__(source, temperature, config.in_batch, seed)
        self.cache = index
        self._config = config

    def begin(self) -> None:
        """Encode all items."""
        self.cache.take_in(*self._encode_all())

    def choose(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        keys: Int64[Tensor, " batch"],
        known: Ragged | None,
        generator: torch.Generator,
    ) -> Int64[Tensor, "batch k"]:
        lists = as_lists(keys, known)
        excluded = lists.with_values(self.cache.rows_of(lists.values))
        best, _ = top_items(queries, self.cache.scored(), self._config.num_candidates, excluded)
        priority = torch.rand(best.shape, generator=generator, device=best.device)
        priority = torch.where(best >= 0, priority, -1.0)
        picked = priority.topk(min(self._config.num_negatives, best.shape[1]), dim=1).indices
        rows = best.gather(1, picked)
        return torch.where(rows >= 0, self.cache.keys[rows.clamp_min(0)], -1)

    def commit(self, report: LossReport) -> None:
        """Advance the seed of the choice, and re-encode the index when it is due.

        If encoding raises, nothing has changed. If it is stopped, call `refresh` later.
        """
        is_due = (self.step + 1) % self._config.refresh_every == 0
        encoded, stop = None, None
        try:
            encoded = self._encode_all() if is_due else None
        except StopRequested as asked:
            stop = asked
        super().commit(report)
        self.cache.commit()
        if encoded is not None:
            self.cache.take_in(*encoded)
        if stop is not None:
            raise stop

    def refresh(self) -> None:
        """Re-encode the index if it is due."""
        if self.step % self._config.refresh_every == 0:
            self.begin()

    def latest_metrics(self) -> dict[str, float]:
        """The age of the index."""
        return {"age": float(self.cache.ages().float().mean())}

    @torch.no_grad()
    def _encode_all(self) -> tuple[Tensor, Tensor, StoredItems]:
        """Encode all items, and prepare them for `NegativeCache.take_in`."""
        keys = torch.arange(self._source.num_items, device=self.cache.keys.device)
        return keys, *self.cache.prepare({}, self._source.encode_keys(keys), keys)


@dataclass(frozen=True)
class TopItemsConfig(NegativesConfig):
    """Hard negatives from an index that is re-encoded periodically (ANCE).

    Attributes:
        num_negatives: Hard negatives per query.
        num_candidates: Top-scored items per query, from which negatives are drawn uniformly.
        refresh_every: Steps between re-encodings of all items.
        in_batch: Add in-batch negatives.
        precision: How embeddings are stored: "float32", "bfloat16" or "int8".
    """

    num_negatives: int = 16
    num_candidates: int = 200
    refresh_every: int = 500
    in_batch: bool = True
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_negatives", "num_candidates", "refresh_every")
        require_known("precision", self.precision, PRECISIONS)

    def build(self, source: ItemSource, seed: int) -> TopItemsLoss:  # noqa: D102
        index = NegativeCache(source.num_items, source.dim, precision=self.precision, seed=seed)
        temperature = Temperature(self.beta, self.learn_beta)
        return TopItemsLoss(index, source, temperature, self, seed)

"""The best items of an index that is encoded anew every so often (ANCE, Xiong et al. 2021).

They count once each, as the method has it, so its loss is over a handful of items.
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
from outsize.negatives.cache.precision import Precision
from outsize.negatives.cache.stored_items import KeptRows
from outsize.negatives.contract import ItemSource, LossReport, NegativesConfig
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.chosen_items import SampledLoss


class TopItemsLoss(SampledLoss):
    """Hard negatives: some of the best items of an index that is encoded anew every so often.

    Args:
        index: All items as they were encoded last; it needs no features.
        source: All items.
        temperature: β.
        config: How many, and how often.
        seed: Seed of what is chosen.
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

    @property
    def log_weight(self) -> float:  # noqa: D102
        return 0.0

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
        chance = torch.rand(best.shape, generator=generator, device=best.device)
        chance = torch.where(best >= 0, chance, -1.0)
        picked = chance.topk(min(self._config.num_negatives, best.shape[1]), dim=1).indices
        rows = best.gather(1, picked)
        return torch.where(rows >= 0, self.cache.keys[rows.clamp_min(0)], -1)

    def commit(self, report: LossReport) -> None:
        """Choose others next time, from items encoded anew where it is time for that.

        If encoding raises, nothing has changed; if it is stopped, `refresh` is left to be done.
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
        """Encode all items, where it is time for that."""
        if self.step % self._config.refresh_every == 0:
            self.begin()

    def latest_metrics(self) -> dict[str, float]:
        """How old the index is."""
        return {"age": float(self.cache.ages().float().mean())}

    @torch.no_grad()
    def _encode_all(self) -> tuple[Tensor, Tensor, KeptRows]:
        """All items as the index takes them in; refuses what it cannot keep."""
        keys = torch.arange(self._source.num_items, device=self.cache.keys.device)
        return keys, *self.cache.prepare({}, self._source.encode_keys(keys), keys)


@dataclass(frozen=True)
class TopItemsConfig(NegativesConfig):
    """Some of the best items of an index that is encoded anew every so often.

    Attributes:
        num_negatives: Items for each query.
        num_candidates: Of how many best ones they are chosen evenly.
        refresh_every: Steps between encodings of all items.
        in_batch: Join the positives of the batch's other queries.
        precision: How the index is kept.
    """

    num_negatives: int = 16
    num_candidates: int = 200
    refresh_every: int = 500
    in_batch: bool = True
    precision: Precision = "bfloat16"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_negatives", "num_candidates", "refresh_every")

    def build(self, source: ItemSource, seed: int) -> TopItemsLoss:  # noqa: D102
        index = NegativeCache(source.num_items, source.dim, precision=self.precision, seed=seed)
        temperature = Temperature(self.beta, self.learn_beta)
        return TopItemsLoss(index, source, temperature, self, seed)

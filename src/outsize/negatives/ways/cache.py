"""The negative cache loss: draw negatives, encode them, compute the loss, write back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged
from outsize.negatives.batch_items import encode_distinct, hard_negative_mask, require_items
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.key_index import as_lists
from outsize.negatives.cache.upkeep import CacheUpdater, Upkeep
from outsize.negatives.contract import EncodeItems, LossReport, NegativesLoss, cross_entropies
from outsize.negatives.estimators import ESTIMATORS, cached_softmax
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.in_batch import in_batch_logits, symmetric_loss
from outsize.ranks.failures import failing_in_group
from outsize.ranks.gathering import gather_keys, gather_lines
from outsize.registries import require_known


@dataclass(frozen=True)
class Comparison:
    """Which negatives join those of the cache, and how gradients are estimated.

    Attributes:
        estimator: A key of `ESTIMATORS`.
        in_batch: Add in-batch negatives, from all ranks that share the cache.
        symmetric: Average with the loss of the other direction: each positive against the queries
            of the batch.
    """

    estimator: str = "weighted"
    in_batch: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        require_known("estimator", self.estimator, ESTIMATORS)


@dataclass(frozen=True)
class CacheLossReport(LossReport):
    """The loss of one batch against a cache.

    Attributes:
        positives: The positives of the batch.
        positive_embeddings: Their fresh embeddings.
        draw: The drawn items; `None` during the warm-up.
        drawn: Their fresh embeddings.
    """

    positives: HeldItems = field(kw_only=True)
    positive_embeddings: Tensor = field(kw_only=True)
    draw: Draw | None = None
    drawn: Tensor | None = None


class NegativeCacheLoss(NegativesLoss):
    """Softmax cross-entropy against a cache of stale items.

    A forward pass draws negatives for the queries, then encodes positives and drawn items in one
    call, each distinct item once. Call `commit` with the report after the optimizer's step; the
    cache does not change before.

    Args:
        cache: The cache.
        encode_items: Features `(n, …)` by name → embeddings `(n, dim)`.
        beta: The inverse temperature, or a `Temperature`, which may be learned.
        num_negatives: Draws per query.
        comparison: Further negatives, and the estimator of the gradient.
        upkeep: How the cache is fed and refreshed.

    Example:
        >>> table = nn.Embedding(100, 8)
        >>> cache = outsize.NegativeCache(64, 8, {"id": ((), torch.int64)})
        >>> loss = outsize.NegativeCacheLoss(cache, lambda items: table(items["id"]), beta=5.0)
        >>> keys = torch.tensor([3, 7])
        >>> report = loss(table(torch.tensor([13, 17])), {"id": keys}, keys)
        >>> report.loss.backward()
        >>> loss.commit(report)
        >>> cache.num_held
        2
    """

    def __init__(
        self,
        cache: ItemCache,
        encode_items: EncodeItems,
        beta: float | Temperature = 20.0,
        num_negatives: int = 4,
        comparison: Comparison | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        super().__init__()
        if num_negatives < 1:
            raise ConfigError(f"num_negatives must be >= 1, but got {num_negatives}")
        self.cache = cache
        self.temperature = beta if isinstance(beta, Temperature) else Temperature(beta)
        self.num_negatives = num_negatives
        self.comparison = comparison or Comparison()
        self.upkeep = upkeep or Upkeep()
        self._encode = encode_items
        self._updater = CacheUpdater(cache, encode_items, self.upkeep)
        self._pushed = PushReport(0, 0, 0)

    def begin(self) -> None:
        """Fill the cache from its feed. With a warm-up, that happens at its end instead."""
        self._updater.begin()

    def forward(
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
        hard: HeldItems | None = None,
    ) -> CacheLossReport:
        """The loss of a batch.

        Args:
            queries: Encoded queries, with gradients.
            features: The encoder's inputs for the positives, `(batch, …)` by name.
            keys: Keys of the positives.
            known: Keys of the query's other known positives, which are masked. Lists, or a matrix
                padded with −1.
            hard: Hard negatives, the same number per query, those of the first query first; key −1
                for none. Each counts once, for its own query only, and not if it is a positive of
                that query.
        """
        beta = self.temperature()
        positives = HeldItems(torch.full_like(keys, -1), keys, features)
        with failing_in_group(self.cache.ranks, self.cache.device):
            require_items(positives, hard)
        hard_keys = None if hard is None else _by_query(hard.keys, len(keys))
        is_in_batch = self.comparison.in_batch or self._updater.is_warming_up
        all_keys = gather_keys(keys, self.cache.ranks)[0] if is_in_batch else None
        draw = self._draw(queries, beta, keys, known, hard_keys, all_keys)
        parts = [positives, *([draw.items()] if draw else []), *([hard] if hard else [])]
        encoded = encode_distinct(self._encode, parts)
        own = encoded[0]
        extra_logits: list[Tensor] = []
        if is_in_batch:
            all_own = gather_lines(own, self.cache.ranks)
            extra_logits.append(in_batch_logits(queries, all_own, beta, keys, known, all_keys))
        if hard_keys is not None:
            counts = hard_negative_mask(hard_keys, keys, known, all_keys)
            own_hard = _by_query(encoded[-1], len(keys)).float()
            own_logits = beta * torch.einsum("bd,bkd->bk", queries.float(), own_hard)
            extra_logits.append(own_logits.masked_fill(~counts, -torch.inf))
        logits = torch.cat(extra_logits, dim=1) if extra_logits else None
        drawn = staleness = None
        if draw is None:
            assert logits is not None
            positive = beta * (queries.float() * own.float()).sum(dim=1)
            losses = cross_entropies(positive, logits)
            loss = losses.mean()
        else:
            drawn = encoded[1].unflatten(0, draw.rows.shape)
            estimator = self.comparison.estimator
            result = cached_softmax(queries, own, drawn, draw, beta, estimator, logits)
            loss, losses, staleness = result.loss, result.losses, result.staleness
        if self.comparison.symmetric:
            loss = symmetric_loss(loss, queries, own, beta, keys, known, self.cache.ranks)
        return CacheLossReport(
            loss,
            losses.detach(),
            _metrics(losses.detach(), beta, draw, staleness),
            positives=positives,
            positive_embeddings=own.detach(),
            draw=draw,
            drawn=None if drawn is None else drawn.detach(),
        )

    def commit(self, report: LossReport) -> None:
        """Write back fresh embeddings, add new items, sweep the oldest.

        If it raises, no rank's cache has changed.
        """
        assert isinstance(report, CacheLossReport)
        self._pushed = self._updater.commit(
            report.positives, report.positive_embeddings, report.draw, report.drawn
        )

    def refresh(self) -> None:
        """Complete a commit that was stopped: the sweep, or the filling after the warm-up."""
        self._updater.refresh()

    def latest_metrics(self) -> dict[str, float]:
        """Metrics of the cache after the last commit, without communication.

        `age` and `age_p95` are commits since the held items were encoded; `refreshed` is the share
        encoded in the last step (the effective ρ); `held` and `alpha` are the items held and their
        share of the corpus; `pushed_known` is the share of pushed items that were held already. In
        a shared cache, the last three cover all ranks, the others only this rank's items.
        """
        ages = self.cache.ages().float()
        pushed = self._pushed.num_new + self._pushed.num_known + self._pushed.num_repeated
        known = {} if not pushed else {"pushed_known": 1 - self._pushed.num_new / pushed}
        if not len(ages):
            return {"held": float(self.cache.num_held), **known}
        return {
            "age": float(ages.mean()),
            "age_p95": float(_p95(ages)),
            "refreshed": float((ages == 0).float().mean()),
            "held": float(self.cache.num_held),
            "alpha": self.cache.alpha,
            **known,
        }

    def _draw(
        self,
        queries: Tensor,
        beta: Tensor,
        keys: Tensor,
        known: Tensor | Ragged | None,
        hard_keys: Tensor | None,
        batch_keys: Tensor | None,
    ) -> Draw | None:
        if self._updater.is_warming_up:
            return None
        return self.cache.sample(
            queries,
            self.num_negatives,
            beta,
            exclude=as_lists(keys, known, hard_keys),
            exclude_everywhere=batch_keys,
            advance=torch.is_grad_enabled(),
            **ESTIMATORS[self.comparison.estimator].draw_options(),
        )


def _metrics(
    losses: Tensor, beta: Tensor, draw: Draw | None = None, staleness: Tensor | None = None
) -> dict[str, Tensor]:
    metrics = {"p_positive": torch.exp(-losses).mean(), "beta": beta.detach()}
    if draw is not None and staleness is not None:
        is_drawn = draw.rows >= 0
        some = is_drawn.sum().clamp_min(1)
        distinct = torch.unique(draw.keys).shape[0]
        metrics["staleness"] = (staleness * is_drawn).sum() / some
        metrics["staleness_p95"] = _p95((staleness * is_drawn).flatten())
        metrics["drawn_age"] = draw.ages.sum() / some
        metrics["duplicates"] = torch.tensor(1 - distinct / max(1, draw.keys.numel()))
        metrics["without_negatives"] = (draw.log_partition == -torch.inf).float().mean()
    return metrics


def _by_query(values: Tensor, num_queries: int) -> Tensor:
    """Split values by query; each query has the same number, the first query's come first."""
    num_per_query = len(values) // max(1, num_queries)
    return values.view(num_queries, num_per_query, *values.shape[1:])


def _p95(values: Float[Tensor, " n"]) -> Tensor:
    """The 95th percentile; 0 without values."""
    if not len(values):
        return values.sum()
    return values.sort().values[int(0.95 * (len(values) - 1) + 0.5)]

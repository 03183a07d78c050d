"""A step against a negative cache: draw, encode, compare, and keep what was learned about items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.across_ranks import gather_keys, gather_lines
from outsize.negatives.contract import EncodeItems, LossReport, NegativesLoss, cross_entropies
from outsize.negatives.draw import Draw, HeldItems
from outsize.negatives.feeds import Feed, PositivesFeed
from outsize.negatives.in_batch import both_ways, in_batch_logits
from outsize.negatives.item_cache import ItemCache, PushReport
from outsize.negatives.losses import Estimator, cached_softmax
from outsize.negatives.temperature import Temperature


@dataclass(frozen=True)
class Comparison:
    """What a query's positive is compared with, and how gradients are estimated.

    Attributes:
        estimator: "weighted", "sampled" or "control-variate".
        in_batch: Join the positives of the batch's other queries, on all ranks that share the
            cache.
        symmetric: Also compare each positive's query with the batch's other queries, and take the
            mean of both losses.
    """

    estimator: Estimator = "weighted"
    in_batch: bool = False
    symmetric: bool = False


@dataclass(frozen=True)
class Upkeep:
    """What happens to the cache at a commit, besides that drawn items are rewritten.

    Attributes:
        feed: Which items come in.
        refresh: ρ, the share of the held items that is swept a step, the oldest first.
        warmup_steps: Steps in which queries are compared within the batch only, while embeddings
            still change too fast to be worth keeping.
    """

    feed: Feed = field(default_factory=PositivesFeed)
    refresh: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.refresh <= 1:
            raise ConfigError(f"refresh must be from 0 to 1, but got {self.refresh}")


@dataclass(frozen=True)
class CacheLossReport(LossReport):
    """The loss of one batch against a cache.

    Attributes:
        positives: The batch's positives.
        positive_embeddings: What they were encoded to.
        draw: What was drawn; `None` while warming up.
        drawn: What that was encoded to.
    """

    positives: HeldItems = field(kw_only=True)
    positive_embeddings: Tensor = field(kw_only=True)
    draw: Draw | None = None
    drawn: Tensor | None = None


class NegativeCacheLoss(NegativesLoss):
    """Cross-entropy against a cache of stale items, in one call.

    Queries decide what is drawn, so positives and drawn items are encoded in one pass, each
    distinct item once. Call `commit` with the report after the optimizer's step; nothing changes
    before.

    Args:
        cache: The cache.
        encode_items: Features `(n, …)` by name → embeddings `(n, dim)`.
        beta: The inverse temperature, or a `Temperature` that may be learned.
        num_negatives: Draws of each query.
        comparison: What positives are compared with.
        upkeep: How the cache is kept.

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
        self._pushed = PushReport(0, 0, 0)

    def begin(self) -> None:
        """Fill the cache, where its feed has what to fill it with."""
        self.upkeep.feed.begin(self.cache)

    def forward(
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | None = None,
        hard: HeldItems | None = None,
    ) -> CacheLossReport:
        """The loss of a batch.

        Args:
            queries: Encoded queries, with gradients.
            features: What the queries' positives are encoded from, `(batch, …)` by name.
            keys: Keys of the positives.
            known: Keys of other items that are right for a query, −1 for nothing.
            hard: More negatives, the same number for each query and those of the first query
                first; they count for their own query only.
        """
        beta = self.temperature()
        positives = HeldItems(torch.full_like(keys, -1), keys, features)
        hard_keys = None if hard is None else hard.keys.view(len(keys), -1)
        is_in_batch = self.comparison.in_batch or self._is_warming_up
        all_keys = gather_keys(keys, self.cache.ranks)[0] if is_in_batch else None
        draw = self._draw(queries, beta, keys, known, hard_keys, all_keys)
        parts = [positives, *([draw.items()] if draw else []), *([hard] if hard else [])]
        encoded = self._encode_distinct(parts)
        own = encoded[0]
        extra: list[Tensor] = []
        if is_in_batch:
            all_own = gather_lines(own, self.cache.ranks)
            extra.append(in_batch_logits(queries, all_own, beta, keys, known, all_keys))
        if hard is not None:
            own_hard = encoded[-1].unflatten(0, (len(keys), -1)).float()
            extra.append(beta * torch.einsum("bd,bkd->bk", queries.float(), own_hard))
        logits = torch.cat(extra, dim=1) if extra else None
        if draw is None:
            return self._warming_up(queries, own, beta, logits, positives, known)
        drawn = encoded[1].unflatten(0, draw.rows.shape)
        result = cached_softmax(queries, own, drawn, draw, beta, self.comparison.estimator, logits)
        return CacheLossReport(
            self._both_ways(result.loss, queries, own, beta, keys, known),
            result.losses,
            _metrics(result.losses, beta, draw, result.staleness),
            positives=positives,
            positive_embeddings=own.detach(),
            draw=draw,
            drawn=drawn.detach(),
        )

    def commit(self, report: LossReport) -> None:
        """Rewrite what was drawn, let new items in, sweep the oldest."""
        assert isinstance(report, CacheLossReport)
        self.cache.commit(report.draw, report.drawn)
        self._pushed = self.upkeep.feed.feed(
            self.cache, report.positives, report.positive_embeddings
        )
        if self.upkeep.refresh:
            self._sweep()

    def latest_metrics(self) -> dict[str, float]:
        """The cache after the last commit; nothing is sent for it.

        `age` and `age_p95` are commits since the held items were encoded, `refreshed` the share
        encoded in the last step (the ρ in effect), `held` and `alpha` what of the corpus is held,
        `pushed_known` the share of pushed items that were held already. Where ranks share the
        cache, the last three are of all ranks, and the others of the items this rank keeps.
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

    @property
    def _is_warming_up(self) -> bool:
        return self.cache.clock < self.upkeep.warmup_steps

    def _draw(
        self,
        queries: Tensor,
        beta: Tensor,
        keys: Tensor,
        known: Tensor | None,
        hard_keys: Tensor | None,
        batch_keys: Tensor | None,
    ) -> Draw | None:
        if self._is_warming_up:
            return None
        lists = (keys.unsqueeze(1), known, hard_keys)
        return self.cache.sample(
            queries,
            self.num_negatives,
            beta,
            exclude=torch.cat([part for part in lists if part is not None], dim=1),
            exclude_everywhere=batch_keys,
            with_mean=self.comparison.estimator == "control-variate",
        )

    def _encode_distinct(self, parts: list[HeldItems]) -> list[Tensor]:
        """Encode several lists of items in one pass, each distinct item once."""
        keys = torch.cat([part.keys for part in parts])
        distinct, place = torch.unique(keys, return_inverse=True)
        first = torch.full_like(distinct, len(keys)).scatter_reduce_(
            0, place, torch.arange(len(keys), device=keys.device), "amin"
        )
        features = {
            name: torch.cat([part.features[name] for part in parts])[first]
            for name in parts[0].features
        }
        return list(self._encode(features)[place].split([len(part.keys) for part in parts]))

    def _warming_up(
        self,
        queries: Tensor,
        own: Tensor,
        beta: Tensor,
        logits: Tensor | None,
        positives: HeldItems,
        known: Tensor | None,
    ) -> CacheLossReport:
        assert logits is not None
        positive = beta * (queries.float() * own.float()).sum(dim=1)
        losses = cross_entropies(positive, logits)
        loss = self._both_ways(losses.mean(), queries, own, beta, positives.keys, known)
        return CacheLossReport(
            loss,
            losses.detach(),
            _metrics(losses.detach(), beta),
            positives=positives,
            positive_embeddings=own.detach(),
        )

    def _both_ways(
        self,
        loss: Tensor,
        queries: Tensor,
        own: Tensor,
        beta: Tensor,
        keys: Tensor,
        known: Tensor | None,
    ) -> Tensor:
        if not self.comparison.symmetric:
            return loss
        return both_ways(loss, queries, own, beta, keys, known, self.cache.ranks)

    @torch.no_grad()
    def _sweep(self) -> None:
        """Encode the oldest items anew: ρ·held a step, on average where that is no integer."""
        share, clock = self.upkeep.refresh * self.cache.num_held_here, self.cache.clock
        due = self.cache.oldest(int(share * clock) - int(share * (clock - 1)))
        nothing = torch.empty(0, self.cache.dim, device=self.cache.device)
        self.cache.rewrite(due, self._encode(due.features) if len(due.keys) else nothing)


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


def _p95(values: Float[Tensor, " n"]) -> Tensor:
    """The 95th percentile: the smallest value that at least so many do not exceed; 0 of none."""
    if not len(values):
        return values.sum()
    return values.sort().values[int(0.95 * (len(values) - 1) + 0.5)]

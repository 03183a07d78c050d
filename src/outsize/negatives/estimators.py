"""Softmax cross-entropy against a cache: the value is exact, the gradient is estimated.

Let s⁺ be the logit of a query's positive, s̃ⱼ the logits of the cached items, and J ~ softmax(s̃):

    L = log(exp s⁺ + Σⱼ exp s̃ⱼ) − s⁺ = −log p⁺.

The exact gradient would need every item re-encoded. An estimate needs only the drawn items, whose
fresh logits s_J carry gradients into the encoder. All estimators (`ESTIMATORS`) have the
expectation Σⱼ p̃ⱼ ∇sⱼ − ∇s⁺:

- "sampled" (Lindgren et al. 2021): J is drawn from the positive and the cache, and the estimate is
  ∇s_J − ∇s⁺, which is 0 if J is the positive.
- "weighted": J is drawn from the cache, and the estimate is (1 − p⁺)(∇s_J − ∇s⁺). The choice
  between positive and cache is replaced by its expectation.
- "control-variate": cached embeddings are constants, so the gradient of log Σⱼ exp s̃ⱼ with respect
  to the query and β is known exactly; only that of the difference s_J − s̃_J is estimated. This
  removes most of the variance of the query's gradient, for a second pass over the cache
  (`with_mean`).

- "shared": every draw of the batch serves every query. Query b weights a draw J of any query by
  w = p̃_b(J) / (k · Σ_b′ p̃_b′(J)), the balance heuristic of multiple importance sampling with the
  proposals of all B queries, k draws each. Its expectation is Σ_b′ k Σⱼ p̃_b′(j) w(j) ∇sⱼ =
  Σⱼ p̃_b(j) ∇sⱼ, so B enters only through the sum in the denominator. An item that is masked for
  query b has p̃_b = 0 and weight 0 there. Nothing more is encoded. The draws are those of this
  rank's queries.
- "systematic": "weighted", with equally spaced uniform numbers for the k draws of a query instead
  of independent ones; "shared-systematic": "shared" with such draws.

All are averaged over k draws. Items with logits of their own (in-batch and hard negatives) join the
sum with exact gradients. Exclude them from the cache, or they count twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.cache.draw import Draw
from outsize.registries import require_known


@dataclass(frozen=True)
class CachedSoftmax:
    """The loss against a cache, and what to log.

    Attributes:
        loss: Mean of −log p⁺ over the batch; its gradient is the estimator's.
        losses: −log p⁺ per query, without gradients.
        staleness: Embedding drift of each drawn item: ‖cached − fresh‖² / ‖fresh‖².
    """

    loss: Float32[Tensor, ""]
    losses: Float32[Tensor, " batch"]
    staleness: Float32[Tensor, "batch k"]

    @property
    def p_positive(self) -> Float32[Tensor, " batch"]:
        """The probability of each query's positive."""
        return torch.exp(-self.losses)


@dataclass(frozen=True)
class Logits:
    """Logits with gradients, for an estimator.

    Attributes:
        fresh: Those of the positive, in the first column, and of further items.
        drawn: Those of the drawn items, freshly encoded.
        items: The drawn items, freshly encoded.
        queries: The encoded queries.
        beta: The inverse temperature.
    """

    fresh: Float32[Tensor, "batch extra"]
    drawn: Float32[Tensor, "batch k"]
    items: Float32[Tensor, "batch k dim"]
    queries: Float32[Tensor, "batch dim"]
    beta: float | Float[Tensor, ""]


class DrawOptions(TypedDict):
    """Options of `ItemCache.sample`."""

    with_mean: bool
    with_pairs: bool
    systematic: bool


@dataclass(frozen=True)
class Estimator:
    """How gradients are estimated.

    Attributes:
        losses: −log p⁺ per query, with the estimator's gradient.
        needs_mean: Whether the draw must be made `with_mean`.
        needs_pairs: Whether the draw must be made `with_pairs`.
        systematic: Whether the draw is made with equally spaced uniform numbers.
    """

    losses: Callable[[Logits, Draw], Tensor]
    needs_mean: bool = False
    needs_pairs: bool = False
    systematic: bool = False

    def draw_options(self) -> DrawOptions:
        """The options of `ItemCache.sample` that this estimator needs."""
        return {
            "with_mean": self.needs_mean,
            "with_pairs": self.needs_pairs,
            "systematic": self.systematic,
        }


def cached_softmax(
    queries: Float[Tensor, "batch dim"],
    positives: Float[Tensor, "batch dim"],
    drawn: Float[Tensor, "batch k dim"],
    draw: Draw,
    beta: float | Float[Tensor, ""] = 1.0,
    estimator: str = "weighted",
    extra_logits: Float[Tensor, "batch extra"] | None = None,
) -> CachedSoftmax:
    """Cross-entropy of each positive against the cache, with an estimated gradient.

    Args:
        queries: Encoded queries.
        positives: Fresh embeddings of their positives.
        drawn: Fresh embeddings of the drawn items.
        draw: The draw of `NegativeCache.sample` at the same β, with the positives excluded, made
            with `ESTIMATORS[estimator].draw_options()`.
        beta: The inverse temperature. A tensor gets a gradient too.
        estimator: A key of `ESTIMATORS`.
        extra_logits: Logits (β·score) of further items per query, −∞ for masked ones.
    """
    require_known("estimator", estimator, ESTIMATORS)
    queries, positives, drawn = queries.float(), positives.float(), drawn.float()
    fresh = (beta * (queries * positives).sum(dim=1)).unsqueeze(1)
    if extra_logits is not None:
        fresh = torch.cat((fresh, extra_logits.float()), dim=1)
    logits = Logits(fresh, beta * _dot(queries, drawn), drawn, queries, beta)
    losses = ESTIMATORS[estimator].losses(logits, draw)
    with torch.no_grad():
        size = drawn.square().sum(dim=2).clamp_min(torch.finfo(torch.float32).tiny)
        staleness = (draw.embeddings - drawn).square().sum(dim=2) / size
    return CachedSoftmax(losses.mean(), losses.detach(), staleness)


def _weighted_losses(logits: Logits, draw: Draw) -> Tensor:
    return _losses_of_change(_mean_of_draws(logits.drawn), logits, draw)


def _control_variate_losses(logits: Logits, draw: Draw) -> Tensor:
    if draw.mean_embedding is None:
        raise ConfigError("the control variate needs a draw: call sample with with_mean=True")
    known = logits.beta * (logits.queries * draw.mean_embedding).sum(dim=1)
    stale = logits.beta * _dot(logits.queries, draw.embeddings)
    change = _mean_of_draws(logits.drawn) - _mean_of_draws(stale) + known
    return _losses_of_change(change, logits, draw)


def _shared_losses(logits: Logits, draw: Draw) -> Tensor:
    weights = shared_weights(draw)
    # A draw without an item has weight 0, but its embedding may be anything.
    is_drawn = (draw.rows >= 0).flatten().unsqueeze(1)
    items = torch.where(is_drawn, logits.items.flatten(0, 1), 0.0)
    change = logits.beta * (logits.queries * (weights @ items)).sum(dim=1)
    return _losses_of_change(change, logits, draw)


def shared_weights(draw: Draw) -> Float32[Tensor, "batch draws"]:
    """The weight of every draw of the batch for every query: p̃_b(J) / (k · Σ_b′ p̃_b′(J)).

    The weights of a query have the expectation 1 in sum; they are 0 for a query without items.

    Args:
        draw: A draw that was made with `with_pairs=True`.
    """
    if draw.pair_logits is None:
        raise ConfigError("shared draws need the logits of all pairs: sample with_pairs=True")
    has_items = draw.log_partition.isfinite()
    shift = torch.where(has_items, draw.log_partition, 0.0).unsqueeze(1)
    log_probs = (draw.pair_logits - shift).masked_fill(~has_items.unsqueeze(1), -torch.inf)
    total = log_probs.logsumexp(dim=0)
    total = torch.where(total > -torch.inf, total, torch.inf)  # no item: all weights are 0
    return (log_probs - total).exp() / max(1, draw.num)


def _sampled_losses(logits: Logits, draw: Draw) -> Tensor:
    """J is drawn from the fresh logits and the cache."""
    fresh, positive = logits.fresh, logits.fresh[:, 0]
    whole = torch.logaddexp(fresh.logsumexp(dim=1), draw.log_partition).detach()
    shares = (fresh.detach() - whole.unsqueeze(1)).exp().cumsum(dim=1)
    # A uniform number below the total share of the fresh logits picks one of them, else the draw.
    place = torch.searchsorted(shares, draw.uniforms.contiguous(), right=True)
    is_cached = (place >= fresh.shape[1]) & (draw.rows >= 0)
    # With an empty cache, rounding may leave a number above all shares: it picks the positive.
    picked = fresh.gather(1, torch.where(place < fresh.shape[1], place, 0))
    chosen = _mean_of_draws(torch.where(is_cached, logits.drawn, picked))
    surrogate = chosen - positive
    return (whole - positive).detach() + surrogate - surrogate.detach()


def _losses_of_change(change: Float32[Tensor, " batch"], logits: Logits, draw: Draw) -> Tensor:
    """−log p⁺, where the log-partition of the cache has the gradient of `change`."""
    cached = draw.log_partition + change - change.detach()
    return torch.logaddexp(logits.fresh.logsumexp(dim=1), cached) - logits.fresh[:, 0]


def _dot(queries: Float32[Tensor, "batch dim"], items: Float32[Tensor, "batch k dim"]) -> Tensor:
    return torch.einsum("bd,bkd->bk", queries, items)


def _mean_of_draws(values: Float32[Tensor, "batch k"]) -> Float32[Tensor, " batch"]:
    """The mean over draws; 0 without draws."""
    return values.sum(dim=1) / max(1, values.shape[1])


ESTIMATORS: dict[str, Estimator] = {
    "weighted": Estimator(_weighted_losses),
    "sampled": Estimator(_sampled_losses),
    "control-variate": Estimator(_control_variate_losses, needs_mean=True),
    "shared": Estimator(_shared_losses, needs_pairs=True),
    "systematic": Estimator(_weighted_losses, systematic=True),
    "shared-systematic": Estimator(_shared_losses, needs_pairs=True, systematic=True),
}

"""Softmax cross-entropy against a cache: the value is the loss, the gradient an estimate.

With s⁺ the logit of a query's positive, s̃ⱼ those of the cached items and J drawn from softmax(s̃),

    L = log(exp s⁺ + Σⱼ exp s̃ⱼ) − s⁺ = −log p⁺.

Its gradient would need every item encoded anew. An estimate needs the drawn ones only, whose fresh
logits s_J carry gradients into the encoder; in expectation it is Σⱼ p̃ⱼ ∇sⱼ − ∇s⁺ for each of:

- "sampled" (Lindgren et al. 2021): J ranges over the positive and the cache, and the estimate is
  ∇s_J − ∇s⁺, which is 0 where J is the positive.
- "weighted": J ranges over the cache, and the estimate is (1 − p⁺)(∇s_J − ∇s⁺). The same
  expectation without the dice between positive and cache.
- "control-variate": the gradient of log Σⱼ exp s̃ⱼ in the query and in β is known exactly, since
  cached embeddings are constants, and only the change s_J − s̃_J is estimated. This takes most of
  the variance out of the query's gradient, for a second pass over the cache (`with_mean`).

All of them mean over k draws. Items with logits of their own (the rest of a batch, hard negatives)
join the sum with exact gradients, and must be excluded from the cache, or they count twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.cache.draw import Draw

Estimator = Literal["weighted", "sampled", "control-variate"]
ESTIMATORS: tuple[Estimator, ...] = ("weighted", "sampled", "control-variate")


@dataclass(frozen=True)
class CachedSoftmax:
    """A loss to minimise, and what to read of it.

    Attributes:
        loss: Mean of −log p⁺ over the batch; its gradient is the estimator's.
        losses: −log p⁺ of each query, without a gradient.
        staleness: ‖cached − fresh‖² / ‖fresh‖² of each drawn item.
    """

    loss: Float32[Tensor, ""]
    losses: Float32[Tensor, " batch"]
    staleness: Float32[Tensor, "batch k"]

    @property
    def p_positive(self) -> Float32[Tensor, " batch"]:
        """The probability of each query's positive."""
        return torch.exp(-self.losses)


def cached_softmax(
    queries: Float[Tensor, "batch dim"],
    positives: Float[Tensor, "batch dim"],
    drawn: Float[Tensor, "batch k dim"],
    draw: Draw,
    beta: float | Float[Tensor, ""] = 1.0,
    estimator: Estimator = "weighted",
    extra_logits: Float[Tensor, "batch extra"] | None = None,
) -> CachedSoftmax:
    """Cross-entropy of each query's positive among everything it is compared with.

    Args:
        queries: Encoded queries.
        positives: Their positives, encoded now.
        drawn: The drawn items, encoded now.
        draw: What `NegativeCache.sample` drew at the same β, the positives excluded.
        beta: The inverse temperature; a tensor gets a gradient too.
        estimator: "weighted", "sampled" or "control-variate".
        extra_logits: β·score of more items for each query, −∞ for none.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"estimator is one of {', '.join(ESTIMATORS)}, but got {estimator!r}")
    queries, positives, drawn = queries.float(), positives.float(), drawn.float()
    positive = beta * (queries * positives).sum(dim=1)
    fresh = positive.unsqueeze(1)
    if extra_logits is not None:
        fresh = torch.cat((fresh, extra_logits.float()), dim=1)
    logits = beta * _dot(queries, drawn)
    if estimator == "sampled":
        losses = _dice(fresh, logits, draw)
    else:
        change = _mean_of_draws(logits)
        if estimator == "control-variate":
            if draw.mean_embedding is None:
                raise ConfigError("the control variate needs a draw made with with_mean=True")
            known = beta * (queries * draw.mean_embedding).sum(dim=1)
            change = change - _mean_of_draws(beta * _dot(queries, draw.embeddings)) + known
        cached = draw.log_partition + change - change.detach()
        losses = torch.logaddexp(fresh.logsumexp(dim=1), cached) - positive
    with torch.no_grad():
        size = drawn.square().sum(dim=2).clamp_min(torch.finfo(torch.float32).tiny)
        staleness = (draw.embeddings - drawn).square().sum(dim=2) / size
    return CachedSoftmax(losses.mean(), losses.detach(), staleness)


def _dice(fresh: Tensor, logits: Tensor, draw: Draw) -> Tensor:
    """−log p⁺ with the gradient of drawing from everything, cached or not."""
    positive = fresh[:, 0]
    whole = torch.logaddexp(fresh.logsumexp(dim=1), draw.log_partition).detach()
    shares = (fresh.detach() - whole.unsqueeze(1)).exp().cumsum(dim=1)
    # A uniform number below the share of the fresh logits picks one of them, else the cached draw.
    place = torch.searchsorted(shares, draw.uniforms.contiguous(), right=True)
    is_cached = (place >= fresh.shape[1]) & (draw.rows >= 0)
    # With nothing cached, rounding may leave a number above all shares: it picks the positive.
    picked = fresh.gather(1, torch.where(place < fresh.shape[1], place, 0))
    surrogate = _mean_of_draws(torch.where(is_cached, logits, picked)) - positive
    return (whole - positive).detach() + surrogate - surrogate.detach()


def _dot(queries: Float32[Tensor, "batch dim"], items: Float32[Tensor, "batch k dim"]) -> Tensor:
    return torch.einsum("bd,bkd->bk", queries, items)


def _mean_of_draws(values: Float32[Tensor, "batch k"]) -> Float32[Tensor, " batch"]:
    """The mean over draws; 0 where there are none."""
    return values.sum(dim=1) / max(1, values.shape[1])

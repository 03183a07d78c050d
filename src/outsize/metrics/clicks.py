"""Metrics of click models over streams of any length, in bounded memory.

Log loss, normalized entropy and calibration are sums, exact at any length. The area under the ROC
curve (AUC) needs sorted scores: it is exact up to a limit on their number. Beyond it, scores are
counted in a histogram, and the result comes with a bound on its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.metrics.calibration import Calibration, CalibrationBins
from outsize.ranks.collectives import gather_rows, sum_over_ranks, world_size

EXACT_EXAMPLES = 1 << 22
NUM_BINS = 1 << 16


@dataclass(frozen=True)
class AUC:
    """An area under the ROC curve, with an error bound.

    Attributes:
        value: The area; `None` if only one class occurs.
        error: A bound on |value − exact|; 0 when exact.
    """

    value: float | None
    error: float


def exact_auc(logits: Float[Tensor, " n"], labels: Float[Tensor, " n"]) -> float | None:
    """The probability that a positive scores above a negative; ties count one half.

    `None` if there are no positives or no negatives.
    """
    positives = labels.sum(dtype=torch.float64)
    negatives = labels.shape[0] - positives
    if not (positives > 0 and negatives > 0):
        return None
    order = torch.argsort(logits)
    scores = logits[order]
    _, tie, sizes = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    mean_rank = last - (sizes.double() - 1) / 2
    rank_sum = (mean_rank[tie] * labels[order].double()).sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def histogram_auc(positives: Int64[Tensor, " bins"], negatives: Int64[Tensor, " bins"]) -> AUC:
    """The AUC from counts per bin, with bins in ascending order of score.

    Pairs within a bin count one half, so the error is at most half the share of such pairs.
    """
    pos, neg = positives.double(), negatives.double()
    pairs = pos.sum() * neg.sum()
    if not pairs > 0:
        return AUC(None, 0.0)
    below = neg.cumsum(0) - neg
    inside = (pos * neg).sum() / 2
    return AUC(float(((pos * below).sum() + inside) / pairs), float(inside / pairs))


class ClickMetrics:
    """Accumulates batches of logits and labels; `result` returns the metrics so far.

    Args:
        exact_examples: The AUC is exact up to this many examples (4,194,304 by default: 32 MB).
            With more, scores are counted in a histogram of 65,536 bins of equal width in
            probability.
    """

    def __init__(self, exact_examples: int = EXACT_EXAMPLES) -> None:
        self._exact_examples = exact_examples
        self._device = torch.device("cpu")  # the device for exchanges between ranks
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._bins: Int64[Tensor, "2 bins"] | None = None
        self._count = 0
        self._loss = 0.0
        self._predicted = 0.0
        self._clicked = 0.0
        self._calibration = CalibrationBins()

    @property
    def num_examples(self) -> int:
        """Number of examples so far."""
        return self._count

    @torch.no_grad()
    def add(self, logits: Float[Tensor, " batch"], labels: Float[Tensor, " batch"]) -> None:
        """Add a batch; labels are 0 or 1."""
        self._device = logits.device
        logits, labels = logits.detach().cpu().float(), labels.detach().cpu().float()
        self._count += labels.shape[0]
        wide = logits.double()
        self._loss += float(
            F.binary_cross_entropy_with_logits(wide, labels.double(), reduction="sum")
        )
        probabilities = torch.sigmoid(wide)
        self._predicted += float(probabilities.sum())
        self._calibration.add(wide, probabilities, labels.double())
        self._clicked += float(labels.sum(dtype=torch.float64))
        if self._bins is not None:
            self._bin(logits, labels)
            return
        self._logits.append(logits)
        self._labels.append(labels)
        if self._count > self._exact_examples:
            self._bins = torch.zeros(2, NUM_BINS, dtype=torch.int64)
            self._bin(torch.cat(self._logits), torch.cat(self._labels))
            self._logits.clear()
            self._labels.clear()

    def _bin(self, logits: Float[Tensor, " batch"], labels: Float[Tensor, " batch"]) -> None:
        assert self._bins is not None
        place = (torch.sigmoid(logits.double()) * NUM_BINS).long().clamp_(max=NUM_BINS - 1)
        for row, chosen in ((0, labels < 0.5), (1, labels >= 0.5)):
            self._bins[row] += torch.bincount(place[chosen], minlength=NUM_BINS)

    def gather(self) -> ClickMetrics:
        """The metrics over the examples of all ranks; call it on all ranks."""
        if world_size() == 1:
            return self
        whole = ClickMetrics(self._exact_examples)
        sums = [float(self._count), self._loss, self._predicted, self._clicked]
        total = sum_over_ranks(torch.tensor(sums, dtype=torch.float64, device=self._device))
        whole._count = int(total[0])
        whole._loss, whole._predicted, whole._clicked = total[1:].tolist()
        whole._calibration = self._calibration.gather(self._device)
        logits = torch.cat([torch.empty(0), *self._logits])
        labels = torch.cat([torch.empty(0), *self._labels])
        if whole._count > self._exact_examples:
            if self._bins is None:
                self._bins = torch.zeros(2, NUM_BINS, dtype=torch.int64)
                self._bin(logits, labels)
            whole._bins = sum_over_ranks(self._bins.to(self._device)).cpu()
        else:
            pairs = torch.stack((logits, labels), dim=1).to(self._device)
            everyone = torch.cat(gather_rows(pairs)).cpu()
            whole._logits, whole._labels = [everyone[:, 0]], [everyone[:, 1]]
        return whole

    def auc(self) -> AUC:
        """The area under the ROC curve, with its error bound."""
        if self._bins is not None:
            return histogram_auc(self._bins[1], self._bins[0])
        if not self._count:
            return AUC(None, 0.0)
        return AUC(exact_auc(torch.cat(self._logits), torch.cat(self._labels)), 0.0)

    def calibration(self) -> Calibration:
        """Predicted and observed rates, in groups of about equal size."""
        return self._calibration.groups()

    def result(self) -> dict[str, float | None]:
        """The metrics by name; `None` for a metric that is undefined for these examples.

        - `loss`: mean log loss (BCE) in nats
        - `auc`, and `auc_error` if it is not exact
        - `normalized_entropy`: loss relative to always predicting the mean rate; lower is better,
          1 means no skill
        - `calibration`: mean prediction divided by mean label; 1 is calibrated
        """
        if not self._count:
            return {"loss": None, "auc": None}
        rate = self._clicked / self._count
        loss = self._loss / self._count
        spread = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        auc = self.auc()
        found = {
            "loss": loss,
            "auc": auc.value,
            "normalized_entropy": loss / spread if spread else None,
            "calibration": self._predicted / self._clicked if self._clicked else None,
        }
        if auc.error:
            found["auc_error"] = auc.error
        return found

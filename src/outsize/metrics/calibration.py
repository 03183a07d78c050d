"""Predicted against observed rates of click models, over streams of any length.

Predictions are counted in 320 bins of equal width in the logit, so that rates of 0.1% and of 50%
are both resolved. Neighbouring bins are then merged into groups of about equal size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.ranks.collectives import sum_over_ranks

NUM_GROUPS = 12
_NUM_BINS = 320
_LARGEST_LOGIT = 12.0


@dataclass(frozen=True)
class Calibration:
    """Rates by group of examples, in ascending order of the prediction.

    Attributes:
        predicted: Mean prediction of each group.
        observed: Its share of clicks.
        count: Its number of examples, at least 1.
    """

    predicted: list[float]
    observed: list[float]
    count: list[int]


class CalibrationBins:
    """Accumulates predictions and clicks by bin; 8 kB, however many examples there are."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, _NUM_BINS, dtype=torch.float64)  # examples, predictions, clicks

    def add(
        self,
        logits: Float[Tensor, " batch"],
        probabilities: Float[Tensor, " batch"],
        labels: Float[Tensor, " batch"],
    ) -> None:
        """Add a batch, on the CPU and in float64; labels are 0 or 1. NaN counts as the lowest."""
        bounded = logits.nan_to_num(-_LARGEST_LOGIT).clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT)
        place = ((bounded / _LARGEST_LOGIT + 1) * (_NUM_BINS / 2)).long().clamp_(max=_NUM_BINS - 1)
        for row, weights in enumerate((None, probabilities, labels)):
            self._sums[row] += torch.bincount(place, weights, minlength=_NUM_BINS)

    def gather(self, device: torch.device) -> CalibrationBins:
        """The bins over the examples of all ranks; call it on all ranks.

        Args:
            device: The device for exchanges between ranks.
        """
        whole = CalibrationBins()
        whole._sums = sum_over_ranks(self._sums.to(device)).cpu()
        return whole

    def groups(self, num_groups: int = NUM_GROUPS) -> Calibration:
        """Bins merged into at most `num_groups` groups of about equal size."""
        count, predicted, clicked = self._sums[:, self._sums[0] > 0]
        if not len(count):
            return Calibration([], [], [])
        before = count.cumsum(0) - count / 2  # the middle of each bin among all examples
        group = (before / count.sum() * num_groups).long()
        _, group = torch.unique(group, return_inverse=True)
        sums = [torch.bincount(group, values) for values in (count, predicted, clicked)]
        return Calibration(
            (sums[1] / sums[0]).tolist(), (sums[2] / sums[0]).tolist(), sums[0].long().tolist()
        )

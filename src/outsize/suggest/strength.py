"""How well one column alone predicts the label, on rows that it was not learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outsize.suggest.profile import Profile

_NUM_BINS = 64
_MAX_ROWS = 100_000
_SMOOTHING = 5.0
_SEED = 0x0D15_1ABE1


@dataclass(frozen=True)
class Strength:
    """AUC of a column alone, held out.

    Attributes:
        by_value: With a rate of the label for each value.
        by_bin: With a rate for each of 64 ranges; 0.5 for columns without numbers.
        by_missing: With a rate for missing values and one for all others.
        spread: Standard error of these, roughly.
    """

    by_value: float
    by_bin: float
    by_missing: float
    spread: float

    @property
    def best(self) -> float:
        """The greatest of them."""
        return max(self.by_value, self.by_bin, self.by_missing)


def strength_of(profile: Profile, labels: NDArray[np.float64]) -> Strength:
    """How well a column predicts labels of 0 and 1; rows with a label of NaN are left out."""
    known = np.flatnonzero(~np.isnan(labels))
    known = known[:: 1 + len(known) // _MAX_ROWS]
    labels = labels[known]
    codes = profile.codes[known] + 1  # 0 is missing
    fold = _folds(len(labels))
    num_rare = min(labels.sum(), len(labels) - labels.sum())
    by_bin = 0.5
    if profile.numbers is not None and profile.num_distinct > _NUM_BINS:
        by_bin = _held_out_auc(_bins(profile.numbers[known]), labels, fold)
    return Strength(
        _held_out_auc(codes, labels, fold),
        by_bin,
        _held_out_auc((codes == 0).astype(np.int64), labels, fold),
        float(np.sqrt(1 / (12 * max(1.0, num_rare)))),
    )


def auc(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """The probability that a row of label 1 scores higher than one of 0; ties count half."""
    _, places = np.unique(scores, return_inverse=True)
    positive = np.bincount(places, labels)
    negative = np.bincount(places, 1 - labels)
    below = np.cumsum(negative) - negative
    pairs = positive.sum() * negative.sum()
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else 0.5


def _held_out_auc(
    groups: NDArray[np.int64], labels: NDArray[np.float64], fold: NDArray[np.bool_]
) -> float:
    """Mean of both halves, each scored by rates of the other."""
    found = []
    for rows in (fold, ~fold):
        size = int(groups.max(initial=0)) + 1
        counts = np.bincount(groups[rows], minlength=size)
        positive = np.bincount(groups[rows], labels[rows], minlength=size)
        prior = labels[rows].mean() if rows.any() else 0.5
        rates = (positive + _SMOOTHING * prior) / (counts + _SMOOTHING)
        found.append(auc(rates[groups[~rows]], labels[~rows]))
    return float(np.mean(found))


def _bins(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """The range of each number, from 1; 0 is missing."""
    present = numbers[~np.isnan(numbers)]
    edges = np.unique(np.quantile(present, np.linspace(0, 1, _NUM_BINS + 1)[1:-1]))
    return np.where(np.isnan(numbers), 0, np.searchsorted(edges, numbers, side="right") + 1)


def _folds(num_rows: int) -> NDArray[np.bool_]:
    """Halves at random, by draws that made-up data will hardly have been made with."""
    return np.random.default_rng(_SEED).random(num_rows) < 0.5

"""Metrics over streams of any length, in bounded memory."""

from outsize.metrics.clicks import (
    AUC,
    EXACT_EXAMPLES,
    NUM_BINS,
    ClickMetrics,
    exact_auc,
    histogram_auc,
)

__all__ = [
    "AUC",
    "EXACT_EXAMPLES",
    "NUM_BINS",
    "ClickMetrics",
    "exact_auc",
    "histogram_auc",
]

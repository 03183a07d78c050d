"""Metrics over streams of any length, in bounded memory."""

from outsize.metrics.calibration import Calibration, CalibrationBins
from outsize.metrics.classes import ClassMetrics
from outsize.metrics.clicks import (
    AUC,
    EXACT_EXAMPLES,
    NUM_BINS,
    ClickMetrics,
    exact_auc,
    histogram_auc,
)
from outsize.metrics.ranking import RankingMetrics
from outsize.metrics.trec_files import (
    measure_run,
    read_qrels,
    read_run,
    write_qrels,
    write_run,
    writing_run,
)

__all__ = [
    "AUC",
    "EXACT_EXAMPLES",
    "NUM_BINS",
    "Calibration",
    "CalibrationBins",
    "ClassMetrics",
    "ClickMetrics",
    "RankingMetrics",
    "exact_auc",
    "histogram_auc",
    "measure_run",
    "read_qrels",
    "read_run",
    "write_qrels",
    "write_run",
    "writing_run",
]

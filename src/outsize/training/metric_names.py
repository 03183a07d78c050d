"""Display names of metrics, and which of them to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LABELS = {
    "auc": "AUC", "accuracy": "accuracy", "micro_f1": "micro-F1", "macro_f1": "macro-F1",
}  # fmt: skip
_QUALITY = ("auc", "accuracy", "micro_f1", "macro_f1")
_RANKING = {"recall": "recall", "ndcg": "NDCG", "mrr": "MRR", "hit": "hit rate", "map": "MAP"}
_OF_EVERY_TASK = (
    "step", "split", "epoch", "loss", "learning_rate", "embedding_learning_rate", "train_s",
    "examples_per_s", "gradient_norm", "hit_rate", "reads", "pushes", "evictions", "largest_lag",
    "exchange_s", "wait_s",
)  # fmt: skip
_NOT_METRICS = (
    "step", "split", "train_s", "epochs", "calibration_predicted", "calibration_observed",
    "calibration_count",
)  # fmt: skip


Metrics = dict[str, float | None]
"""Metrics of a split by name; `None` if a metric is undefined for its examples."""


def label_of(name: str, loss: str = "loss") -> str:
    """The display name of a metric: "NDCG@10".

    Args:
        name: The metric's name in the log.
        loss: What "loss" is called: see `RunConfig.loss_label`.
    """
    if name == "loss":
        return loss
    kind, sign, cut = name.partition("@")
    return f"{_RANKING.get(kind, kind)}@{cut}" if sign else _LABELS.get(name, name)


def quality_names(names: Iterable[str]) -> list[str]:
    """The quality metrics besides the loss: AUC, accuracy and F1, or ranking metrics."""
    return [name for name in names if name in _QUALITY or "@" in name]


def metrics_of(line: Mapping[str, Any]) -> Metrics:
    """The metrics of a line of an evaluation, without its step, times and calibration."""
    return {name: value for name, value in line.items() if name not in _NOT_METRICS}


def own_names(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics of training lines that belong to one task only, such as the age of negatives."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if name not in _OF_EVERY_TASK and not name.startswith("sent_")]


def in_words(metrics: Mapping[str, Any]) -> str:
    """The most important metrics as one line."""
    shown = ["loss", "bayes_loss", *quality_names(metrics), "calibration"]
    return "  ".join(f"{name} {number_of(metrics[name])}" for name in shown if name in metrics)


def capitalized(label: str) -> str:
    """A label as a title, with its other letters as they are."""
    return label[:1].upper() + label[1:]


def number_of(value: float | None, form: str = ".5f") -> str:
    """A formatted metric; "none" if it is undefined, as the AUC of a single class."""
    return "none" if value is None else format(value, form)

"""What metrics are called where people read them, and which of them to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LABELS = {"loss": "log loss", "auc": "AUC"}
_RANKING = {"recall": "recall", "ndcg": "NDCG", "mrr": "MRR", "hit": "hit rate"}
_OF_EVERY_TASK = (
    "step", "split", "epoch", "loss", "learning_rate", "examples_per_s", "hit_rate", "reads",
    "pushes", "evictions", "largest_lag", "exchange_s",
)  # fmt: skip


Metrics = dict[str, float | None]
"""Metrics of a split by name; `None` for one that its examples do not have."""


def label_of(name: str) -> str:
    """A metric's name for people: "NDCG@10"."""
    kind, sign, cut = name.partition("@")
    return f"{_RANKING.get(kind, kind)}@{cut}" if sign else _LABELS.get(name, name)


def quality_names(names: Iterable[str]) -> list[str]:
    """Metrics besides the loss that say how good a model is: its AUC, or those of its rankings."""
    return [name for name in names if name == "auc" or "@" in name]


def own_names(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """What training lines say that only their task has, such as the age of its negatives."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if name not in _OF_EVERY_TASK and not name.startswith("sent_")]


def in_words(metrics: Mapping[str, Any]) -> str:
    """The metrics that a line has room for."""
    shown = ["loss", "bayes_loss", *quality_names(metrics), "calibration"]
    return "  ".join(f"{name} {number_of(metrics[name])}" for name in shown if name in metrics)


def number_of(value: float | None, form: str = ".5f") -> str:
    """A metric for people; "none" for one that does not exist, as an AUC of a single class."""
    return "none" if value is None else format(value, form)

"""Metrics of classification: accuracy and F1, of one class per example or of several.

With tp, fp and fn the numbers of true positives, false positives and false negatives of a class,

    F1 = 2·tp / (2·tp + fp + fn),   0 for a class without any of them.

Macro-F1 is the mean of F1 over classes, micro-F1 the F1 of the summed numbers; of one class per
example, micro-F1 is the accuracy. As in scikit-learn, the mean is over all classes where examples
may have several, and else over those that occur as a label or as a prediction.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.ranks.collectives import sum_over_ranks


class ClassMetrics:
    """Accumulates batches of logits and labels; `result` returns the metrics so far.

    Args:
        num_classes: Number of classes.
        multi_label: Whether an example may have several classes.
    """

    def __init__(self, num_classes: int, *, multi_label: bool = False) -> None:
        self._multi_label = multi_label
        self._device = torch.device("cpu")  # the device for exchanges between ranks
        self._counts = torch.zeros(3, num_classes, dtype=torch.int64)  # tp, predicted, labelled
        self._loss = torch.zeros(2, dtype=torch.float64)  # sum, number of examples

    @property
    def num_examples(self) -> int:
        """Number of examples so far."""
        return int(self._loss[1])

    @torch.no_grad()
    def add(
        self,
        logits: Float[Tensor, "batch classes"],
        labels: Int64[Tensor, " batch"] | Float[Tensor, "batch classes"],
    ) -> None:
        """Add a batch.

        Args:
            logits: A logit per class.
            labels: The class of each example; or 0 or 1 for each class.
        """
        self._device = logits.device
        logits, labels = logits.detach().cpu().double(), labels.detach().cpu()
        num_classes = self._counts.shape[1]
        if self._multi_label:
            wide = labels.double()
            loss = F.binary_cross_entropy_with_logits(logits, wide, reduction="sum") / num_classes
            predicted, wanted = logits > 0, labels > 0.5
            counts = torch.stack([(predicted & wanted).sum(0), predicted.sum(0), wanted.sum(0)])
        else:
            loss = F.cross_entropy(logits, labels, reduction="sum")
            best = logits.argmax(dim=1) if len(labels) else labels
            counts = torch.stack(
                [
                    torch.bincount(classes, minlength=num_classes)
                    for classes in (labels[best == labels], best, labels)
                ]
            )
        self._counts += counts
        self._loss += torch.tensor([float(loss), len(labels)], dtype=torch.float64)

    def gather(self) -> ClassMetrics:
        """The metrics over the examples of all ranks; call it on all ranks."""
        whole = ClassMetrics(self._counts.shape[1], multi_label=self._multi_label)
        whole._counts = sum_over_ranks(self._counts.to(self._device)).cpu()
        whole._loss = sum_over_ranks(self._loss.to(self._device)).cpu()
        return whole

    def result(self) -> dict[str, float | None]:
        """The metrics by name; `None` without examples.

        - `loss`: mean cross-entropy in nats; for several classes, the mean over classes, too
        - `accuracy`: share of examples whose class has the largest logit; of one class only
        - `micro_f1`: for several classes only; a class is predicted if its logit is above 0
        - `macro_f1`
        """
        overall = "micro_f1" if self._multi_label else "accuracy"
        total, count = self._loss.tolist()
        if not count:
            return {"loss": None, overall: None, "macro_f1": None}
        hits, predicted, labelled = self._counts.double()
        both = predicted + labelled
        each = 2 * hits / both.clamp_min(1)
        chosen = each if self._multi_label else each[both > 0]
        micro = float(2 * hits.sum() / both.sum().clamp_min(1))
        return {"loss": total / count, overall: micro, "macro_f1": float(chosen.mean())}

"""Whether what a probe found holds beyond the training data.

Rows of their own learn what is true of an id, and what only its training examples say. Pointers
remember both. If the same examples are read again after the clustering, codes are trained to what
those examples say, noise included. Let a part ρ of the squared length of fully trained rows be
true. Rows that went a part a of the way have gained 2a − a² in training and 2aρ − a² on validation,
so that the second divided by the first is r = (2ρ − a) / (2 − a). Fully trained ones (a = 1) lower
the loss of validation only if ρ > 1/2. Where the rate was chosen by the loss of validation, rows
went as far as that likes, a = ρ, and ρ > 1/2 if r > 1/3. Where they may have gone less far, ρ is at
least r, and r > 1/2 promises it. It is a gain over clustering without the rows, not over the tables
before: either clustering loses what the helper has learned, which says nothing about the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from outsize.ranks.collectives import sum_over_ranks, world_size
from outsize.training.tasks import Task

_LEAST_AT_BEST_RATE = 1 / 3
_LEAST_AT_ANY_RATE = 1 / 2
_SHARE = 0.1


class Losses(NamedTuple):
    """The mean loss of validation, and of a sample of what training has read."""

    validation: float
    training: float

    def below(self, before: Losses) -> Losses:
        """How much lower they are than before."""
        return Losses(before.validation - self.validation, before.training - self.training)

    def holds(self, at_best_rate: bool) -> bool:
        """Whether a gain is one of validation too, and not mostly of training.

        Args:
            at_best_rate: Whether a higher rate was tried and gave a higher loss of validation.
        """
        least = _LEAST_AT_BEST_RATE if at_best_rate else _LEAST_AT_ANY_RATE
        return self.validation > 0 and self.validation >= least * self.training


@torch.no_grad()
def losses_of(task: Task[Any], step: int) -> Losses:
    """The losses of a task as it is; all ranks call it, inside `task.frozen()`.

    Args:
        task: The model with its data; its `validates_loss` holds.
        step: Steps taken; the data that training has read by then is sampled.
    """
    _, num_batches = task.seen(step)
    losses = [task.loss(batch) for batch in task.read_batches(step, max(_SHARE, 1 / num_batches))]
    training = sum_over_ranks(torch.stack(losses).double().mean()) / world_size()
    validation = task.evaluate("validation")["loss"]
    task.model.eval()  # an evaluation ends in training mode
    assert validation is not None
    return Losses(validation, float(training))

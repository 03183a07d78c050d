"""The share of a training step that concerns rows: look-up, gradients of rows, and their update.

Three things are timed in turns: the whole step; the same step on vectors that are given as leaves,
so that dense layers do all their work, the gradient of the vectors included, and rows none; and
the work on rows alone, with the gradient of the vectors given. The share is what the whole step
takes longer than the one on given vectors. What rows take alone is reported beside it: the two
differ by what one kind of work does to the caches of the other. On a GPU with fused rows, all three
run as CUDA graphs, as steps of a run do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.bench.captured import in_turn
from outsize.bench.timing import time_in_turns
from outsize.data import ClickBatch
from outsize.models import DLRM
from outsize.optimizers import RowOptimizer


class GivenVectors(nn.Module):
    """Stands in for the embeddings of a model: returns vectors that it was given.

    Attributes:
        vectors: `(B, features, dim)`, a leaf.
    """

    vectors: Tensor

    def stacked(self, inputs: object) -> Tensor:
        """The given vectors, whatever the ids."""
        return self.vectors


def without_rows(model: DLRM) -> tuple[DLRM, GivenVectors]:
    """A model with the dense layers of another, and new weights, on vectors that it is given."""
    given = GivenVectors()
    dense = DLRM(model.num_dense, model.embeddings).to(model.interaction.pairs.device)
    dense.add_module("embeddings", given)
    return dense, given


def measure_rows_share(
    model: DLRM,
    dense: Optimizer,
    rows: RowOptimizer,
    batches: Sequence[ClickBatch],
    dense_optimizer: Callable[[nn.Module], Optimizer],
    *,
    rounds: int,
    calls: int,
) -> dict[str, Any]:
    """Time the step of a model, its dense part and its rows, in turns.

    Args:
        model: The model.
        dense: The optimizer of its dense weights.
        rows: The optimizer of its rows.
        batches: Batches in memory, which are used in turn.
        dense_optimizer: Makes an optimizer like `dense` for another model.
        rounds: Turns per variant.
        calls: Calls per turn.
    """
    embeddings = model.embeddings
    alone, given = without_rows(model)
    with torch.no_grad():
        leaves = [embeddings.stacked(batch.ids).clone().requires_grad_() for batch in batches]
    other = dense_optimizer(alone)

    def whole_step(place: int) -> None:
        batch = batches[place]
        dense.zero_grad()
        rows.zero_grad()
        _loss(model, batch).backward()
        dense.step()
        rows.step()

    def dense_step(place: int) -> None:
        given.vectors = leaves[place]
        given.vectors.grad = None
        other.zero_grad()
        _loss(alone, batches[place]).backward()
        other.step()

    model.train()
    alone.train()
    for place in range(len(batches)):
        dense_step(place)
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    gradients = [gradient.clone() for gradient in gradients]

    def row_step(place: int) -> None:
        rows.zero_grad()
        embeddings.stacked(batches[place].ids).backward(gradients[place])
        rows.step()

    is_captured = rows.store.fused is not None and batches[0].labels.is_cuda
    work = {"step": whole_step, "dense": dense_step, "rows": row_step}
    places = range(len(batches))
    turns = {
        name: in_turn([partial(step, place) for place in places], is_captured)
        for name, step in work.items()
    }
    timings = time_in_turns(turns, rounds=rounds, calls=calls)
    step = timings["step"].median_s
    return {
        "share": 1 - timings["dense"].median_s / step,
        "share_alone": timings["rows"].median_s / step,
        **{name: asdict(timing) for name, timing in timings.items()},
    }


def _loss(model: DLRM, batch: ClickBatch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)

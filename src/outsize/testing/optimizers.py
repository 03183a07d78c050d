"""Checks for row optimizers: on the rows of a batch, they behave as torch optimizers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.errors import NonFiniteError
from outsize.optimizers import RowOptimizer
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import LocalStore
from outsize.testing.checks import checks_in, refusal

MakeOptimizer = Callable[..., RowOptimizer]
_SPEC = TableSpec("rows", num_rows=12, dim=4)
_IDS = torch.tensor([1, 7, 1, 3])


def _setup(make: MakeOptimizer) -> tuple[RowStore, EmbeddingCollection, RowOptimizer]:
    store = LocalStore([_SPEC])
    return store, EmbeddingCollection([FeatureSpec("rows")], store), make(store, learning_rate=0.1)


def _loss(embeddings: EmbeddingCollection, ids: Tensor = _IDS) -> Tensor:
    vectors: Tensor = embeddings({"rows": ids})["rows"]
    return (vectors * torch.arange(1.0, 5.0)).sum(dim=1).exp().sum()


def _rows(store: RowStore) -> Tensor:
    return store.read(torch.arange(_SPEC.num_rows))


def only_touched_rows_change(make: MakeOptimizer) -> None:
    """A step changes the rows of the batch and no others."""
    store, embeddings, optimizer = _setup(make)
    before = _rows(store)
    _loss(embeddings).backward()
    assert torch.equal(_rows(store), before)
    optimizer.step()
    moved = (_rows(store) != before).any(dim=1)
    assert moved.nonzero().flatten().tolist() == [1, 3, 7]


def steps_lower_the_loss(make: MakeOptimizer) -> None:
    """Repeated steps on one batch lower its loss."""
    _, embeddings, optimizer = _setup(make)
    first = float(_loss(embeddings).detach())
    for _ in range(20):
        optimizer.zero_grad()
        _loss(embeddings).backward()
        optimizer.step()
    assert float(_loss(embeddings).detach()) < first


def step_consumes_gradients(make: MakeOptimizer) -> None:
    """A second step without another backward changes nothing."""
    store, embeddings, optimizer = _setup(make)
    _loss(embeddings).backward()
    optimizer.step()
    after = _rows(store)
    optimizer.step()
    assert torch.equal(_rows(store), after)


def zero_grad_skips_a_step(make: MakeOptimizer) -> None:
    """Zeroed gradients are not applied; `zero_grad` before backward has no effect."""
    store, embeddings, optimizer = _setup(make)
    before = _rows(store)
    _loss(embeddings).backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(_rows(store), before)
    loss = _loss(embeddings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert not torch.equal(_rows(store), before)


def accumulation_equals_one_large_batch(make: MakeOptimizer) -> None:
    """Two backward passes and one step equal one pass over both batches."""
    store, embeddings, optimizer = _setup(make)
    other_store, other_embeddings, other_optimizer = _setup(make)
    _loss(embeddings, _IDS[:2]).backward()
    _loss(embeddings, _IDS[2:]).backward()
    optimizer.step()
    _loss(other_embeddings).backward()
    other_optimizer.step()
    torch.testing.assert_close(_rows(store), _rows(other_store))


def clipping_reaches_the_rows(make: MakeOptimizer) -> None:
    """The optimizer's parameters are the pending rows, as `clip_grad_norm_` expects."""
    _, embeddings, optimizer = _setup(make)
    _loss(embeddings).backward()
    parameters = optimizer.param_groups[0]["params"]
    torch.nn.utils.clip_grad_norm_(parameters, max_norm=1e-3)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    torch.testing.assert_close(float(norm), 1e-3, rtol=1e-3, atol=0)


def schedulers_set_the_rate(make: MakeOptimizer) -> None:
    """A torch scheduler changes the next step; at rate 0 nothing changes."""
    store, embeddings, optimizer = _setup(make)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
    _loss(embeddings).backward()
    optimizer.step()
    scheduler.step()
    before = _rows(store)
    _loss(embeddings).backward()
    optimizer.step()
    assert torch.equal(_rows(store), before)


def nan_gradients_are_refused(make: MakeOptimizer) -> None:
    """A NaN raises, and nothing is applied."""
    store, embeddings, optimizer = _setup(make)
    before = _rows(store)
    (_loss(embeddings) * float("nan")).backward()
    assert "3 rows" in refusal(NonFiniteError, optimizer.step)
    assert torch.equal(_rows(store), before)


def settings_survive_a_round_trip(make: MakeOptimizer) -> None:
    """`state_dict` holds the settings, and loading them restores the learning rate."""
    _, _, optimizer = _setup(make)
    optimizer.param_groups[0]["lr"] = 0.025
    _, _, other = _setup(make)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.025
    assert other.rule().learning_rate == 0.025


def evaluation_leaves_nothing_pending(make: MakeOptimizer) -> None:
    """Reads in evaluation mode or under `no_grad` leave no pending gradients."""
    store, embeddings, optimizer = _setup(make)
    before = _rows(store)
    embeddings.eval()
    assert not _loss(embeddings).requires_grad
    embeddings.train()
    with torch.no_grad():
        _loss(embeddings)
    optimizer.step()
    assert torch.equal(_rows(store), before)


OPTIMIZER_CHECKS: tuple[Callable[[MakeOptimizer], None], ...] = checks_in(globals())

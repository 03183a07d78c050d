"""Whether a run updates its rows in the backward pass."""

from __future__ import annotations

import inspect

from outsize.contracts import RowStore
from outsize.errors import ConfigError
from outsize.kernels.available import uses_triton
from outsize.optimizers import ROW_OPTIMIZERS
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig


def uses_fused_rows(config: RunConfig, store: RowStore | None) -> bool:
    """Whether the rows of a run are fused: if it asks for it; by default on CUDA, where it can.

    On the CPU it must be asked for, so that results of runs do not change.

    Args:
        config: The run.
        store: Where its rows are, on their device.
    """
    wanted = config.embeddings.fused
    if wanted is False:
        return False
    reason = why_not_fused(config, store)
    if wanted is None:
        is_ours = type(config.model).__module__.startswith("outsize.models.")
        return is_ours and not reason and store is not None and uses_triton(store._no_ids())
    if reason:
        raise ConfigError(f"embeddings.optimizer.fused = true, but {reason}; or leave it out")
    return True


def why_not_fused(config: RunConfig, store: RowStore | None) -> str:
    """Why a run cannot fuse its rows, and what would change that; empty if it can."""
    wanted = config.embeddings
    if store is None or not isinstance(wanted, StoreConfig):
        return "this run has no rows in a store: choose embeddings.kind = 'store'"
    if config.task != "click":
        return (
            f"this is a {config.task} model, which reads rows several times in a step: fused rows "
            "are for click models"
        )
    if config.train.clip_norm is not None:
        return (
            f"train.clip_norm = {config.train.clip_norm:g} scales gradients of rows, which fused "
            "rows do not keep: leave train.clip_norm out"
        )
    kind = wanted.optimizer.kind
    if "fused" not in inspect.signature(ROW_OPTIMIZERS[kind]).parameters:
        return f"the row optimizer {kind!r} has no fused updates: choose 'adagrad' or 'sgd'"
    if store.lines_of(0, store._no_ids(), None) is None:
        return (
            f"this {type(store).__name__} on {store._device()} cannot update rows in the backward "
            "pass: use one rank, with embeddings.store = 'local'"
        )
    return ""

"""The schema of `state.json`, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts.messages import BYTE_KINDS, RowCounts
from outsize.errors import CheckpointError, OutsizeError
from outsize.json_files import Absent, Each, OneOf, SchemaError, Whole, Word, check
from outsize.ranks.collectives import world_size

_COUNTED = {f.name for f in fields(RowCounts)} - {
    "sent_bytes",
    "largest_lag",
    "exchange_s",
    "wait_s",
}
_COUNTS = dict.fromkeys([*sorted(_COUNTED), *(f"sent_{kind}" for kind in BYTE_KINDS)], Whole())
_METRIC = OneOf(None, float)  # null if undefined, as the AUC of a single class
_STAGE = Word("", "commit", "log", "validate", "keep", "recluster", "refill")
_LOOP = {
    "step": Whole(),
    "epoch": Whole(),
    "batch": Whole(),
    "loss_sum": float,
    "loss_count": Whole(),
    "epoch_best": float,
    "previous_best": float,
    "best": Each(_METRIC),
    "test": Each(_METRIC),
    "stopped": str,
}
_LATER = {"row_counts": Each(float), "sums": Each((float, Whole())), "unfinished": _STAGE}
"""Members of the loop's state that the first versions did not write."""

IMPLEMENTATIONS = frozenset({"foreach", "fused", "capturable"})
"""Settings by which torch's optimizers choose kernels; they depend on the device."""

_UNDEFINED_WITHOUT_AUC = {"auc", "bayes_auc", "normalized_entropy", "calibration"}
_CHANGING = {"params", "lr"}  # all other settings of an optimizer are those of the run

_STATE = {
    "num_ranks": Whole(1),
    "batch_size": Whole(1),
    "data": str,
    "loop": _LOOP,
    "model": Each(Tensor),
    "optimizers": [{"state": Each(Each(object)), "param_groups": [{"params": [Whole()]}]}],
    "random": {"cpu": Tensor, "cuda": [Tensor]},
}


def require_state(state: Mapping[str, Any], judge: str, is_older: bool) -> None:
    """Raise a `SchemaError` if a state was not written by a loop.

    Args:
        state: What `load_checkpoint` gave.
        judge: The metric that says which validation is best.
        is_older: Whether it may be of a version that did not write all of it.
    """
    check(state, _STATE)
    loop = state["loop"]
    later = {name: Absent(schema) if is_older else schema for name, schema in _LATER.items()}
    check(loop, {**later, "rejected_probe": Absent(Whole())}, "loop")
    if loop.get("row_counts"):
        seconds = {"exchange_s": float, "wait_s": Absent(float)}
        check(loop["row_counts"], _COUNTS | seconds, "loop.row_counts")
    if loop["best"]:
        check(loop["best"], {"step": Whole(), "loss": float, judge: float}, "loop.best")
        check(loop["test"], {judge: _METRIC, "loss": float}, "loop.test")
        for split in ("best", "test"):
            _require_metrics(loop[split], f"loop.{split}")
    elif loop["test"]:
        raise SchemaError("loop.best is empty, but loop.test, which is of the same step, is not")


def require_fit(
    state: Mapping[str, Any],
    num_batches: int,
    weights: Mapping[str, Tensor],
    optimizers: Sequence[Optimizer],
    *,
    counts_rows: bool,
) -> None:
    """Raise a `SchemaError` if a state belongs to another kind of run.

    Args:
        state: What `require_state` has checked.
        num_batches: Batches in one epoch.
        weights: The weights that are here.
        optimizers: The optimizers that are here.
        counts_rows: Whether the store counts what it reads and sends.
    """
    loop = state["loop"]
    if counts_rows and loop.get("row_counts") == {} and state["num_ranks"] == world_size():
        raise SchemaError("loop.row_counts is empty, but the rows of this run are counted")
    if loop["step"] != loop["epoch"] * num_batches + loop["batch"]:
        raise SchemaError(
            f"loop.step is {loop['step']}, which is not batch {loop['batch']} of epoch "
            f"{loop['epoch']} where an epoch has {num_batches} batches"
        )
    require_weights(state["model"], weights)
    _require_optimizers(state["optimizers"], optimizers)


def require_weights(saved: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Raise a `SchemaError` if saved weights have other names, types or shapes."""
    for name in sorted(saved.keys() | here.keys()):
        found, wanted = _kind_of(saved.get(name)), _kind_of(here.get(name))
        if found != wanted:
            raise SchemaError(f"model.{name} is {found} there and {wanted} here")


@contextmanager
def fitting(checkpoint: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn a `SchemaError` into a `CheckpointError` that names the checkpoint.

    Args:
        checkpoint: What is loaded.
        also: Errors that torch raises for an unexpected state.
    """
    kinds: tuple[type[Exception], ...] = (SchemaError, *also)
    try:
        yield
    except (OutsizeError, torch.OutOfMemoryError):
        raise
    except kinds as error:
        fact = " ".join(str(error).split()) or type(error).__name__
        fact = f"{fact[:297]}..." if len(fact) > 300 else fact
        raise CheckpointError(
            f"checkpoint {checkpoint} does not fit this run: {fact}; remove this folder to resume "
            "from the one before it, or start a new run with --out"
        ) from error


def _require_metrics(metrics: Mapping[str, float | None], where: str) -> None:
    """Raise a `SchemaError` if a metric is null that its examples or queries define."""
    undefined: Collection[str] = ()
    if "num_queries" in metrics:
        check(metrics, {"num_queries": Whole()}, where)
        undefined = () if metrics["num_queries"] else metrics.keys()
    elif metrics.get("auc", 0.0) is None:
        undefined = _UNDEFINED_WITHOUT_AUC
    check(metrics, {name: _METRIC if name in undefined else float for name in metrics}, where)


def _require_settings(saved: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Settings that both have must agree; a version of torch may lack one of another."""
    for name in sorted(saved.keys() & own.keys() - {"params"}):
        schema = OneOf(None, bool) if name in IMPLEMENTATIONS else _schema_of(own[name])
        check(saved[name], schema, f"{where}.param_groups.{name}")
        if name not in IMPLEMENTATIONS | _CHANGING and not _is_same(saved[name], own[name]):
            raise SchemaError(
                f"{where}.param_groups.{name} is {saved[name]} there and {own[name]} here"
            )


def _is_same(saved: Any, own: Any) -> bool:
    return bool(saved == (list(own) if isinstance(own, tuple) else own))


def _schema_of(value: Any) -> Any:
    if value is None:
        return OneOf(None, bool)
    if isinstance(value, list | tuple):
        return tuple(_schema_of(member) for member in value)
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _kind_of(tensor: Tensor | None) -> str:
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _require_optimizers(saved: Sequence[Mapping[str, Any]], here: Sequence[Optimizer]) -> None:
    """Raise a `SchemaError` if saved optimizers are of another kind."""
    if len(saved) != len(here):
        raise SchemaError(f"it holds {len(saved)} optimizers where there are {len(here)}")
    for i, (state, optimizer) in enumerate(zip(saved, here, strict=True)):
        where = f"optimizers[{i}]"
        groups = state["param_groups"]
        if len(groups) != len(optimizer.param_groups):
            raise SchemaError(f"{where}.param_groups is a list of {len(groups)}")
        numbers = [number for group in groups for number in group["params"]]
        if numbers != list(range(len(numbers))):
            raise SchemaError(f"{where}.param_groups do not number their parameters from 0 on")
        for group, own in zip(groups, optimizer.param_groups, strict=True):
            _require_settings(group, own, where)
        for key in state["state"]:
            if key not in map(str, numbers or [0]):
                raise SchemaError(f"{where}.state has {key!r}, which is none of its parameters")

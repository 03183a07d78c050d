"""Settings of a run that follow from the size of the data and of this machine."""

from __future__ import annotations

from typing import Any

from outsize.reporting.quantities import format_bytes
from outsize.spec import TableSpec
from outsize.training.available_memory import available_bytes
from outsize.training.store_config import StoreConfig

DIM = 16
_MAX_BATCH, _MIN_BATCH = 2048, 32
_STEPS_PER_EPOCH = 200
_WIDE, _RANK = 1024, 64
_MEMORY_SHARE = 0.5
_LEAST_CAP = 1 << 14
_FEW_ROWS = 50_000
_SMALL = [64, 32]
_SMALL_START = 0.05  # so that ids that hardly occur hardly matter


def training_settings(num_train: int, most_epochs: int = 5) -> dict[str, Any]:
    """The section `[train]` for a number of training rows."""
    batch_size = _MIN_BATCH
    while batch_size < _MAX_BATCH and batch_size * 2 * _STEPS_PER_EPOCH <= num_train:
        batch_size *= 2
    steps = max(1, -(-num_train // batch_size))
    epochs = most_epochs if num_train < 20_000_000 else 1
    if num_train < _FEW_ROWS:
        epochs = 2 * most_epochs
    train = {"batch_size": batch_size, "epochs": epochs, "validate_every": max(10, -(-steps // 4))}
    return train if steps >= _STEPS_PER_EPOCH else {**train, "log_every": 10}


def min_count(num_rows: int) -> int:
    """How often a value must occur to have an id of its own."""
    return 10 if num_rows >= 200_000 else 5 if num_rows >= 50_000 else 2 if num_rows >= 1_000 else 1


def model_settings(num_dense: int, num_ids: int, num_train: int) -> tuple[dict[str, Any], str]:
    """The section `[model]`, and a comment."""
    model, comment = _model_of_width(num_dense, num_ids)
    if num_train < _FEW_ROWS:
        return {**model, "hidden": _SMALL}, f"{comment}; narrow, for there are few rows"
    return model, comment


def _model_of_width(num_dense: int, num_ids: int) -> tuple[dict[str, Any], str]:
    width = num_dense + num_ids * DIM
    model: dict[str, Any] = {"kind": "dcnv2"}
    if width > _WIDE:
        model["rank"] = _RANK
        return model, f"{width:,} inputs: cross matrices of low rank"
    return model, "best or near the best of seven models on three data sets"


def embedding_settings(
    num_ids_by_column: dict[str, int], num_train: int, memory: int | None = None
) -> tuple[dict[str, dict[str, Any]], str]:
    """The sections of embeddings, and a comment: full rows if they fit in memory, else CCE.

    Args:
        num_ids_by_column: Estimated ids of each column.
        num_train: Training rows.
        memory: Bytes there are; by default those this process may still allocate.
    """
    memory = available_bytes() if memory is None else memory
    specs = [TableSpec(f"t{i}", n + 1, DIM) for i, n in enumerate(num_ids_by_column.values())]
    num_bytes = StoreConfig(dim=DIM).num_bytes(specs, 0)
    num_ids = sum(num_ids_by_column.values())
    size = f"{num_ids:,} ids of {DIM} numbers, {format_bytes(num_bytes)} with the optimizer's state"
    if memory is None or num_bytes <= _MEMORY_SHARE * memory:
        there = "" if memory is None else f" of the {format_bytes(memory)} available"
        start = {"init_std": _SMALL_START} if num_train < _FEW_ROWS else {}
        return {
            "embeddings": {"kind": "store", "dim": DIM, **start},
            "embeddings.optimizer": {"kind": "adagrad", "learning_rate": 0.05},
        }, f"full rows: {size}{there}"
    why = (
        f"compressed: full rows take {size}, more than half of the {format_bytes(memory)} available"
    )
    cap = int(_MEMORY_SHARE * memory / 2) // (4 * 3 * len(specs))
    cap = max(_LEAST_CAP, min(cap, max(spec.num_rows for spec in specs) * DIM // 4))
    return {
        "embeddings": {
            "kind": "tables", "method": "cce", "dim": DIM, "max_params": cap,
            "learning_rate": 0.03,
        },
    }, why  # fmt: skip

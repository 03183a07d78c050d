"""Compresses the embeddings of an existing torch model."""

from __future__ import annotations

import re
import warnings
from typing import Any, cast

from torch import nn

from outsize.contracts import EmbeddingTable
from outsize.errors import BudgetError, ConfigError
from outsize.hashing import derive_seed
from outsize.nn.embedding import Embedding
from outsize.nn.embedding_bag import EmbeddingBag
from outsize.nn.embeddings_of import Group, Only, Replaceable, chosen, groups_of, obstacle
from outsize.nn.report import CompressedModule, CompressionReport, errors_of
from outsize.nn.rows import require_method, table_from_rows
from outsize.spec import Budget, MemoryUse, Pooling, TableSpec

_WITHIN = "all embeddings together are within max_bytes already"


def compress_(
    model: nn.Module,
    *,
    method: str = "pq",
    max_bytes: int | None = None,
    factor: float | None = None,
    only: Only = None,
    min_rows: int = 1_000,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> CompressionReport:
    """Replace the embeddings of a torch model by compressed ones, in place.

    Every `nn.Embedding` and `nn.EmbeddingBag` becomes an `outsize.nn` module of the same call,
    device, dtype, mode and `requires_grad`. It starts from the trained rows, as close to them as
    the method and the budget allow: "pq" quantizes them, "cce" clusters them, "low-rank" projects
    them, and other methods are fitted by least squares. The report has the error of each.
    Embeddings that share a weight share a table, and a padding row keeps its exact vector.

    An embedding that cannot be replaced is skipped with a warning, or refused if `only` names it:
    one whose weight another module uses (a tied output layer), one with `max_norm`,
    `scale_grad_by_freq`, `sparse` or hooks, and subclasses. Code that reads `embedding.weight` in a
    forward pass cannot be found here: it raises `NoWeightError` when it runs.

    If it raises, the model is unchanged. An optimizer made before still has the old parameters:
    make a new one. Compress before wrapping a model in `DistributedDataParallel`.

    Args:
        model: The model.
        method: "pq" for product quantization, or a key of `outsize.TABLES`.
        max_bytes: The most bytes that all replaced embeddings may take together, index maps
            included; each is compressed by the same factor. If they are within it already, they
            are left as they are.
        factor: How many times smaller they become, instead of `max_bytes`.
        only: Name or names of embeddings, as in `named_modules`, or a function of name and module.
        min_rows: Leave embeddings with fewer rows as they are, unless `only` names them.
        seed: Seed of everything random.
        progress: Show a progress bar on standard error while clustering.
        **options: The method's own settings, such as `columns`.
    """
    require_method(method, from_rows=True)
    _require_plain(model)
    groups, skipped = _replaceable(model, only, min_rows)
    total = sum(group.num_bytes for group in groups)
    limit = _limit(total, max_bytes, factor)
    if limit >= total:
        within = {name: _WITHIN for group in groups for name in group.names}
        return CompressionReport((), {**within, **skipped})
    made = []
    for group in groups:
        share = limit * group.num_bytes // total
        table = _table_of(group, method, share, seed, progress, options)
        made.append(_replacements(group, table))
    modules = tuple(_measured(*pair) for pair in zip(groups, made, strict=True))
    for group, replacements in zip(groups, made, strict=True):
        for place in group.places:
            place.parent._modules[place.key] = replacements[id(place.module)]
    return CompressionReport(modules, skipped)


def _require_plain(model: nn.Module) -> None:
    if isinstance(model, nn.Embedding | nn.EmbeddingBag):
        kind = type(model).__name__
        raise ConfigError(
            f"compress_ replaces embeddings inside a model, but this is an nn.{kind} itself: use "
            f"outsize.nn.{kind}.from_pretrained(weight, …)"
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            where = f"{name!r}" if name else "the model"
            raise ConfigError(
                f"compress_: {where} is wrapped in DistributedDataParallel, which holds the "
                "parameters it began with: compress before wrapping"
            )


def _replaceable(model: nn.Module, only: Only, min_rows: int) -> tuple[list[Group], dict[str, str]]:
    """The embeddings to replace, and why others are not; raises if there is none."""
    groups, named = chosen(groups_of(model), only, min_rows)
    found, skipped = [], {}
    for group in groups:
        reason = obstacle(model, group)
        if not reason:
            found.append(group)
        elif named:
            raise ConfigError(f"compress_: cannot replace {group.name!r}: {reason}")
        else:
            skipped.update(dict.fromkeys(group.names, reason))
    if not found:
        why = "; ".join(f"{name!r}: {reason}" for name, reason in skipped.items())
        raise ConfigError(
            f"compress_: the model has no embedding to replace ({why})"
            if why
            else f"compress_: the model has no embedding of {min_rows:,} rows or more to replace: "
            "lower min_rows, or name some with only"
        )
    for name, reason in skipped.items():
        warnings.warn(f"compress_ skips {name!r}: {reason}", stacklevel=3)
    return found, skipped


def _limit(total: int, max_bytes: int | None, factor: float | None) -> int:
    """The bytes that all embeddings may take together."""
    if (max_bytes is None) == (factor is None):
        raise ConfigError("compress_ needs a budget: give max_bytes or factor, and not both")
    if factor is not None:
        if not factor > 1:
            raise ConfigError(f"compress_: factor must be > 1, but got {factor:g}")
        return int(total / factor)
    assert max_bytes is not None
    return max_bytes


def _table_of(
    group: Group,
    method: str,
    max_bytes: int,
    seed: int,
    progress: bool,
    options: dict[str, Any],
) -> EmbeddingTable:
    weight = group.weight
    name = re.sub(r"[^A-Za-z0-9_]", "-", group.name).lstrip("-") or "embedding"
    num_rows, dim = weight.shape
    spec = TableSpec(name, num_rows, dim, dtype=weight.dtype)
    row = spec.dim * spec.dtype.itemsize
    padding_bytes = row * sum(_keeps_padding_row(module) for module in group.modules)
    if max_bytes <= padding_bytes:
        raise BudgetError(
            f"compress_: {group.name!r} may take {max_bytes:,} bytes, which its padding row needs "
            "alone: raise the budget"
        )
    table = table_from_rows(
        method,
        spec,
        weight,
        Budget(max_bytes=max_bytes - padding_bytes),
        seed=derive_seed(seed, "compress", group.name),
        ignored=group.ignored,
        progress=progress,
        options=options,
    )
    return table.requires_grad_(weight.requires_grad)


def _keeps_padding_row(module: Replaceable) -> bool:
    return isinstance(module, nn.Embedding) and module.padding_idx is not None


def _replacements(group: Group, table: EmbeddingTable) -> dict[int, Embedding | EmbeddingBag]:
    """A module over the table for each module of a group, by its `id`."""
    made: dict[int, Embedding | EmbeddingBag] = {}
    for module in group.modules:
        new: Embedding | EmbeddingBag
        padding = module.padding_idx
        if isinstance(module, nn.Embedding):
            row = None if padding is None else module.weight[padding]
            new = Embedding.from_table(table, padding, row)
        else:
            new = EmbeddingBag.from_table(
                table, cast(Pooling, module.mode), module.include_last_offset, padding
            )
        made[id(module)] = new.train(module.training)
    table.train(any(module.training for module in group.modules))
    return made


def _measured(group: Group, replacements: dict[int, Embedding | EmbeddingBag]) -> CompressedModule:
    shared = nn.ModuleList(replacements.values())  # counts a shared table once
    after = MemoryUse.of({"parameters": shared.parameters(), "index": shared.buffers()})
    first = next(iter(replacements.values()))
    mse, variance = errors_of(first.table, group.weight, group.ignored)
    return CompressedModule(
        names=group.names,
        method=first.method,
        num_rows=first.num_embeddings,
        dim=first.embedding_dim,
        bytes_before=group.num_bytes,
        bytes_after=after.total_bytes,
        mse=mse,
        variance=variance,
    )

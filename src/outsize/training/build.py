"""From a configuration to the objects of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from outsize.collection import EmbeddingCollection
from outsize.collectives import local_rank, world_size
from outsize.contracts import RowStore
from outsize.data import ClickData
from outsize.errors import ConfigError
from outsize.models import ClickModel
from outsize.optimizers import ROW_OPTIMIZERS, RowOptimizer
from outsize.spec import Init, TableSpec
from outsize.stores import (
    CachedStore,
    LocalStore,
    ServedStore,
    ShardedStore,
    replicated_local_store,
)
from outsize.tables.build import build_tables, options_of
from outsize.training.config import OptimizerConfig, RunConfig
from outsize.training.embeddings_config import StoreConfig
from outsize.training.served_weights import ServedWeights


def build_device(name: str) -> torch.device:
    """The device to train on; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device = {name!r} is no device; try 'auto' or 'cpu'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"train.device = {name!r}, but this machine has no usable CUDA device")
    return device


def build_embeddings(config: RunConfig, data: ClickData) -> EmbeddingCollection:
    """One table and one feature for each categorical column of the data."""
    wanted = config.embeddings
    init = Init() if wanted.init_std is None else Init(std=wanted.init_std)
    specs = [TableSpec(name, size, wanted.dim, init) for name, size in data.vocabularies.items()]
    if isinstance(wanted, StoreConfig):
        return EmbeddingCollection(data.features, build_store(wanted, specs, config.seed))
    asked = {
        "columns": wanted.columns,
        "shared": wanted.shared,
        "papers_init": wanted.papers_init or None,
    }
    known = options_of(wanted.method)
    tables = build_tables(
        wanted.method,
        specs,
        max_params=wanted.max_params,
        max_bytes=wanted.max_bytes,
        seed=config.seed,
        **{name: value for name, value in asked.items() if value is not None and name in known},
    )
    return EmbeddingCollection(data.features, tables)


def build_store(wanted: StoreConfig, specs: Sequence[TableSpec], seed: int) -> RowStore:
    """Where the rows of a run live."""
    if wanted.store == "local":
        return (replicated_local_store if world_size() > 1 else LocalStore)(specs, seed=seed)
    kind = ServedStore if wanted.store == "served" else ShardedStore
    store: RowStore = kind(specs, seed=seed, wire=wanted.wire)
    cache = wanted.cache
    if cache.share:
        num_rows = max(len(store.layout.groups), round(cache.share * store.layout.num_rows))
        bounds = (cache.read_staleness, cache.write_staleness)
        store = CachedStore(store, num_rows, *bounds, cache.eviction)
    return store


def build_model(config: RunConfig, data: ClickData) -> ClickModel:
    """The model of a run, embeddings included."""
    return config.model.build(data.num_dense, build_embeddings(config, data), config.seed)


def build_dense_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """The optimizer of every parameter of a model."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.kind == "adamw":
        return AdamW(model.parameters(), lr=rate, weight_decay=decay)
    if config.kind == "adagrad":
        return Adagrad(model.parameters(), lr=rate, weight_decay=decay)
    return SGD(model.parameters(), lr=rate, weight_decay=decay, momentum=config.momentum)


def build_optimizer(config: RunConfig, model: nn.Module) -> Optimizer:
    """The optimizer of every parameter of a run's model, wherever the parameters live."""
    if config.is_asynchronous:
        wanted = config.optimizer
        return ServedWeights(list(model.parameters()), wanted.kind, wanted.learning_rate)
    return build_dense_optimizer(config.optimizer, model)


def build_row_optimizer(config: RunConfig, store: RowStore | None) -> RowOptimizer | None:
    """The optimizer of the rows, where they live in a store."""
    if store is None or not isinstance(config.embeddings, StoreConfig):
        return None
    wanted = config.embeddings.optimizer
    return ROW_OPTIMIZERS[wanted.kind](store, learning_rate=wanted.learning_rate)

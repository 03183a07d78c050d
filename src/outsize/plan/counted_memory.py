"""The memory of a rank, counted by the stores and tables themselves on the meta device.

Nothing is allocated there, so a table that fits nowhere can be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import Shard
from outsize.negatives import ItemCache, NegativeCache, ShardedNegativeCache
from outsize.spec import FeatureSpec, MemoryKind, MemoryUse, TableSpec
from outsize.stores import STORES, LocalStore, ShardedStore
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig


class AbsentRanks:
    """One of several ranks of which the others do not exist (a `RankGroup`).

    Args:
        rank: The number of this rank.
        size: The number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def swap_counts(self, counts: Tensor) -> Tensor:
        """Refuse: there is no other rank."""
        raise RuntimeError("the other ranks of a plan do not exist")

    def swap_bytes(self, messages: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Refuse: there is no other rank."""
        raise RuntimeError("the other ranks of a plan do not exist")


def embedding_memory(
    config: RunConfig,
    features: Sequence[FeatureSpec],
    specs: Sequence[TableSpec],
    rank: int,
    num_ranks: int,
    device: torch.device,
) -> dict[str, MemoryUse]:
    """What each table takes on a rank, without cached copies; as a run counts it at its end.

    Args:
        config: The run.
        features: Its features.
        specs: Their tables.
        rank: The rank.
        num_ranks: Number of ranks.
        device: Where the run would have them.
    """
    wanted = config.embeddings
    if isinstance(wanted, StoreConfig):
        store: Any = _meta_store(wanted, specs, rank, num_ranks)
        wanted.build_row_optimizer(store)
        found = store.memory_by_table()
    else:
        with torch.device("meta"):
            found = wanted.build(features, specs, config.seed).memory_by_table()
    return {name: on_device(use, device) for name, use in found.items()}


def negative_cache_memory(
    cache: ItemCache, rank: int, num_ranks: int, device: torch.device
) -> MemoryUse:
    """What a rank's shard of a negative cache takes, given the cache of a single process."""
    assert isinstance(cache, NegativeCache)
    if num_ranks == 1:
        return cache.memory_use()
    shapes, precision = cache.items.shapes, cache.items.precision
    with torch.device("meta"):
        sharded = ShardedNegativeCache(
            cache.num_items, cache.dim, shapes, precision, cache.eviction,
            group=AbsentRanks(rank, num_ranks),
        )  # fmt: skip
        return on_device(sharded.memory_use(), device)


def on_device(use: MemoryUse, device: torch.device | str) -> MemoryUse:
    """A memory use whose bytes are all on one device."""
    kinds: dict[MemoryKind, int] = {}
    for part in use.bytes_by_device.values():
        for kind, size in part.items():
            kinds[kind] = kinds.get(kind, 0) + size
    return MemoryUse(use.num_parameters, {str(device): kinds})


def trained_tables(
    config: RunConfig, features: Sequence[FeatureSpec], specs: Sequence[TableSpec]
) -> nn.Module:
    """The tables of a run on the meta device; an empty module if its rows are in a store."""
    if isinstance(config.embeddings, StoreConfig):
        return nn.Module()
    with torch.device("meta"):
        return config.embeddings.build(features, specs, config.seed)


def optimizer_state_bytes(config: RunConfig, model: nn.Module) -> int:
    """Bytes of the state of the dense optimizer, which the first step allocates."""
    weights = [torch.empty_like(weight, device="meta") for weight in model.parameters()]
    holder = nn.ParameterList(nn.Parameter(weight) for weight in weights)
    if not weights:
        return 0
    optimizer = build_dense_optimizer(config.optimizer, holder)
    for weight in holder:
        weight.grad = torch.empty_like(weight)
    optimizer.step()
    return sum(tensor_bytes(tensor) for tensor in state_tensors(optimizer))


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    lines = optimizer.state.values()
    return [value for line in lines for value in line.values() if isinstance(value, Tensor)]


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's values."""
    return tensor.numel() * tensor.element_size()


def _meta_store(config: StoreConfig, specs: Sequence[TableSpec], rank: int, num_ranks: int) -> Any:
    """The rows of a rank on the meta device, in front of which a cache would be."""
    if config.is_asynchronous:  # it keeps the shard that a sharded store keeps
        return LocalStore(specs, device="meta", shard=Shard(rank, num_ranks))
    if not config.is_shared:
        return STORES[config.store](specs, device="meta")
    group = AbsentRanks(rank, num_ranks)
    kind: Any = STORES.get(config.store, ShardedStore)
    return kind(specs, device="meta", group=group, wire=config.wire)

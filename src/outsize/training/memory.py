"""Memory of the embeddings and caches of a run, over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from outsize.collection import EmbeddingCollection
from outsize.ranks.collectives import gather_values
from outsize.spec import MemoryKind, MemoryUse

ROW_CACHE = "row cache"  # no table has a space in its name


def memory_of_all_ranks(
    embeddings: EmbeddingCollection, extra: Mapping[str, MemoryUse]
) -> tuple[MemoryUse, dict[str, MemoryUse]]:
    """Memory in total, and of each part by name; entered by all ranks.

    Shards and caches of all ranks are added up. What every rank has a copy of counts once.

    Args:
        embeddings: Their tables are parts.
        extra: Further parts, of which each rank has its own.
    """
    total, parts = _of_embeddings(embeddings)
    if copies := _cache_of_no_table(total, parts):
        parts[ROW_CACHE] = MemoryUse(0, copies)
    for other in gather_values({name: asdict(use) for name, use in extra.items()}):
        for name, use in other.items():
            parts[name] = parts.get(name, MemoryUse()) + MemoryUse(**use)
            total += MemoryUse(**use)
    return total, parts


def _of_embeddings(
    embeddings: EmbeddingCollection,
) -> tuple[MemoryUse, dict[str, MemoryUse]]:
    use, by_table = embeddings.memory_use(), embeddings.memory_by_table()
    if embeddings.store is None or embeddings.store.num_workers == 1:
        return use, by_table
    tables = {name: asdict(part) for name, part in by_table.items()}
    everyone = gather_values({"all": asdict(use), "tables": tables})
    total = sum((MemoryUse(**other["all"]) for other in everyone), MemoryUse())
    return total, {
        name: sum((MemoryUse(**other["tables"][name]) for other in everyone), MemoryUse())
        for name in by_table
    }


def _cache_of_no_table(
    total: MemoryUse, parts: Mapping[str, MemoryUse]
) -> dict[str, dict[MemoryKind, int]]:
    """Bytes of copies of rows by device; they belong to a store, and to no table of it."""
    counted = sum(parts.values(), MemoryUse()).bytes_by_device
    copies: dict[str, dict[MemoryKind, int]] = {}
    for device, kinds in total.bytes_by_device.items():
        size = kinds.get("cache", 0) - counted.get(device, {}).get("cache", 0)
        if size > 0:
            copies[device] = {"cache": size}
    return copies

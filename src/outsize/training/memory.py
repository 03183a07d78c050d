"""What the embeddings of a run cost, wherever its ranks keep them."""

from __future__ import annotations

from dataclasses import asdict

from outsize.collection import EmbeddingCollection
from outsize.collectives import gather_values
from outsize.spec import MemoryUse


def memory_of_all_ranks(
    embeddings: EmbeddingCollection,
) -> tuple[MemoryUse, dict[str, MemoryUse]]:
    """The cost of all embeddings and of each table; entered by all ranks.

    Shards and caches of all ranks are added up. What every rank has a copy of counts once.
    """
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

"""Encoding stale candidates of a search again before it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.errors import ConfigError, DataError
from outsize.search.index_state import IndexState
from outsize.search.ranking import ordered

Encode = Callable[[list[str]], Float32[Tensor, "n dim"]]
"""Keys of items → their vectors by the current model."""
_QUERIES_PER_CHUNK = 128


@dataclass(frozen=True)
class Repair:
    """How a search encodes stale candidates again before it answers.

    Attributes:
        encode: Keys of items → their vectors by the current model.
        version: Its version.
        factor: Candidates per item that is asked for.
    """

    encode: Encode
    version: str
    factor: int = 4

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ConfigError(f"factor must be >= 1, but got {self.factor}")


@dataclass(frozen=True)
class Repaired:
    """Candidates after their repair.

    Attributes:
        rows: The best rows of each query.
        scores: Their scores by the new vectors.
        keys: The items that were encoded again.
        vectors: Their vectors.
    """

    rows: Int64[Tensor, "q k"]
    scores: Float32[Tensor, "q k"]
    keys: list[str]
    vectors: Float32[Tensor, "n dim"]


def repaired(
    state: IndexState,
    queries: Float32[Tensor, "q dim"],
    candidates: tuple[Int64[Tensor, "q n"], Float32[Tensor, "q n"]],
    k: int,
    repair: Repair,
) -> Repaired:
    """Encode the candidates of other versions again, and rank all by their vectors."""
    rows, scores = candidates
    facts = state.facts_of(rows[rows >= 0].unique())
    names = state.versions
    current = names.index(repair.version) if repair.version in names else -1
    stale = facts.rows[facts.versions != current]
    if not len(stale):
        rows, scores = ordered(rows, scores, k)
        return Repaired(rows, scores, [], torch.zeros(0, state.manifest.dim))
    keys = state.keys_of(stale)
    vectors = encoded(repair.encode, keys, state.manifest.dim)
    parts = []
    for part in torch.arange(len(queries)).split(_QUERIES_PER_CHUNK):
        place = torch.searchsorted(stale, rows[part]).clamp_(max=len(stale) - 1)
        fresh = torch.einsum("qd,qnd->qn", queries[part], vectors[place])
        parts.append(torch.where(stale[place] == rows[part], fresh, scores[part]))
    rows, scores = ordered(rows, torch.cat(parts), k)
    return Repaired(rows, scores, keys, vectors)


def encoded(encode: Encode, keys: list[str], dim: int) -> Float32[Tensor, "n dim"]:
    """What a function of the user makes of keys, checked."""
    vectors = torch.as_tensor(encode(keys)).detach().float().cpu()
    if vectors.shape != (len(keys), dim):
        raise DataError(
            f"encode returned a tensor of shape {tuple(vectors.shape)} for {len(keys):,} items of "
            f"dim {dim}: return one vector per key"
        )
    return vectors

"""Two-tower models (Huang et al. 2013; Yi et al. 2019): scores are inner products of two encoders.

    q = f([v₁ … v_m]),   z = g([w₁ … w_n]),   score = q·z

where v and w are the pooled vectors of a query's and an item's features (or the numbers themselves,
for numeric features), and f and g are MLPs. Without hidden layers a tower is linear, and with a
single feature that already has the output width it is the identity: two such towers are matrix
factorization.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError, DataError
from outsize.models.mlp import mlp
from outsize.models.requirements import require_positive, require_widths
from outsize.models.retrieval_model import RetrievalModel, RetrievalModelConfig
from outsize.suggestions import few


@dataclass(frozen=True)
class TwoTowerConfig(RetrievalModelConfig):
    """Shape of a two-tower model.

    Attributes:
        dim: Width of the vectors of queries and items.
        hidden: Widths of the hidden layers of each tower.
        shared: Whether both towers share one MLP.
        normalize: Whether vectors are normalized to length 1, so that scores are cosines.
        query_features: Features of the query tower; all that the data has by default.
        item_features: Features of the item tower; all that the data has by default.
    """

    dim: int = 64
    hidden: tuple[int, ...] = ()
    shared: bool = False
    normalize: bool = True
    query_features: tuple[str, ...] = ()
    item_features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive("dim", self.dim)
        require_widths("hidden", self.hidden)

    def features_of(self, known: Sequence[str], side: str) -> tuple[str, ...]:  # noqa: D102
        wanted = {"query": self.query_features, "item": self.item_features}[side]
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"{side}_features names {name!r}, but the data has {few(known, name)}"
                )
        return wanted or tuple(known)

    def build(  # noqa: D102
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> TwoTower:
        return TwoTower(
            embeddings,
            query_features,
            item_features,
            numbers=numbers,
            hidden=self.hidden,
            dim=self.dim,
            shared=self.shared,
            normalize=self.normalize,
            seed=seed,
        )


class TwoTower(RetrievalModel):
    """Scores items for queries by the inner product of two towers.

    Args:
        embeddings: The features of queries and items that are ids.
        query_features: The features of the query tower.
        item_features: The features of the item tower.
        numbers: The features among them that are numbers: `(n,)` values of about unit scale.
        hidden: Widths of the hidden layers of each tower. Without any, a tower is one linear layer
            without a bias, or the identity if its input has the width `dim`.
        dim: Width of the vectors.
        shared: Whether both towers share one MLP; their inputs must then be equally wide.
        normalize: Whether vectors are normalized to length 1.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        *,
        numbers: Sequence[str] = (),
        hidden: Sequence[int] = (),
        dim: int = 64,
        shared: bool = False,
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_positive("dim", dim)
        require_widths("hidden", hidden)
        self.embeddings = embeddings
        self.dim = dim
        self.normalize = normalize
        self.query_features, self.item_features = tuple(query_features), tuple(item_features)
        self.numbers = frozenset(numbers)
        widths = [
            _width(embeddings, self.numbers, names, side)
            for side, names in (("query", self.query_features), ("item", self.item_features))
        ]
        if shared and widths[0] != widths[1]:
            raise ConfigError(
                f"towers that share their layers must be equally wide, but queries have "
                f"{widths[0]} numbers and items {widths[1]}: set shared = false, or give both as "
                "many features"
            )
        generator = torch.Generator().manual_seed(seed)
        self.query_tower = _tower(widths[0], hidden, dim, generator)
        self.item_tower = None if shared else _tower(widths[1], hidden, dim, generator)

    def encode_queries(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch dim"]:
        """The vectors of queries; other features in `inputs` are ignored."""
        return self._encode(inputs, self.query_features, self.query_tower)

    def encode_items(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "n dim"]:
        """The vectors of items; other features in `inputs` are ignored."""
        tower = self.query_tower if self.item_tower is None else self.item_tower
        return self._encode(inputs, self.item_features, tower)

    def _encode(
        self, inputs: Mapping[str, FeatureInput], names: tuple[str, ...], tower: nn.Module
    ) -> Float[Tensor, "n dim"]:
        ids = tuple(name for name in names if name not in self.numbers)
        vectors = self.embeddings(inputs, only=ids) if ids else {}
        parts = [
            _as_column(inputs[name], name) if name in self.numbers else vectors[name]
            for name in names
        ]
        encoded: Tensor = tower(torch.cat(parts, dim=1)).float()
        return F.normalize(encoded, dim=1) if self.normalize else encoded


def _width(
    embeddings: EmbeddingCollection, numbers: Collection[str], names: tuple[str, ...], side: str
) -> int:
    """The input width of a tower."""
    widths = {feature.name: embeddings.spec_of(feature).dim for feature in embeddings.features}
    widths |= dict.fromkeys(numbers, 1)
    for name in names:
        if name not in widths:
            raise ConfigError(f"no feature {name!r} for the {side} tower; there are "
                              f"{few(widths, name)}")  # fmt: skip
    if not names:
        raise ConfigError(f"the {side} tower needs at least one feature, but got none")
    return sum(widths[name] for name in names)


def _as_column(values: FeatureInput, name: str) -> Float32[Tensor, "n 1"]:
    if not isinstance(values, Tensor) or values.dim() != 1:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise DataError(f"feature {name!r} is a number for each row, (n,), but got {got}")
    return values.float().unsqueeze(1)


def _tower(width: int, hidden: Sequence[int], dim: int, generator: torch.Generator) -> nn.Module:
    if not hidden and width == dim:
        return nn.Identity()
    return mlp([width, *hidden, dim], final_relu=False, generator=generator, bias=bool(hidden))

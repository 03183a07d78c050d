"""DeepFM (Guo et al. 2017): a factorization machine and an MLP that share their vectors.

    logit = u · dense + Σ_f w_f + Σ_{f<g} v_f · v_g + MLP([dense, v₁, …, v_F])

w_f and v_f are the weight and the vector of the id of feature f (see `id_weights`): a table of dim
17 gives vectors of 16. The dense features have their own weights u and are not in the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.models.click_model import ClickModel, ClickModelConfig
from outsize.models.id_weights import split_weights, vector_dim
from outsize.models.mlp import linear, mlp
from outsize.models.requirements import require_one_of, require_widths

DeepInputs = Literal["all", "vectors"]


@dataclass(frozen=True)
class DeepFMConfig(ClickModelConfig):
    """Shape of a DeepFM.

    Attributes:
        hidden: Hidden widths of the deep part; its output is one logit.
        deep_inputs: The inputs of the deep part: "all", or "vectors" without the dense features.
        bias: Whether the layers of the deep part have biases; the last one is the model's bias.
    """

    hidden: tuple[int, ...] = (400, 400, 400)
    deep_inputs: DeepInputs = "all"
    bias: bool = True

    def __post_init__(self) -> None:
        require_widths("hidden", self.hidden)
        require_one_of("deep_inputs", self.deep_inputs, get_args(DeepInputs))

    @classmethod
    def het(cls) -> DeepFMConfig:
        """HET's shape: 917,773 dense parameters with 13 dense features and 26 vectors of 128.

        With the weight of the id, rows have dim 129; HET stores the weights in a second table.
        """
        return cls(hidden=(256, 256), deep_inputs="vectors", bias=False)

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> DeepFM:  # noqa: D102
        return DeepFM(num_dense, embeddings, self.hidden, self.deep_inputs, self.bias, seed)


class DeepFM(ClickModel):
    """Predicts a click as the sum of a factorization machine and an MLP.

    Args:
        num_dense: Width of the dense features; may be 0.
        embeddings: The categorical features, all of one width: a vector and a weight.
        hidden: Hidden widths of the deep part.
        deep_inputs: "all" or "vectors".
        bias: Whether the layers of the deep part have biases.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        num_dense: int,
        embeddings: EmbeddingCollection,
        hidden: Sequence[int] = (400, 400, 400),
        deep_inputs: DeepInputs = "all",
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(num_dense, embeddings)
        DeepFMConfig(tuple(hidden), deep_inputs, bias)  # checks the shape
        generator = torch.Generator().manual_seed(seed)
        self.deep_inputs = deep_inputs
        self.dense_weights = (
            linear(num_dense, 1, generator=generator, bias=False) if num_dense else None
        )
        width = embeddings.num_features * vector_dim(embeddings)
        width += num_dense if deep_inputs == "all" else 0
        self.deep = mlp((width, *hidden, 1), final_relu=False, generator=generator, bias=bias)

    @classmethod
    def het(cls, num_dense: int, embeddings: EmbeddingCollection, seed: int = 0) -> DeepFM:
        """The model of HET's experiments; see `DeepFMConfig.het`."""
        return DeepFMConfig.het().build(num_dense, embeddings, seed)

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        vectors, weights = split_weights(self.embeddings.stacked(ids).to(dense.dtype))
        inputs = vectors.flatten(1)
        if self.deep_inputs == "all":
            inputs = torch.cat((dense, inputs), dim=1)
        logits: Tensor = weights.sum(dim=1) + pairwise_products(vectors)
        logits = logits + self.deep(inputs).squeeze(1)
        if self.dense_weights is not None:
            logits = logits + self.dense_weights(dense).squeeze(1)
        return logits.float()


def pairwise_products(
    vectors: Float[Tensor, "batch features dim"],
) -> Float[Tensor, " batch"]:
    """The sum of the inner products of all pairs of vectors, in time linear in their number.

    Rendle (2010), Lemma 3.1: ½ Σ_k [(Σ_f v_fk)² − Σ_f v_fk²].
    """
    squares = vectors.square().sum(dim=(1, 2))
    return 0.5 * (vectors.sum(dim=1).square().sum(dim=1) - squares)

"""Wide & Deep (Cheng et al. 2016): the sum of a linear model of ids and an MLP.

In the usual form the deep part is an MLP over the dense features and the vectors of all ids, and
the wide part is the sum of the weights of the ids (see `id_weights`):

    logit = MLP([dense, v₁, …, v_F]) + w₁ + … + w_F

The paper's hand-made feature crosses are ordinary features here: give their ids a table.

In HET's form ("WDL" in its Table 3) the MLP reads only the dense features, and the wide part is a
linear function of the whole rows:

    logit = MLP(dense) + Σ_f u_f · row_f

(Here every hidden layer has a ReLU; the authors' code omits the last one.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError
from outsize.models.click_model import ClickModel, ClickModelConfig
from outsize.models.id_weights import split_weights, vector_dim
from outsize.models.mlp import linear, mlp
from outsize.models.requirements import require_one_of, require_widths

Form = Literal["usual", "het"]


@dataclass(frozen=True)
class WideDeepConfig(ClickModelConfig):
    """Shape of a Wide & Deep model.

    Attributes:
        hidden: Hidden widths of the deep part; its output is one logit.
        form: "usual": the deep part reads all inputs, the wide part the weights of ids. "het": the
            deep part reads dense features, the wide part whole rows.
        bias: Whether the layers of the deep part have biases.
    """

    hidden: tuple[int, ...] = (1024, 512, 256)
    form: Form = "usual"
    bias: bool = True

    def __post_init__(self) -> None:
        require_widths("hidden", self.hidden)
        require_one_of("form", self.form, get_args(Form))

    @classmethod
    def het(cls) -> WideDeepConfig:
        """HET's shape: 137,984 dense parameters with 13 dense features and 26 rows of 128."""
        return cls(hidden=(256, 256, 256), form="het", bias=False)

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> WideDeep:  # noqa: D102
        return WideDeep(num_dense, embeddings, self.hidden, self.form, self.bias, seed)


class WideDeep(ClickModel):
    """Predicts a click as the sum of a linear model and an MLP.

    Args:
        num_dense: Width of the dense features; may be 0 in the usual form.
        embeddings: The categorical features, all of one width.
        hidden: Hidden widths of the deep part.
        form: "usual" or "het"; see the module docstring.
        bias: Whether the layers of the deep part have biases.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        num_dense: int,
        embeddings: EmbeddingCollection,
        hidden: Sequence[int] = (1024, 512, 256),
        form: Form = "usual",
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(num_dense, embeddings)
        WideDeepConfig(tuple(hidden), form, bias)  # checks the shape
        generator = torch.Generator().manual_seed(seed)
        self.wide: nn.Linear | None = None
        if form == "het":
            if not num_dense:
                raise ConfigError(
                    "the deep part of HET's form reads dense features, but num_dense is 0: "
                    "use form = 'usual'"
                )
            width = num_dense
            num_numbers = embeddings.num_features * embeddings.dim
            self.wide = linear(num_numbers, 1, generator=generator, bias=False)
        else:
            width = num_dense + embeddings.num_features * vector_dim(embeddings)
        self.deep = mlp((width, *hidden, 1), final_relu=False, generator=generator, bias=bias)

    @classmethod
    def het(cls, num_dense: int, embeddings: EmbeddingCollection, seed: int = 0) -> WideDeep:
        """The model of HET's experiments; see `WideDeepConfig.het`."""
        return WideDeepConfig.het().build(num_dense, embeddings, seed)

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        rows = self.embeddings.stacked(ids).to(dense.dtype)
        if self.wide is not None:
            deep, wide = self.deep(dense), self.wide(rows.flatten(1)).squeeze(1)
        else:
            vectors, weights = split_weights(rows)
            deep = self.deep(torch.cat((dense, vectors.flatten(1)), dim=1))
            wide = weights.sum(dim=1)
        logits: Tensor = deep.squeeze(1) + wide
        return logits.float()

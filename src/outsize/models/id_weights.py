"""The linear weight of an id, stored as the last column of its row.

Wide & Deep and DeepFM give every id a weight in addition to its vector. A row of width `dim` is
therefore read as a vector of `dim − 1` numbers followed by that weight. The two are looked up,
cached and updated together, and each id has an independent weight, as in a separate table of width
1. (Projecting the vector to one number instead would tie the weights of all ids of a feature to
`dim` parameters.)

Both parts start at the scale of the table's `init`. A row-wise optimizer shares one step size
between them; `full-adagrad` gives each number its own.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.errors import ConfigError


def vector_dim(embeddings: EmbeddingCollection) -> int:
    """The width of the vectors: that of the rows without their last column."""
    if embeddings.dim < 2:
        raise ConfigError(
            f"the rows have dim {embeddings.dim}, but their last number is the weight of the id: "
            "a dim of 2 or more leaves some for its vector"
        )
    return embeddings.dim - 1


def split_weights(
    rows: Float[Tensor, "batch features dim"],
) -> tuple[Float[Tensor, "batch features vector_dim"], Float[Tensor, "batch features"]]:
    """Split rows into vectors and weights."""
    return rows[..., :-1], rows[..., -1]

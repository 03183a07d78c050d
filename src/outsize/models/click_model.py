"""The interface of click models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError


class Predictor(Protocol):
    """Scores raw rows with a model; an exported model brings its own."""

    def predict(
        self, model: ClickModel, rows: Any, *, logits: bool, skip_bad: bool
    ) -> NDArray[Any]:
        """See `ClickModel.predict`."""


class ClickModel(nn.Module, ABC):
    """Predicts clicks from dense features and an `EmbeddingCollection`.

    Attributes:
        num_dense: Number of dense features; 0 if there are none.
        embeddings: The categorical features.
        predictor: How raw rows are scored; `outsize.load_exported` sets it.
    """

    num_dense: int
    embeddings: EmbeddingCollection
    predictor: Predictor | None = None

    def __init__(self, num_dense: int, embeddings: EmbeddingCollection) -> None:
        super().__init__()
        if num_dense < 0:
            raise ConfigError(f"num_dense must be >= 0, but got {num_dense}")
        self.num_dense = num_dense
        self.embeddings = embeddings

    @abstractmethod
    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""

    def predict(self, rows: Any, *, logits: bool = False, skip_bad: bool = False) -> NDArray[Any]:
        """Score rows of raw values, in batches and in evaluation mode.

        Values become ids as in training; a value that training did not see is what it was there:
        the unknown id, or its hash. Missing values are `None` or NaN.

        Args:
            rows: The columns that the model was trained on, as a dict of lists or arrays, a list of
                dicts, a pyarrow Table or RecordBatch, or a pandas or polars frame; others are
                ignored.
            logits: Return the model's logits (float32) instead of probabilities (float64).
            skip_bad: Return NaN for rows that cannot be scored, instead of raising an error.

        Returns:
            The probability of label 1 for each row.

        Raises:
            DataError: A column is missing, or rows cannot be scored: a number that is none, bytes
                that are not text. The message names the rows and the column.
        """
        if self.predictor is None:
            raise ConfigError(
                "this model does not know how raw values become ids: export a run on files, and "
                "load it with outsize.load_exported; or call the model with dense features and ids"
            )
        return self.predictor.predict(self, rows, logits=logits, skip_bad=skip_bad)


class ClickModelConfig(ABC):
    """The configuration of a click model; `build` makes the model."""

    task: ClassVar[str] = "click"
    initial_std: ClassVar[float | None] = None
    """Standard deviation of fresh rows, where a run file names none; `None` for the default."""

    @abstractmethod
    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> ClickModel:
        """Build the model with initial weights."""

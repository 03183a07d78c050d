"""The configuration that all sources of texts share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from outsize.data.retrieval_data import RetrievalData, RetrievalDataConfig
from outsize.data.texts.text_pairs import TextPairs
from outsize.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TextDataConfig(RetrievalDataConfig):
    """The configuration of a source of texts; `read` reads them, and a model tokenizes them.

    Attributes:
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the shuffling, and of what is held out at random.
    """

    holds_texts: ClassVar[bool] = True
    shuffle: bool = True
    seed: int = 0

    @abstractmethod
    def read(self) -> TextPairs:
        """Read the texts and their pairs."""

    def build(self) -> RetrievalData:
        """Refused: texts become numbers by the tokenizer of a model (see `tokenized`)."""
        raise ConfigError(
            "texts are tokenized by the model that reads them: train them with model.kind = 'text'"
        )
